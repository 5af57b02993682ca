#include "decode.hpp"

#include <algorithm>
#include <cstring>

#include "cpu.hpp"
#include "threads.hpp"

namespace quantform {
namespace {

constexpr std::size_t line = 64;
/// Output bytes decoded before they are streamed: whole blocks of every profile, and a part of any first-level cache.
/// Measured: twice as many are slower, for some types much; half as many are slower for grid types and 16-bit outputs.
constexpr std::size_t stage_bytes = std::size_t{8} << 10;
/// Output bytes that a thread takes at a time.
constexpr std::size_t piece_bytes = std::size_t{1} << 20;
/// Output bytes for which it pays to start another thread (measured: a start costs as much as some MiB in the caches).
constexpr std::size_t thread_bytes = std::size_t{8} << 20;

std::size_t block_bytes(const Decode& job) {
    return static_cast<std::size_t>(job.kernel->values) * output_bytes(job.output);
}

/// Whole cache lines past the caches; the parts of lines at both ends are stored as usual.
void decode_streamed(const KernelSet& set, const Decode& job, std::size_t first, std::size_t end) {
    const DecodeBlocks kernel = job.kernel->decode[static_cast<int>(job.output)];
    const std::size_t bytes = static_cast<std::size_t>(job.kernel->bytes), block = block_bytes(job);
    const std::size_t step = stage_bytes / block;
    alignas(line) std::uint8_t stage[line + stage_bytes];
    std::uint8_t* out = job.out + first * block;
    std::size_t head = (line - reinterpret_cast<std::uintptr_t>(out) % line) % line;
    std::size_t kept = 0;  // bytes at the beginning of the stage that did not fill a line
    for (std::size_t at = first; at < end; at += step) {
        const std::size_t blocks = std::min(step, end - at);
        kernel(job.blocks + at * bytes, blocks, stage + kept);
        const std::uint8_t* from = stage;
        std::size_t ready = kept + blocks * block;
        const std::size_t part = std::min(head, ready);
        std::memcpy(out, from, part);
        head -= part, out += part, from += part, ready -= part;
        const std::size_t whole = ready / line * line;
        set.stream(from, whole, out);
        out += whole;
        kept = ready - whole;
        std::memmove(stage, from + whole, kept);
    }
    std::memcpy(out, stage, kept);
    set.fence();
}

}  // namespace

bool streams(const Decode& job, Stores stores) {
    return stores == Stores::streamed ||
           (stores == Stores::automatic && job.count * block_bytes(job) > last_level_cache() / 4 * 3);
}

void decode_run(const KernelSet& set, const Decode& job, bool streamed, std::size_t first, std::size_t end) {
    if (streamed) {
        decode_streamed(set, job, first, end);
    } else {
        const DecodeBlocks kernel = job.kernel->decode[static_cast<int>(job.output)];
        kernel(job.blocks + first * static_cast<std::size_t>(job.kernel->bytes), end - first,
               job.out + first * block_bytes(job));
    }
}

void decode(const KernelSet& set, const Decode& job, Stores stores, std::size_t threads) {
    const std::size_t block = block_bytes(job);
    const bool streamed = streams(job, stores);
    const std::size_t piece = std::max<std::size_t>(1, piece_bytes / block);
    const std::size_t useful = std::max<std::size_t>(1, job.count * block / thread_bytes);
    if (useful > 1 && threads == 0) threads = usable_cpus();
    split(job.count, piece, std::min(threads, useful),
          [&](std::size_t first, std::size_t end) { decode_run(set, job, streamed, first, end); });
}

}  // namespace quantform
