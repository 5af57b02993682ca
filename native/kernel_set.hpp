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

/// Where the words of a run of one row's values begin. What a format does not have is null.
struct RowWords {
    const std::uint8_t* codes;
    const std::uint8_t* high;  ///< further bits of the codes
    const std::uint8_t* scales;
    std::size_t scale_step;  ///< bytes from the scales of one unit to those of the next; 0 where a row has one scale
    float divisor;
};

/// Decodes whole units of a row; nothing needs an alignment.
using DecodeUnits = void (*)(const RowWords& words, std::size_t units, std::uint8_t* out);
/// Whether every word is legal in its format. Padding counts as words.
using LegalUnits = bool (*)(const RowWords& words, std::size_t units);

/// The kernels for rows whose codes and scales lie apart. A unit is the fewest values that are whole bytes everywhere.
struct RowKernel {
    const char* name;
    DecodeUnits decode[outputs];
    DecodeUnits stream[outputs];  ///< the same past the caches, to an address that is aligned to 64; needs a fence
    LegalUnits legal;
    int values;
    int code_bytes;
    int high_bytes;
    int scale_bytes;  ///< of a unit, or of a row where `one_scale`
    int scales;       ///< how many scales these are
    bool one_scale;
};
constexpr int row_kernels = 15;

struct KernelSet {
    const char* name;
    PackedKernel packed[packed_types];
    const RowKernel* rows;  ///< `row_kernels` of them
    /// A multiple of 64 bytes past the caches, to an address that is aligned to 64.
    void (*stream)(const std::uint8_t* from, std::size_t bytes, std::uint8_t* to);
    void (*fence)();
    const EncodeKernels* encode;
};

}  // namespace quantform
