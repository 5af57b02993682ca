// Rules that plain loops check at the speed of memory, on every processor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quantform {

/// Whether no byte is above `most`.
bool bytes_at_most(const std::uint8_t* from, std::size_t bytes, std::uint8_t most);

/// Whether the bits of `mask` are those of `expected` in each of `rows` stretches of `bytes`.
bool rows_match(const std::uint8_t* first, std::ptrdiff_t stride, std::size_t rows, const std::uint8_t* mask,
                const std::uint8_t* expected, std::size_t bytes);

/// A little-endian word of every block: where its bits of `mask` are all set, it is not finite.
struct Field {
    std::size_t offset;
    std::size_t width;  ///< 1, 2 or 4 bytes
    std::uint32_t mask;
};

/// How many of the field's words have all bits of the mask.
std::size_t count_set(const std::uint8_t* blocks, std::size_t count, std::size_t block_bytes, const Field& field);

}  // namespace quantform
