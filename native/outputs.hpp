// The four types of output elements: sixteen binary32 numbers are rounded once to one of them and stored.
#pragma once

#include <type_traits>

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

typedef u32 WordPart __attribute__((vector_size(4 * part_lanes)));
typedef std::int32_t SignedPart __attribute__((vector_size(4 * part_lanes)));

/// The words of a part's lanes, of which each holds one sign-extended.
struct WordLanes {
    SignedPart part[parts];
};
QF_INLINE void store_words(u8* to, const WordLanes& words) {
#if defined(__AVX512F__)
    const __m256i packed = _mm512_maskz_cvtepi32_epi16(0xFFFF, (__m512i)words.part[0]);
    std::memcpy(to, &packed, sizeof packed);
#elif defined(__AVX2__)
    const __m256i crossed = _mm256_packs_epi32((__m256i)words.part[0], (__m256i)words.part[1]);
    const __m256i packed = _mm256_permute4x64_epi64(crossed, 0xD8);
    std::memcpy(to, &packed, sizeof packed);
#elif defined(__SSE2__)
    for (int i = 0; i < parts; i += 2) {
        const __m128i packed = _mm_packs_epi32((__m128i)words.part[i], (__m128i)words.part[i + 1]);
        std::memcpy(to + 2 * i * part_lanes, &packed, sizeof packed);
    }
#else
    typedef u16 PackedPart __attribute__((vector_size(2 * part_lanes)));
    for (int i = 0; i < parts; ++i) {
        const PackedPart packed = __builtin_convertvector(words.part[i], PackedPart);
        std::memcpy(to + 2 * i * part_lanes, &packed, sizeof packed);
    }
#endif
}

/// binary16 by integer arithmetic: to nearest, ties to even; overflow becomes infinity, NaN stays NaN.
QF_INLINE SignedPart to_half(FloatPart value) {
    const WordPart bits = (WordPart)value, magnitude = bits & 0x7FFFFFFFU;
    // Below 2^-14 the sum with one half has its last place where binary16 has it, and rounds there.
    const WordPart subnormal = (WordPart)((FloatPart)magnitude + 0.5F) - 0x3F000000U;
    const WordPart normal = (magnitude + 0xFFFU + (magnitude >> 13 & 1U) - 0x38000000U) >> 13;
    const WordPart is_small = (WordPart)(magnitude < 0x38800000U), is_large = (WordPart)(magnitude >= 0x477FF000U);
    const WordPart special = 0x7C00U | (0x200U & (WordPart)(magnitude > 0x7F800000U));
    const WordPart finite = (subnormal & is_small) | (normal & ~is_small);
    const WordPart word = (special & is_large) | (finite & ~is_large) | (bits >> 16 & 0x8000U);
    return (SignedPart)(word << 16) >> 16;
}

/// bfloat16 likewise. Results of arithmetic are quiet NaN at most, whose upper half is one.
QF_INLINE SignedPart to_bfloat16(FloatPart value) {
    const WordPart bits = (WordPart)value, numbers = (WordPart)(value == value);
    return (SignedPart)(bits + (((bits >> 16 & 1U) + 0x7FFFU) & numbers)) >> 16;
}

QF_INLINE void store(Float32* to, Floats all) {
    for (int i = 0; i < parts; ++i) std::memcpy(to + i * part_lanes, &all.part[i], sizeof(FloatPart));
}

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
    WordLanes words;
    for (int i = 0; i < parts; ++i) words.part[i] = to_half(all.part[i]);
    store_words(to->byte, words);
#endif
}

QF_INLINE void store(BFloat16* to, Floats all) {
    WordLanes words;
    for (int i = 0; i < parts; ++i) words.part[i] = to_bfloat16(all.part[i]);
    store_words(to->byte, words);
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
    store(values, all);
    for (int lane = 0; lane < 16; ++lane) wide[lane] = static_cast<double>(values[lane]);
    std::memcpy(to, wide, sizeof wide);
}

// --- elements that go past the caches -------------------------------------------------------------------------------

/// An element of an output that is stored past the caches, and aligned to a cache line where a run of it begins.
template <class Out>
struct Past {
    Out element;
};
template <class Out>
struct PlainElement {
    using Type = Out;
};
template <class Out>
struct PlainElement<Past<Out>> {
    using Type = Out;
};
/// The element without regard to the caches.
template <class Out>
using Plain = typename PlainElement<Out>::Type;

template <size_t bytes>
QF_INLINE void store_past(u8* to, const u8* from) {
#if defined(__AVX512F__)
    if constexpr (bytes % 64 == 0) {
        for (size_t at = 0; at < bytes; at += 64) {
            _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
        }
        return;
    }
#endif
#if defined(__AVX2__)
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
template <class Out>
QF_INLINE void store(Past<Out>* to, Floats all) {
    Out elements[16];
    store(elements, all);
    store_past<sizeof elements>(reinterpret_cast<u8*>(to), reinterpret_cast<const u8*>(elements));
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

// --- four-bit codes under one scale ---------------------------------------------------------------------------------
//
// They have but sixteen values. AVX-512 computes and rounds those once, and then only permutes them; other sets compute
// the value of each code.

#if defined(__AVX512BW__) && defined(__AVX512VL__)
template <class Out>
struct CodeValues {
    Floats floats;
    __m256i words;  // in place of the floats where an output is a word
};
template <class Out>
QF_INLINE CodeValues<Out> code_values(Floats floats) {
    CodeValues<Out> values{floats, {}};
    if constexpr (sizeof(Out) == 2) {
        Plain<Out> words[16];
        store(words, floats);
        std::memcpy(&values.words, words, sizeof words);
    }
    return values;
}

QF_INLINE Bytes count_up() { return Bytes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

template <class Out>
QF_INLINE CodeValues<Out> scaled_codes(Bytes integers, float scale) {
    return code_values<Out>(splat(scale) * widen(integers));
}
template <class Out>
QF_INLINE CodeValues<Out> affine_codes(float scale, float minimum) {
    return code_values<Out>(splat(scale) * widen(count_up()) - splat(minimum));
}
template <class Out>
QF_INLINE CodeValues<Out> centred_codes(float scale, int centre) {
    return code_values<Out>(splat(scale) * widen(count_up() - splat(centre)));
}

/// The values of the codes in the nibbles of `q` from bit `at`, which is 0 or 4.
template <int at, class Out>
QF_INLINE void put_codes(Out* out, Bytes q, const CodeValues<Out>& values) {
    if constexpr (sizeof(Out) == 2) {
        const __m256i index = _mm256_srli_epi16(_mm256_cvtepu8_epi16((__m128i)q), at);
        const __m256i words = _mm256_permutexvar_epi16(index, values.words);
        if constexpr (std::is_same_v<Plain<Out>, Out>) {
            std::memcpy(out, &words, sizeof words);
        } else {
            _mm256_stream_si256(reinterpret_cast<__m256i*>(out), words);
        }
    } else {
        const __m512i codes = _mm512_maskz_cvtepu8_epi32(0xFFFF, (__m128i)q);
        const __m512i index = at == 0 ? codes : _mm512_maskz_srli_epi32(0xFFFF, codes, at);
        const __m512 floats = _mm512_maskz_permutexvar_ps(0xFFFF, index, (__m512)values.floats.part[0]);
        store(out, Floats{{(FloatPart)floats}});
    }
}
#else
struct ScaledCodes {
    Bytes integers;
    float scale;
};
struct AffineCodes {
    float scale;
    float minimum;
};
struct CentredCodes {
    float scale;
    int centre;
};
/// Codes that stand for integers, times a scale.
template <class Out>
QF_INLINE ScaledCodes scaled_codes(Bytes integers, float scale) {
    return {integers, scale};
}
/// Codes times a scale, less a minimum.
template <class Out>
QF_INLINE AffineCodes affine_codes(float scale, float minimum) {
    return {scale, minimum};
}
/// Codes less an integer, times a scale.
template <class Out>
QF_INLINE CentredCodes centred_codes(float scale, int centre) {
    return {scale, centre};
}

template <int at, class Out>
QF_INLINE void put_codes(Out* out, Bytes q, const CentredCodes& values) {
    put(out, field<4, at>(q) - splat(values.centre), values.scale);
}
template <int at, class Out>
QF_INLINE void put_codes(Out* out, Bytes q, const ScaledCodes& values) {
    put(out, lookup(values.integers, field<4, at>(q)), values.scale);
}
template <int at, class Out>
QF_INLINE void put_codes(Out* out, Bytes q, const AffineCodes& values) {
    put_less(out, field<4, at>(q), values.scale, values.minimum);
}
#endif

// --- past the caches ------------------------------------------------------------------------------------------------

/// Stores past the caches: `bytes` is a multiple of 64 and `to` is aligned to 64 bytes.
[[maybe_unused]] static void stream(const u8* from, size_t bytes, u8* to) {
    for (size_t at = 0; at < bytes; at += 64) store_past<64>(to + at, from + at);
}

/// Makes streamed stores visible before whatever tells others that they are done.
[[maybe_unused]] static void fence() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

}  // namespace quantform::QUANTFORM_SET
