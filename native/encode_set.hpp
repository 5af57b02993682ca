// What one instruction set's encoders are to the rest: a table of functions over rows of values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quantform {

/// The types of source values that kernels read; the numbers are the binding's.
enum class Number : int { float32, float16, bfloat16 };
constexpr int numbers = 3;

constexpr std::size_t number_bytes(Number number) { return number == Number::float32 ? 4 : 2; }

/// Rows of source values, of any alignment.
struct Values {
    const std::uint8_t* data;
    std::ptrdiff_t stride;  ///< bytes from a row to the next
    std::size_t columns;
    Number number;
};

/// Where rows of one kind of output lie.
struct Rows {
    std::uint8_t* data;
    std::size_t stride;
};

/// The grouped formats that have an encoder.
enum class Grouped : int { q4, q5, q6, q8 };
constexpr int grouped_formats = 4;

/// Values under one scale.
constexpr std::size_t group_size(Grouped format) { return format == Grouped::q8 ? 32 : 64; }
/// Bits of a code.
constexpr std::size_t code_bits(Grouped format) {
    return format == Grouped::q8 ? 8 : static_cast<std::size_t>(format) + 4;
}

/// How a group's scale is searched for; see encode_search.hpp.
struct Search {
    const double* importance;  ///< one for each lane of each logical group, zeros past the last column; or null
    const float* rounded;      ///< these less their group's power of two, in binary32
    const std::uint8_t* kind;  ///< a `Weights` for each group
    bool negative;             ///< whether negative scales compete
};
/// What a group's importance admits: nothing to search for, a first look in binary32, or binary64 only.
enum class Weights : std::uint8_t { none, ordinary, extreme };

/// Where grouped codes and scales go: words (a byte a code; `high` is unused), or row_split_k128_v1's planes, padding
/// included.
struct GroupedRows {
    Rows low, high, scales;
};

enum class RowScale : int { bfloat16, float16 };
constexpr int row_scales = 2;

struct RowScaledRows {
    Rows codes, scales;
};

/// Codes, and scales in natural order or in block_scale_k16_m128x4_v1's tiles of 128 rows.
struct Nvfp4Rows {
    Rows codes;
    std::uint8_t* scales;
    std::size_t scale_row;  ///< the first row's number among those of `scales`
    bool tiled;
};

/// All encode rows `first` to `end`, and return whether every value and scale fits the format; output is unfinished where
/// one does not.
struct EncodeKernels {
    using ToGroups = bool (*)(const Values&, const Search*, const GroupedRows&, std::size_t first, std::size_t end);
    using ToRows = bool (*)(const Values&, const RowScaledRows&, std::size_t first, std::size_t end);
    using ToNvfp4 = bool (*)(const Values&, float divisor, const Nvfp4Rows&, std::size_t first, std::size_t end);
    /// The word of the largest magnitude as binary32; above the infinity's where a value is NaN.
    using Largest = std::uint32_t (*)(const Values&, std::size_t first, std::size_t end);

    ToGroups grouped[grouped_formats];  ///< to words
    ToGroups packed[grouped_formats];   ///< to planes
    ToRows rows[row_scales];
    ToNvfp4 nvfp4;
    Largest largest;
};

}  // namespace quantform
