// Codes of the four-bit and eight-bit floating-point formats as binary32, exactly and with the signs of zeros.
#pragma once

#include "lanes.hpp"

namespace quantform::QUANTFORM_SET {

/// Sixteen words of two bytes, of binary16 numbers for example.
typedef u16 Halves __attribute__((vector_size(32)));

/// Bytes as words.
QF_INLINE Halves words_of(Bytes value) { return __builtin_convertvector(value, Halves); }

/// Binary16 numbers, widened exactly.
QF_INLINE Floats widen(Halves value) {
    Floats all;
#if defined(__AVX512F__)
    all.part[0] = (FloatPart)_mm512_maskz_cvtph_ps(0xFFFF, (__m256i)value);
#elif defined(__F16C__)
    all.part[0] = (FloatPart)_mm256_cvtph_ps(_mm256_castsi256_si128((__m256i)value));
    all.part[1] = (FloatPart)_mm256_cvtph_ps(_mm256_extracti128_si256((__m256i)value, 1));
#else
    Words16 half[2];
    std::memcpy(half, &value, sizeof half);
    const Words16 nothing{};
    for (int i = 0; i < parts; ++i) {
        const Words16 some = half[i / 2];
        const Words32 words = (Words32)(i % 2 == 0 ? interleave_low(some, nothing) : interleave_high(some, nothing));
        const Words32 magnitude = words & 0x7FFFU;
        // As for a single number: the product makes subnormals normal.
        const FloatPart scaled = (FloatPart)(magnitude << 13) * 0x1p112F;
        const Words32 special = (Words32)(magnitude >= 0x7C00U) & 0x7F800000U;
        all.part[i] = (FloatPart)((Words32)scaled | special | (words & 0x8000U) << 16);
    }
#endif
    return all;
}

/// E2M1 codes, in the low four bits of bytes, times 2^-14: exponent and fraction lie in binary16 as they are.
QF_INLINE Halves e2m1_as_halves(Bytes codes) {
    const Halves code = words_of(codes);
    return (code << 12 & 0x8000U) | (code << 9 & 0x0E00U);
}

/// E4M3FN codes times 2^-8; those without a value become NaN.
QF_INLINE Halves e4m3_as_halves(Bytes codes) {
    const Halves code = words_of(codes), magnitude = code << 7 & 0x3F80U;
    return (code << 8 & 0x8000U) | magnitude | ((Halves)(magnitude == 0x3F80U) & 0x7C00U);
}

struct E4M3Values {
    float value[256];
};
constexpr E4M3Values make_e4m3_values() {
    E4M3Values table{};
    for (int byte = 0; byte < 256; ++byte) {
        const int exponent = byte >> 3 & 15, mantissa = byte & 7;
        float value = exponent == 0 ? static_cast<float>(mantissa) : static_cast<float>(8 + mantissa);
        for (int power = exponent == 0 ? 1 : exponent; power > 1; --power) value *= 2.0F;
        value = (byte & 127) == 127 ? __builtin_nanf("") : value * 0x1p-9F;
        table.value[byte] = byte < 128 ? value : -value;
    }
    return table;
}
/// The values of all E4M3FN words; NaN has none.
constexpr E4M3Values e4m3_values = make_e4m3_values();

}  // namespace quantform::QUANTFORM_SET
