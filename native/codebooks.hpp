// The grids of the i-quants, a row an integer: written by make_codebooks.py from the package's data file.
#pragma once

#include <cstdint>

namespace quantform::codebooks {

extern const std::uint64_t iq2xxs_grid[256];
extern const std::uint64_t iq2xs_grid[512];
extern const std::uint64_t iq2s_grid[1024];
extern const std::uint32_t iq3xxs_grid[256];
extern const std::uint32_t iq3s_grid[512];
extern const std::uint64_t iq1s_grid[2048];

}  // namespace quantform::codebooks
