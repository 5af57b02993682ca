// Decoding a run of blocks to an output of any type, past the caches or not, on any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel_set.hpp"
#include "stage.hpp"

namespace quantform {

struct Decode {
    const PackedKernel* kernel;
    const std::uint8_t* blocks;  ///< `count * kernel->bytes` bytes, of any alignment
    std::size_t count;
    Output output;
    std::uint8_t* out;  ///< `count * kernel->values` numbers, of any alignment; does not overlap `blocks`
};

/// Whether values are stored past the caches, for which the whole output's size decides.
bool streams(const Decode& job, Stores stores);

/// Decodes the blocks `[first, end)` of a job on this thread: runs may be done in any order, or at the same time, and give
/// the same bytes however the job is cut. The floating-point environment must be the default one.
void decode_run(const KernelSet& set, const Decode& job, bool streamed, std::size_t first, std::size_t end);

/// Decodes all blocks, on one thread for each usable CPU where `threads` is 0. The result depends neither on the set nor
/// on the threads nor on the stores.
void decode(const KernelSet& set, const Decode& job, Stores stores, std::size_t threads);

}  // namespace quantform
