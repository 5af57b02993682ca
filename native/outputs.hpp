// From binary32 in the first-level cache to the output: one rounding to its type, and stores past the caches.
#pragma once

#include "lanes.hpp"

namespace quantform::QUANTFORM_SET {

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

QF_INLINE u16 to_bfloat16(float value) {
    const u32 bits = bits_of(value);
    const u32 rounded = (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16;
    return static_cast<u16>((bits & 0x7FFFFFFFU) > 0x7F800000U ? (bits >> 16 | 0x40U) : rounded);
}

// `count` is a multiple of 16 in all of these, and `to` has any alignment.

static void store_float32(const float* from, size_t count, u8* to) { std::memcpy(to, from, 4 * count); }

static void store_float16(const float* from, size_t count, u8* to) {
    for (size_t at = 0; at < count; at += 16) {
#if defined(__AVX512F__)
        const __m256i words = _mm512_maskz_cvtps_ph(0xFFFF, _mm512_loadu_ps(from + at), _MM_FROUND_TO_NEAREST_INT);
        std::memcpy(to + 2 * at, &words, sizeof words);
#elif defined(__F16C__)
        for (size_t part = 0; part < 16; part += 8) {
            const __m128i words = _mm256_cvtps_ph(_mm256_loadu_ps(from + at + part), _MM_FROUND_TO_NEAREST_INT);
            std::memcpy(to + 2 * (at + part), &words, sizeof words);
        }
#else
        u16 words[16];
        for (size_t lane = 0; lane < 16; ++lane) words[lane] = to_half(from[at + lane]);
        std::memcpy(to + 2 * at, words, sizeof words);
#endif
    }
}

static void store_bfloat16(const float* from, size_t count, u8* to) {
    for (size_t at = 0; at < count; at += 16) {
        u16 words[16];
        for (size_t lane = 0; lane < 16; ++lane) words[lane] = to_bfloat16(from[at + lane]);
        std::memcpy(to + 2 * at, words, sizeof words);
    }
}

static void store_float64(const float* from, size_t count, u8* to) {
    for (size_t at = 0; at < count; at += 16) {
        double wide[16];
        for (size_t lane = 0; lane < 16; ++lane) wide[lane] = static_cast<double>(from[at + lane]);
        std::memcpy(to + 8 * at, wide, sizeof wide);
    }
}

/// Stores past the caches: `bytes` is a multiple of 64 and `to` is aligned to 64 bytes.
static void stream(const u8* from, size_t bytes, u8* to) {
#if defined(__AVX512F__)
    for (size_t at = 0; at < bytes; at += 64) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
    }
#elif defined(__AVX2__)
    for (size_t at = 0; at < bytes; at += 32) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at)));
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
