// What the encoders share: values of any source type as binary32, and the roundings on the way to codes.
#pragma once

#include "encode_set.hpp"
#include "outputs.hpp"

namespace quantform::QUANTFORM_SET {

// --- parts: the operations that vector types have no sign for -------------------------------------------------------

QF_INLINE FloatPart splat_part(float value) { return value - FloatPart{}; }
QF_INLINE WordPart splat_part(u32 value) { return value - WordPart{}; }

/// Of words below 2^31.
QF_INLINE WordPart larger(WordPart a, WordPart b) {
#if defined(__AVX512F__)
    return (WordPart)_mm512_maskz_max_epu32(0xFFFF, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (WordPart)_mm256_max_epu32((__m256i)a, (__m256i)b);
#else
    const WordPart above = (WordPart)((SignedPart)a > (SignedPart)b);
    return (a & above) | (b & ~above);
#endif
}

/// No operand is NaN in these two.
QF_INLINE FloatPart smaller(FloatPart a, FloatPart b) {
#if defined(__AVX512F__)
    return (FloatPart)_mm512_maskz_min_ps(0xFFFF, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (FloatPart)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (FloatPart)_mm_min_ps((__m128)a, (__m128)b);
#else
    const WordPart below = (WordPart)(a < b);
    return (FloatPart)(((WordPart)a & below) | ((WordPart)b & ~below));
#endif
}
QF_INLINE FloatPart larger(FloatPart a, FloatPart b) {
#if defined(__AVX512F__)
    return (FloatPart)_mm512_maskz_max_ps(0xFFFF, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (FloatPart)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (FloatPart)_mm_max_ps((__m128)a, (__m128)b);
#else
    return -smaller(-a, -b);
#endif
}

/// Added to a number below 2^22, it leaves the nearest integer in the last bits; ties go to the even one.
constexpr float integral_shift = 0x1.8p23F;

/// The nearest integers of numbers below 2^22, ties to even. Zeros may change their sign.
QF_INLINE FloatPart integral(FloatPart value) {
#if defined(__AVX512F__)
    return (FloatPart)_mm512_maskz_roundscale_ps(0xFFFF, (__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return (FloatPart)_mm256_round_ps((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return (value + integral_shift) - integral_shift;
#endif
}
QF_INLINE SignedPart integers(FloatPart value) {
#if defined(__AVX512F__)
    return (SignedPart)_mm512_maskz_cvtps_epi32(0xFFFF, (__m512)value);
#elif defined(__AVX2__)
    return (SignedPart)_mm256_cvtps_epi32((__m256)value);
#elif defined(__SSE2__)
    return (SignedPart)_mm_cvtps_epi32((__m128)value);
#else
    return (SignedPart)(value + integral_shift) - (SignedPart)splat_part(integral_shift);
#endif
}

/// Values that are not codes yet, within a grid's ends. To round first would change nothing: both ends are integers.
template <class Q>
QF_INLINE FloatPart clamped(FloatPart value) {
    constexpr float low = static_cast<float>(Q::qmin), high = static_cast<float>(Q::qmax);
    return smaller(larger(value, splat_part(low)), splat_part(high));
}

/// Sixteen integers from -128 to 127 as bytes.
QF_INLINE Bytes narrow(const WordLanes& words) {
#if defined(__AVX512F__)
    return (Bytes)_mm512_maskz_cvtepi32_epi8(0xFFFF, (__m512i)words.part[0]);
#elif defined(__AVX2__)
    const __m256i crossed = _mm256_packs_epi32((__m256i)words.part[0], (__m256i)words.part[1]);
    const __m128i packed = _mm_packs_epi16(_mm256_castsi256_si128(crossed), _mm256_extracti128_si256(crossed, 1));
    return (Bytes)_mm_shuffle_epi32(packed, 0xD8);
#elif defined(__SSE2__)
    const __m128i low = _mm_packs_epi32((__m128i)words.part[0], (__m128i)words.part[1]);
    const __m128i high = _mm_packs_epi32((__m128i)words.part[2], (__m128i)words.part[3]);
    return (Bytes)_mm_packs_epi16(low, high);
#else
    std::int32_t wide[16];
    std::memcpy(wide, words.part, sizeof wide);
    u8 narrowed[16];
    for (int lane = 0; lane < 16; ++lane) narrowed[lane] = static_cast<u8>(wide[lane]);
    return load<Bytes>(narrowed);
#endif
}

// --- sixteen lanes --------------------------------------------------------------------------------------------------

struct Words {
    WordPart part[parts];
};

QF_INLINE Floats floats_at(const u8* from) {
    Floats all;
    for (int i = 0; i < parts; ++i) std::memcpy(&all.part[i], from + 4 * i * part_lanes, sizeof(FloatPart));
    return all;
}
QF_INLINE Words magnitudes(Floats values) {
    Words words;
    for (int i = 0; i < parts; ++i) words.part[i] = (WordPart)values.part[i] & 0x7FFFFFFFU;
    return words;
}
QF_INLINE Words larger(Words a, Words b) {
    for (int i = 0; i < parts; ++i) a.part[i] = larger(a.part[i], b.part[i]);
    return a;
}

/// The largest of sixteen words below 2^31.
QF_INLINE u32 largest(Words words) {
    WordPart all = words.part[0];
    for (int i = 1; i < parts; ++i) all = larger(all, words.part[i]);
#if defined(__AVX512F__)
    const __m256i eight = _mm256_max_epu32(_mm512_maskz_extracti64x4_epi64(0xF, (__m512i)all, 0),
                                           _mm512_maskz_extracti64x4_epi64(0xF, (__m512i)all, 1));
#elif defined(__AVX2__)
    const __m256i eight = (__m256i)all;
#endif
#if defined(__AVX2__)
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xB1));
    return static_cast<u32>(_mm_cvtsi128_si32(four));
#else
    all = larger(all, __builtin_shufflevector(all, all, 2, 3, 0, 1));
    all = larger(all, __builtin_shufflevector(all, all, 1, 0, 3, 2));
    return all[0];
#endif
}

/// Sixteen binary16 words, widened exactly.
QF_INLINE Floats halves_at(const u8* from) {
    Floats all;
#if defined(__AVX512F__)
    all.part[0] = (FloatPart)_mm512_maskz_cvtph_ps(0xFFFF, load<__m256i>(from));
#elif defined(__F16C__)
    for (int i = 0; i < parts; ++i) all.part[i] = (FloatPart)_mm256_cvtph_ps(load<__m128i>(from + 2 * i * part_lanes));
#else
    for (int i = 0; i < parts; ++i) {
        typedef u16 Packed __attribute__((vector_size(2 * part_lanes)));
        const WordPart words = __builtin_convertvector(load<Packed>(from + 2 * i * part_lanes), WordPart);
        const WordPart magnitude = words & 0x7FFFU;
        const WordPart special = (WordPart)(magnitude >= 0x7C00U) & 0x7F800000U;
        const WordPart scaled = (WordPart)((FloatPart)(magnitude << 13) * 0x1p112F);  // see half()
        all.part[i] = (FloatPart)(scaled | special | (words & 0x8000U) << 16);
    }
#endif
    return all;
}
QF_INLINE Floats bfloats_at(const u8* from) {
    Floats all;
#if defined(__AVX512F__)
    const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xFFFF, load<__m256i>(from));
    all.part[0] = (FloatPart)((WordPart)wide << 16);
#elif defined(__AVX2__)
    for (int i = 0; i < parts; ++i) {
        all.part[i] = (FloatPart)((WordPart)_mm256_cvtepu16_epi32(load<__m128i>(from + 2 * i * part_lanes)) << 16);
    }
#else
    for (int i = 0; i < 2; ++i) {
        const Words16 words = load<Words16>(from + 16 * i);
        all.part[2 * i] = (FloatPart)interleave_low(Words16{}, words);
        all.part[2 * i + 1] = (FloatPart)interleave_high(Words16{}, words);
    }
#endif
    return all;
}

// --- source values --------------------------------------------------------------------------------------------------

/// Values that are worked on together: a part of any first-level cache, and whole groups of every format.
constexpr size_t stage_values = 1024;

struct Stage {
    alignas(64) u8 floats[4 * stage_values];
};

QF_INLINE const u8* row_at(const Values& values, size_t row) {
    return values.data + static_cast<std::ptrdiff_t>(row) * values.stride;
}

/// `count` values of a row from `first` on and zeros up to `padded`, a multiple of 16, as binary32: where they lie, or
/// widened to the stage. The caller's memory may change meanwhile, so that two reads of it may differ: what must not be
/// is `copied`.
static const u8* staged(const Values& values, const u8* row, size_t first, size_t count, size_t padded, Stage& stage,
                        bool copied = false) {
    const u8* const from = row + first * number_bytes(values.number);
    if (values.number == Number::float32) {
        if (count == padded && !copied) return from;
        std::memcpy(stage.floats, from, 4 * count);
    } else {
        const bool halves = values.number == Number::float16;
        size_t at = 0;
        if (halves) {
            for (; at + 16 <= count; at += 16) store((Float32*)stage.floats + at, halves_at(from + 2 * at));
        } else {
            for (; at + 16 <= count; at += 16) store((Float32*)stage.floats + at, bfloats_at(from + 2 * at));
        }
        if (at < count) {
            u8 last[32] = {};
            std::memcpy(last, from + 2 * at, 2 * (count - at));
            store((Float32*)stage.floats + at, halves ? halves_at(last) : bfloats_at(last));
        }
    }
    std::memset(stage.floats + 4 * count, 0, 4 * (padded - count));
    return stage.floats;
}

// --- small floating-point types -------------------------------------------------------------------------------------

/// The nearest value of a type of `bits` significant bits whose smallest normal number is 2^least: its word, ties to the
/// even one. Values are not negative and round to finite ones.
template <int bits, int least>
QF_INLINE WordPart small_words(FloatPart value) {
    constexpr u32 smallest = static_cast<u32>(127 + least) << 23, up = static_cast<u32>(24 - bits) << 23;
    // Twice the power of two at which binary32's last place is the type's: the sum rounds there.
    const WordPart exponent = larger((WordPart)value, splat_part(smallest)) & 0x7F800000U;
    const WordPart shift = exponent + up;
    const WordPart steps = (WordPart)(value + (FloatPart)shift) - shift;
    return steps + (exponent >> (24 - bits)) - (smallest >> (24 - bits));
}

/// E4M3FN words of values, clamped to the largest; as signed bytes.
QF_INLINE SignedPart e4m3fn(FloatPart value) {
    const FloatPart magnitude = smaller((FloatPart)((WordPart)value & 0x7FFFFFFFU), splat_part(448.0F));
    return ((SignedPart)value >> 31 & ~0x7F) | (SignedPart)small_words<4, -6>(magnitude);
}

/// E2M1 codes of values, clamped to the largest.
QF_INLINE SignedPart e2m1(FloatPart value) {
    const FloatPart magnitude = smaller((FloatPart)((WordPart)value & 0x7FFFFFFFU), splat_part(6.0F));
    return (SignedPart)(small_words<2, 0>(magnitude) | ((WordPart)value >> 28 & 8U));
}

// --- packed codes ---------------------------------------------------------------------------------------------------

/// The first, third, ... byte of both.
QF_INLINE Bytes even_bytes(Words16 a, Words16 b) {
#if defined(__SSE2__)
    return (Bytes)_mm_packus_epi16((__m128i)(a & 0xFF), (__m128i)(b & 0xFF));
#else
    return __builtin_shufflevector((Bytes)a, (Bytes)b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#endif
}

/// The low nibbles of 32 bytes, two a byte, the first in the low one.
QF_INLINE Bytes join_nibbles(Bytes a, Bytes b) {
    const Words16 first = (Words16)a, second = (Words16)b;
    return even_bytes((first & 0xF) | (first >> 4 & 0xF0), (second & 0xF) | (second >> 4 & 0xF0));
}

/// Bits 4 and 5 of 64 bytes, four pairs a byte, the first in the lowest bits.
QF_INLINE Bytes join_pairs(const Bytes* codes) {
    Words16 pairs[4];
    for (int i = 0; i < 4; ++i) {
        const Words16 two = (Words16)codes[i];
        pairs[i] = (two >> 4 & 3) | (two >> 10 & 0xC);  // the pairs of two codes
    }
    return join_nibbles(even_bytes(pairs[0], pairs[1]), even_bytes(pairs[2], pairs[3]));
}

/// Bit 4 of 16 bytes, the first in the lowest bit.
QF_INLINE u16 join_bits(Bytes codes) {
#if defined(__SSE2__)
    return static_cast<u16>(_mm_movemask_epi8((__m128i)((Words16)codes << 3)));
#else
    u16 bits = 0;
    for (int half = 0; half < 2; ++half) {
        const u64 ones = ((Words64)codes)[half] >> 4 & 0x0101010101010101U;
        bits |= static_cast<u16>((ones * 0x0102040810204080U >> 56) << 8 * half);
    }
    return bits;
#endif
}

/// A bit for each lane, the first in the lowest, that is set where a number is not above the limit.
QF_INLINE u16 at_most(Floats values, float limit) {
#if defined(__AVX512F__)
    return static_cast<u16>(_mm512_cmp_ps_mask((__m512)values.part[0], (__m512)splat_part(limit), _CMP_LE_OQ));
#else
    WordLanes lanes;
    for (int i = 0; i < parts; ++i) lanes.part[i] = (SignedPart)(values.part[i] <= splat_part(limit));
    return join_bits(narrow(lanes));
#endif
}

}  // namespace quantform::QUANTFORM_SET
