// What one instruction set's kernels are to the rest: a table of functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quantform {

/// The outputs' element types; the numbers are the binding's.
enum class Output : int { float32, float16, bfloat16, float64 };
constexpr int outputs = 4;

constexpr std::size_t output_bytes(Output output) {
    return output == Output::float64 ? 8 : output == Output::float32 ? 4 : 2;
}

/// The largest `ggml_type` of a packed profile, plus one.
constexpr int packed_types = 43;

/// A packed profile's kernel; `decode` is null where ggml's number is no profile.
struct PackedKernel {
    /// `count` blocks at `blocks`, of any alignment, to binary32 at `out`, which is aligned for it.
    void (*decode)(const std::uint8_t* blocks, std::size_t count, float* out);
    int values;
    int bytes;
};

struct KernelSet {
    const char* name;
    PackedKernel packed[packed_types];
    /// A multiple of 16 numbers to an output of any alignment, each rounded once.
    void (*store[outputs])(const float* from, std::size_t count, std::uint8_t* to);
    /// A multiple of 64 bytes past the caches, to an address that is aligned to 64.
    void (*stream)(const std::uint8_t* from, std::size_t bytes, std::uint8_t* to);
    void (*fence)();
};

}  // namespace quantform
