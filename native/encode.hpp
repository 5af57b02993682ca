// Encoding rows of values to words or to the planes of a payload, on any number of threads.
#pragma once

#include <cstddef>

#include "kernel_set.hpp"

namespace quantform {

/// `grouped_absmax`'s arithmetic, or `grouped_search`'s.
struct GroupedJob {
    Grouped format;
    bool packed;               ///< to row_split_k128_v1's planes instead of words
    bool search;               ///< for the scales, starting from those by magnitude
    bool negative;             ///< whether negative scales compete
    const double* importance;  ///< a finite weight for each lane of each logical group of a row, not negative; or null
};

// All encode `rows` rows, on one thread for each usable CPU where `threads` is 0, and return whether every value and
// scale fits the format. Results depend neither on the set nor on the threads.
bool encode_grouped(const KernelSet& set, const GroupedJob& job, const Values& values, std::size_t rows,
                    const GroupedRows& out, std::size_t threads);
bool encode_rows(const KernelSet& set, RowScale scale, const Values& values, std::size_t rows, const RowScaledRows& out,
                 std::size_t threads);
bool encode_nvfp4(const KernelSet& set, float divisor, const Values& values, std::size_t rows, const Nvfp4Rows& out,
                  std::size_t threads);

/// The largest magnitude; infinity or NaN where a value is.
float largest_magnitude(const KernelSet& set, const Values& values, std::size_t rows, std::size_t threads);

}  // namespace quantform
