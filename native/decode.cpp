#include "decode.hpp"

#include <algorithm>

#include "threads.hpp"

namespace quantform {
namespace {

std::size_t block_bytes(const Decode& job) {
    return static_cast<std::size_t>(job.kernel->values) * output_bytes(job.output);
}

}  // namespace

bool streams(const Decode& job, Stores stores) { return past_caches(stores, job.count * block_bytes(job)); }

void decode_run(const KernelSet& set, const Decode& job, bool streamed, std::size_t first, std::size_t end) {
    const DecodeBlocks kernel = job.kernel->decode[static_cast<int>(job.output)];
    const std::size_t bytes = static_cast<std::size_t>(job.kernel->bytes), block = block_bytes(job);
    std::uint8_t* const out = job.out + first * block;
    if (!streamed) {
        kernel(job.blocks + first * bytes, end - first, out);
        return;
    }
    const std::size_t step = stage_bytes / block;
    Stage stage(set, out);
    for (std::size_t at = first; at < end; at += step) {
        const std::size_t blocks = std::min(step, end - at);
        kernel(job.blocks + at * bytes, blocks, stage.room(blocks * block));
        stage.add(blocks * block);
    }
}

void decode(const KernelSet& set, const Decode& job, Stores stores, std::size_t threads) {
    const std::size_t block = block_bytes(job);
    const bool streamed = streams(job, stores);
    split(job.count, std::max<std::size_t>(1, piece_bytes / block), useful_threads(threads, job.count * block),
          [&](std::size_t first, std::size_t end) { decode_run(set, job, streamed, first, end); });
}

}  // namespace quantform
