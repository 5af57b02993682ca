// The four types of output elements: sixteen binary32 numbers are rounded once to one of them and stored.
#pragma once

#include "lanes.hpp"

namespace quantform::QUANTFORM_SET {

// Elements are bytes to the compiler: outputs have any alignment.
struct Float32 {
    u8 byte[4];
};
struct Float16 {
    u8 byte[2];
};
struct BFloat16 {
    u8 byte[2];
};
/// bfloat16 where no value is a subnormal binary32 number, which the processor's own conversion takes for zero.
struct NormalBFloat16 {
    u8 byte[2];
};
struct Float64 {
    u8 byte[8];
};

QF_INLINE u32 bits_of(float value) {
    u32 bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

/// To nearest, ties to even; overflow becomes infinity, subnormals round like any other, NaN stays NaN.
QF_INLINE u16 to_half(float value) {
    const u32 bits = bits_of(value), magnitude = bits & 0x7FFFFFFFU;
    // Below 2^-14 the sum with one half has its last place where binary16 has it, and rounds there.
    const u32 subnormal = bits_of(float_of(magnitude) + 0.5F) - 0x3F000000U;
    const u32 normal = (magnitude + 0xFFFU + (magnitude >> 13 & 1U) - 0x38000000U) >> 13;
    const u32 finite = magnitude < 0x38800000U ? subnormal : normal;
    const u32 special = magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U;
    return static_cast<u16>((magnitude >= 0x477FF000U ? special : finite) | (bits >> 16 & 0x8000U));
}

QF_INLINE void store(Float32* to, Floats all) { std::memcpy(to, &all, sizeof all); }

QF_INLINE void store(Float16* to, Floats all) {
#if defined(__AVX512F__)
    const __m256i words = _mm512_maskz_cvtps_ph(0xFFFF, (__m512)all.part[0], _MM_FROUND_TO_NEAREST_INT);
    std::memcpy(to, &words, sizeof words);
#elif defined(__F16C__)
    for (int i = 0; i < parts; ++i) {
        const __m128i words = _mm256_cvtps_ph((__m256)all.part[i], _MM_FROUND_TO_NEAREST_INT);
        std::memcpy(to + i * part_lanes, &words, sizeof words);
    }
#else
    float values[16];
    u16 words[16];
    std::memcpy(values, &all, sizeof all);
    for (int lane = 0; lane < 16; ++lane) words[lane] = to_half(values[lane]);
    std::memcpy(to, words, sizeof words);
#endif
}

typedef u32 WordPart __attribute__((vector_size(4 * part_lanes)));
typedef std::int32_t SignedPart __attribute__((vector_size(4 * part_lanes)));

/// binary32 rounded to its upper 16 bits, in place and sign-extended from there. NaN stays NaN.
QF_INLINE SignedPart rounded_to_upper(FloatPart value) {
    const WordPart bits = (WordPart)value, numbers = (WordPart)(value == value);
    const WordPart rounded = bits + 0x7FFFU + (bits >> 16 & 1U);
    return (SignedPart)((rounded & numbers) | (0x7FC00000U & ~numbers)) >> 16;
}

QF_INLINE void store(BFloat16* to, Floats all) {
#if defined(__AVX512F__)
    const __m256i words = _mm512_maskz_cvtepi32_epi16(0xFFFF, (__m512i)rounded_to_upper(all.part[0]));
    std::memcpy(to, &words, sizeof words);
#elif defined(__AVX2__)
    const __m256i crossed =
        _mm256_packs_epi32((__m256i)rounded_to_upper(all.part[0]), (__m256i)rounded_to_upper(all.part[1]));
    const __m256i words = _mm256_permute4x64_epi64(crossed, 0xD8);
    std::memcpy(to, &words, sizeof words);
#elif defined(__SSE2__)
    for (int i = 0; i < parts; i += 2) {
        const __m128i words =
            _mm_packs_epi32((__m128i)rounded_to_upper(all.part[i]), (__m128i)rounded_to_upper(all.part[i + 1]));
        std::memcpy(to + i * part_lanes, &words, sizeof words);
    }
#else
    u16 words[16];
    for (int i = 0; i < parts; ++i) {
        const SignedPart upper = rounded_to_upper(all.part[i]);
        for (int lane = 0; lane < part_lanes; ++lane) words[i * part_lanes + lane] = static_cast<u16>(upper[lane]);
    }
    std::memcpy(to, words, sizeof words);
#endif
}

QF_INLINE void store(NormalBFloat16* to, Floats all) {
#if defined(__AVX512BF16__)
    const __m256bh words = _mm512_cvtneps_pbh((__m512)all.part[0]);
    std::memcpy(to, &words, sizeof words);
#else
    store(reinterpret_cast<BFloat16*>(to), all);
#endif
}

QF_INLINE void store(Float64* to, Floats all) {
    float values[16];
    double wide[16];
    std::memcpy(values, &all, sizeof all);
    for (int lane = 0; lane < 16; ++lane) wide[lane] = static_cast<double>(values[lane]);
    std::memcpy(to, wide, sizeof wide);
}

// --- what most kernels end with -------------------------------------------------------------------------------------

/// Sixteen signed codes times a scale.
template <class Out>
QF_INLINE void put(Out* out, Bytes codes, float scale) {
    store(out, splat(scale) * widen(codes));
}
/// The same less a minimum: two roundings.
template <class Out>
QF_INLINE void put_less(Out* out, Bytes codes, float scale, float minimum) {
    store(out, splat(scale) * widen(codes) - splat(minimum));
}
/// The same plus an offset.
template <class Out>
QF_INLINE void put_plus(Out* out, Bytes codes, float scale, float offset) {
    store(out, splat(scale) * widen(codes) + splat(offset));
}

// --- past the caches ------------------------------------------------------------------------------------------------

/// Stores past the caches: `bytes` is a multiple of 64 and `to` is aligned to 64 bytes.
static void stream(const u8* from, size_t bytes, u8* to) {
#if defined(__AVX512F__)
    for (size_t at = 0; at < bytes; at += 64) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
    }
#elif defined(__AVX2__)
    for (size_t at = 0; at < bytes; at += 32) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), load<__m256i>(from + at));
    }
#elif defined(__SSE2__)
    for (size_t at = 0; at < bytes; at += 16) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), load<__m128i>(from + at));
    }
#else
    std::memcpy(to, from, bytes);
#endif
}

/// Makes streamed stores visible before whatever tells others that they are done.
static void fence() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

}  // namespace quantform::QUANTFORM_SET
