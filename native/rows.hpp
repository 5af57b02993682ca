// Decoding and checking rows whose words lie in one plane or in several: any rows, in any order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel_set.hpp"
#include "stage.hpp"

namespace quantform {

/// One part of every row: codes, further bits of codes, or scales.
struct RowPlane {
    const std::uint8_t* first;  ///< of row 0; null where a format has no such part
    std::ptrdiff_t stride;      ///< bytes from a row's part to the next row's
    std::size_t width;          ///< bytes of a row that may be read
};

/// Where the words of a matrix lie, and which of its rows are meant.
struct StoredRows {
    const RowKernel* kernel;     ///< null where rows are packed blocks
    const PackedKernel* packed;  ///< null where they are not
    std::size_t columns;
    RowPlane codes;
    RowPlane high;
    RowPlane scales;             ///< where `tiled`, of a tile of 128 rows instead of a row
    bool tiled;                  ///< scales as block_scale_k16_m128x4_v1 has them
    const float* divisors;       ///< null where a format has none
    std::size_t divisor_rows;    ///< how many rows share one
    const std::int64_t* chosen;  ///< row numbers, or null for consecutive rows
    std::size_t first;           ///< the first of consecutive rows
    std::size_t count;
};

/// Bytes that a row needs in each part, the last unit of a row cut off where the row ends.
struct RowBytes {
    std::size_t codes, high, scales;
};
RowBytes row_bytes(const StoredRows& rows);

/// Decodes the rows to `count * columns` numbers at `out`, which needs no alignment and does not overlap the words. On
/// one thread for each usable CPU where `threads` is 0. The result depends neither on the set nor on the threads nor on
/// the stores.
void decode(const KernelSet& set, const StoredRows& rows, Output output, std::uint8_t* out, Stores stores, std::size_t threads);

/// Whether every word of the rows is legal in its format. False may also mean that padding is not canonical.
bool legal(const StoredRows& rows, std::size_t threads);

}  // namespace quantform
