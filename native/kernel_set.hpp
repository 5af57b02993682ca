// What one instruction set's kernels are to the rest: a table of functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "encode_set.hpp"

namespace quantform {

/// The outputs' element types; the numbers are the binding's.
enum class Output : int { float32, float16, bfloat16, float64 };
constexpr int outputs = 4;

constexpr std::size_t output_bytes(Output output) {
    return output == Output::float64 ? 8 : output == Output::float32 ? 4 : 2;
}

/// The largest `ggml_type` of a packed profile, plus one.
constexpr int packed_types = 43;

/// Decodes `count` blocks; neither end needs an alignment.
using DecodeBlocks = void (*)(const std::uint8_t* blocks, std::size_t count, std::uint8_t* out);

/// A packed profile's kernel for each type of output; all zero where ggml's number is no profile.
struct PackedKernel {
    DecodeBlocks decode[outputs];
    int values;
    int bytes;
    const char* identifier;  ///< the operator's name for the format, `gguf:q4_k`
};

struct KernelSet {
    const char* name;
    PackedKernel packed[packed_types];
    /// A multiple of 64 bytes past the caches, to an address that is aligned to 64.
    void (*stream)(const std::uint8_t* from, std::size_t bytes, std::uint8_t* to);
    void (*fence)();
    const EncodeKernels* encode;
};

}  // namespace quantform
