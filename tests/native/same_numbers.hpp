// When decoded numbers are the same, for the kernels' tests.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernel_set.hpp"

namespace quantform {

template <class T>
T load(const std::uint8_t* from, std::size_t at) {
    T value;
    std::memcpy(&value, from + at * sizeof value, sizeof value);
    return value;
}

inline bool is_nan(Output output, const std::uint8_t* from, std::size_t at) {
    switch (output) {
        case Output::float16: return (load<std::uint16_t>(from, at) & 0x7FFF) > 0x7C00;
        case Output::bfloat16: return (load<std::uint16_t>(from, at) & 0x7FFF) > 0x7F80;
        case Output::float64: return std::isnan(load<double>(from, at));
        default: return std::isnan(load<float>(from, at));
    }
}

/// Equal in every bit, NaN payloads aside.
inline bool same(Output output, std::size_t values, const std::uint8_t* a, const std::uint8_t* b) {
    const std::size_t width = output_bytes(output);
    for (std::size_t at = 0; at < values; ++at) {
        if (std::memcmp(a + at * width, b + at * width, width) == 0) continue;
        if (!is_nan(output, a, at) || !is_nan(output, b, at)) return false;
    }
    return true;
}

}  // namespace quantform
