#include "checks.hpp"

#include <algorithm>
#include <cstring>

namespace quantform {
namespace {

template <class Word>
std::size_t count_words(const std::uint8_t* first, std::size_t count, std::size_t stride, Word mask) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < count; ++i) {
        Word word;
        std::memcpy(&word, first + i * stride, sizeof word);
        found += (word & mask) == mask;
    }
    return found;
}

}  // namespace

bool bytes_at_most(const std::uint8_t* from, std::size_t bytes, std::uint8_t most) {
    constexpr std::size_t step = 4096;
    for (std::size_t first = 0; first < bytes; first += step) {
        const std::size_t end = std::min(bytes, first + step);
        std::uint8_t largest = 0;
        for (std::size_t i = first; i < end; ++i) largest = std::max(largest, from[i]);
        if (largest > most) return false;
    }
    return true;
}

bool rows_match(const std::uint8_t* first, std::ptrdiff_t stride, std::size_t rows, const std::uint8_t* mask,
                const std::uint8_t* expected, std::size_t bytes) {
    for (std::size_t row = 0; row < rows; ++row) {
        const std::uint8_t* at = first + static_cast<std::ptrdiff_t>(row) * stride;
        unsigned different = 0;
        for (std::size_t i = 0; i < bytes; ++i) different |= (at[i] ^ expected[i]) & mask[i];
        if (different != 0) return false;
    }
    return true;
}

std::size_t count_set(const std::uint8_t* blocks, std::size_t count, std::size_t block_bytes, const Field& field) {
    const std::uint8_t* first = blocks + field.offset;
    if (field.width == 1) return count_words(first, count, block_bytes, static_cast<std::uint8_t>(field.mask));
    if (field.width == 2) return count_words(first, count, block_bytes, static_cast<std::uint16_t>(field.mask));
    return count_words(first, count, block_bytes, field.mask);
}

}  // namespace quantform
