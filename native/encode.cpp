#include "encode.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <vector>

#include "cpu.hpp"
#include "threads.hpp"

namespace quantform {
namespace {

/// Values for which it pays to start another thread, and that a thread takes at a time.
struct Share {
    std::size_t thread, piece;
};
constexpr Share encoding{std::size_t{1} << 18, std::size_t{1} << 16}, searching{std::size_t{1} << 14, std::size_t{1} << 12};

/// Calls `work(first, end)` for pieces of the rows on as many threads as pay, until one returns false.
template <class Work>
bool all_of_rows(const Values& values, std::size_t rows, std::size_t threads, const Share& share, const Work& work) {
    const std::size_t columns = std::max<std::size_t>(1, values.columns);
    const std::size_t piece = std::max<std::size_t>(1, share.piece / columns);
    const std::size_t useful = std::max<std::size_t>(1, rows / std::max<std::size_t>(1, share.thread / columns));
    if (useful > 1 && threads == 0) threads = usable_cpus();
    std::atomic<bool> fits{true};
    split(rows, piece, std::min(threads, useful), [&](std::size_t first, std::size_t end) {
        if (fits.load(std::memory_order_relaxed) && !work(first, end)) fits.store(false, std::memory_order_relaxed);
    });
    return fits.load();
}

/// Weights as the first look needs them: each group's less its power of two, so that all are below two.
struct Rounded {
    std::vector<float> weights;
    std::vector<std::uint8_t> kinds;
};

Rounded rounded(const double* importance, std::size_t lanes, std::size_t group) {
    const DefaultArithmetic arithmetic;
    Rounded result{std::vector<float>(lanes), std::vector<std::uint8_t>(lanes / group)};
    for (std::size_t first = 0; first < lanes; first += group) {
        const double most = *std::max_element(importance + first, importance + first + group);
        Weights kind = Weights::extreme;
        if (most == 0) {
            kind = Weights::none;
        } else if (most >= 0x1p-500 && most <= 0x1p500) {
            kind = Weights::ordinary;
            const auto exponent = std::bit_cast<std::uint64_t>(most) & 0x7FF0000000000000U;
            const double power = std::bit_cast<double>(exponent);
            for (std::size_t at = first; at < first + group; ++at) {
                result.weights[at] = static_cast<float>(importance[at] / power);
            }
        }
        result.kinds[first / group] = static_cast<std::uint8_t>(kind);
    }
    return result;
}

}  // namespace

bool encode_grouped(const KernelSet& set, const GroupedJob& job, const Values& values, std::size_t rows,
                    const GroupedRows& out, std::size_t threads) {
    const int format = static_cast<int>(job.format);
    const auto kernel = job.packed ? set.encode->packed[format] : set.encode->grouped[format];
    Search search{job.importance, nullptr, nullptr, job.negative};
    Rounded weights;
    if (job.search && job.importance != nullptr) {
        const std::size_t group = group_size(job.format);
        weights = rounded(job.importance, (values.columns + group - 1) / group * group, group);
        search.rounded = weights.weights.data();
        search.kind = weights.kinds.data();
    }
    const Search* const wanted = job.search ? &search : nullptr;
    return all_of_rows(values, rows, threads, job.search ? searching : encoding,
                       [&](std::size_t first, std::size_t end) { return kernel(values, wanted, out, first, end); });
}

bool encode_rows(const KernelSet& set, RowScale scale, const Values& values, std::size_t rows, const RowScaledRows& out,
                 std::size_t threads) {
    const auto kernel = set.encode->rows[static_cast<int>(scale)];
    return all_of_rows(values, rows, threads, encoding,
                       [&](std::size_t first, std::size_t end) { return kernel(values, out, first, end); });
}

bool encode_nvfp4(const KernelSet& set, float divisor, const Values& values, std::size_t rows, const Nvfp4Rows& out,
                  std::size_t threads) {
    return all_of_rows(values, rows, threads, encoding, [&](std::size_t first, std::size_t end) {
        return set.encode->nvfp4(values, divisor, out, first, end);
    });
}

float largest_magnitude(const KernelSet& set, const Values& values, std::size_t rows, std::size_t threads) {
    std::atomic<std::uint32_t> largest{0};
    all_of_rows(values, rows, threads, encoding, [&](std::size_t first, std::size_t end) {
        const std::uint32_t word = set.encode->largest(values, first, end);
        std::uint32_t before = largest.load(std::memory_order_relaxed);
        while (before < word && !largest.compare_exchange_weak(before, word, std::memory_order_relaxed)) {}
        return true;
    });
    return std::bit_cast<float>(largest.load());
}

}  // namespace quantform
