#include "decode.hpp"

#include <algorithm>
#include <cstring>

#include "cpu.hpp"
#include "threads.hpp"

namespace quantform {
namespace {

constexpr std::size_t line = 64;
/// Numbers decoded before they are stored: 4 KiB, a part of any first-level cache, and whole blocks of every profile.
constexpr std::size_t stage_values = 1024;
/// Output bytes that a thread takes at a time, and below which another thread costs more than it does.
constexpr std::size_t piece_bytes = std::size_t{1} << 20;

/// Values straight to the output where it can hold binary32, else by way of the stage.
void decode_cached(const KernelSet& set, const Decode& job, std::size_t first, std::size_t end) {
    const std::size_t values = static_cast<std::size_t>(job.kernel->values);
    const std::size_t bytes = static_cast<std::size_t>(job.kernel->bytes);
    const std::size_t width = output_bytes(job.output);
    const auto address = reinterpret_cast<std::uintptr_t>(job.out);
    if (job.output == Output::float32 && address % alignof(float) == 0) {
        float* const out = reinterpret_cast<float*>(job.out) + first * values;
        job.kernel->decode(job.blocks + first * bytes, end - first, out);
        return;
    }
    alignas(line) float stage[stage_values];
    const std::size_t step = stage_values / values;
    for (std::size_t at = first; at < end; at += step) {
        const std::size_t blocks = std::min(step, end - at);
        job.kernel->decode(job.blocks + at * bytes, blocks, stage);
        set.store[static_cast<int>(job.output)](stage, blocks * values, job.out + at * values * width);
    }
}

/// Whole cache lines past the caches; the parts of lines at both ends are stored as usual.
void decode_streamed(const KernelSet& set, const Decode& job, std::size_t first, std::size_t end) {
    const std::size_t values = static_cast<std::size_t>(job.kernel->values);
    const std::size_t bytes = static_cast<std::size_t>(job.kernel->bytes);
    const std::size_t width = output_bytes(job.output);
    const std::size_t step = stage_values / values;
    alignas(line) float stage[stage_values];
    alignas(line) std::uint8_t encoded[line + stage_values * sizeof(double)];
    std::uint8_t* out = job.out + first * values * width;
    std::size_t head = (line - reinterpret_cast<std::uintptr_t>(out) % line) % line;
    std::size_t kept = 0;  // bytes in `encoded` that do not fill a line yet
    for (std::size_t at = first; at < end; at += step) {
        const std::size_t blocks = std::min(step, end - at);
        job.kernel->decode(job.blocks + at * bytes, blocks, stage);
        const std::uint8_t* from = encoded;
        std::size_t ready = kept + blocks * values * width;
        if (job.output == Output::float32 && kept == 0) {
            from = reinterpret_cast<const std::uint8_t*>(stage);
        } else {
            set.store[static_cast<int>(job.output)](stage, blocks * values, encoded + kept);
        }
        const std::size_t part = std::min(head, ready);
        std::memcpy(out, from, part);
        head -= part, out += part, from += part, ready -= part;
        const std::size_t whole = ready / line * line;
        set.stream(from, whole, out);
        out += whole;
        kept = ready - whole;
        std::memmove(encoded, from + whole, kept);
    }
    std::memcpy(out, encoded, kept);
    set.fence();
}

}  // namespace

void decode(const KernelSet& set, const Decode& job, Stores stores, std::size_t threads) {
    const std::size_t block = static_cast<std::size_t>(job.kernel->values) * output_bytes(job.output);
    const bool streamed =
        stores == Stores::streamed || (stores == Stores::automatic && job.count * block > last_level_cache() / 2);
    split(job.count, std::max<std::size_t>(1, piece_bytes / block), threads, [&](std::size_t first, std::size_t end) {
        if (streamed) {
            decode_streamed(set, job, first, end);
        } else {
            decode_cached(set, job, first, end);
        }
    });
}

}  // namespace quantform
