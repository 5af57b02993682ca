// Sixteen lanes: the few vector operations that the kernels are written in, for whatever instruction set the
// translation unit is compiled for.
//
// This header and the families' are compiled once per instruction set, each time in a namespace of its own
// (QUANTFORM_SET), and include nothing with inline functions of external linkage: a linker that found one in an
// AVX-512 object could pick it for every processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if !defined(__GNUC__)
#error "The kernels use the vector types of GCC and Clang; without them quantform runs its NumPy path."
#endif
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "Blocks are little-endian and read as they are.");

#define QF_INLINE [[gnu::always_inline]] static inline

namespace quantform::QUANTFORM_SET {

using std::size_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

// --- sixteen bytes --------------------------------------------------------------------------------------------------

typedef u8 Bytes __attribute__((vector_size(16)));
typedef std::int8_t SignedBytes __attribute__((vector_size(16)));
typedef u16 Words16 __attribute__((vector_size(16)));
typedef u32 Words32 __attribute__((vector_size(16)));
typedef u64 Words64 __attribute__((vector_size(16)));

template <class T>
QF_INLINE T load(const u8* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

QF_INLINE Bytes bytes(u64 low, u64 high) { return (Bytes)Words64{low, high}; }
QF_INLINE Bytes bytes(u32 a, u32 b, u32 c, u32 d) { return (Bytes)Words32{a, b, c, d}; }
QF_INLINE Bytes splat(int value) { return Bytes{} + static_cast<u8>(value); }

// Bytewise shifts, which x86 does not have: whole words are shifted and the neighbour's bits cleared.
template <int n>
QF_INLINE Bytes right(Bytes value) {
    if constexpr (n == 0) return value;
    return (Bytes)((Words16)value >> n) & splat(0xFF >> n);
}
template <int n>
QF_INLINE Bytes left(Bytes value) {
    if constexpr (n == 0) return value;
    return (Bytes)((Words16)value << n) & splat(0xFF << n & 0xFF);
}

/// The `width` bits from bit `at` of each byte.
template <int width, int at>
QF_INLINE Bytes field(Bytes value) {
    if constexpr (width + at == 8) return right<at>(value);
    return (Bytes)((Words16)value >> at) & splat((1 << width) - 1);
}

/// Bit `at` of each byte, moved to bit `to`.
template <int at, int to>
QF_INLINE Bytes bit(Bytes value) {
    if constexpr (at >= to) return (Bytes)((Words16)value >> (at - to)) & splat(1 << to);
    return (Bytes)((Words16)value << (to - at)) & splat(1 << to);
}

QF_INLINE Bytes interleave_low(Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
QF_INLINE Bytes interleave_high(Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
QF_INLINE Words16 interleave_low(Words16 a, Words16 b) {
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
QF_INLINE Words16 interleave_high(Words16 a, Words16 b) {
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

/// The second, fourth, ... byte of both.
QF_INLINE Bytes odd_bytes(Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

/// `table[index]` for every lane; indices are 0 to 15.
QF_INLINE Bytes lookup(Bytes table, Bytes index) {
#if defined(__SSSE3__)
    return (Bytes)_mm_shuffle_epi8((__m128i)table, (__m128i)index);
#elif defined(__aarch64__)
    return (Bytes)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
#else
    u8 values[16], at[16];
    std::memcpy(values, &table, sizeof values);
    std::memcpy(at, &index, sizeof at);
    for (u8& each : at) each = values[each];
    return load<Bytes>(at);
#endif
}

/// All ones in the lanes whose bit is set, the lowest bit first.
QF_INLINE Bytes lanes_of(u16 bits) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return (Bytes)_mm_movm_epi8(bits);
#elif defined(__SSSE3__)
    const __m128i spread = _mm_shuffle_epi8(_mm_cvtsi32_si128(bits), (__m128i)bytes(u64{0}, 0x0101010101010101U));
    const Bytes weights = bytes(0x8040201008040201U, 0x8040201008040201U);
    return (Bytes)(((Bytes)spread & weights) == weights);
#else
    const u64 each = 0x0101010101010101U;
    const u64 weight = 0x8040201008040201U;
    return (Bytes)((bytes((bits & 0xFFU) * each, static_cast<u64>(bits >> 8) * each) & bytes(weight, weight)) != 0);
#endif
}

/// `value` negated in the lanes whose bit is set; -128 stays.
QF_INLINE Bytes negate(Bytes value, u16 bits) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return (Bytes)_mm_mask_sub_epi8((__m128i)value, bits, __m128i{}, (__m128i)value);
#else
    const Bytes lanes = lanes_of(bits);
    return (value ^ lanes) - lanes;
#endif
}

// --- sixteen binary32 numbers ---------------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int part_lanes = 16;
#elif defined(__AVX2__)
constexpr int part_lanes = 8;
#else
constexpr int part_lanes = 4;
#endif
constexpr int parts = 16 / part_lanes;

typedef float FloatPart __attribute__((vector_size(4 * part_lanes)));

struct Floats {
    FloatPart part[parts];
};

QF_INLINE Floats splat(float value) {
    Floats all;
    // Less nothing, not plus: a sum with zero would lose the sign of a negative zero.
    for (FloatPart& part : all.part) part = value - FloatPart{};
    return all;
}
QF_INLINE Floats operator*(Floats a, Floats b) {
    for (int i = 0; i < parts; ++i) a.part[i] = a.part[i] * b.part[i];
    return a;
}
QF_INLINE Floats operator+(Floats a, Floats b) {
    for (int i = 0; i < parts; ++i) a.part[i] = a.part[i] + b.part[i];
    return a;
}
QF_INLINE Floats operator-(Floats a, Floats b) {
    for (int i = 0; i < parts; ++i) a.part[i] = a.part[i] - b.part[i];
    return a;
}
QF_INLINE Floats operator/(Floats a, Floats b) {
    for (int i = 0; i < parts; ++i) a.part[i] = a.part[i] / b.part[i];
    return a;
}
QF_INLINE Floats load_floats(const float* from) {
    Floats all;
    for (int i = 0; i < parts; ++i) std::memcpy(&all.part[i], from + i * part_lanes, sizeof(FloatPart));
    return all;
}
// Part by part: GCC copies the whole through memory in smaller words.
QF_INLINE void store(float* to, Floats all) {
    for (int i = 0; i < parts; ++i) std::memcpy(to + i * part_lanes, &all.part[i], sizeof(FloatPart));
}

/// Signed bytes as binary32.
QF_INLINE Floats widen(Bytes value) {
    Floats all;
#if defined(__AVX512F__)
    // The forms with a mask: GCC 12 warns of an undefined operand inside the others, and emits the same.
    all.part[0] = (FloatPart)_mm512_maskz_cvtepi32_ps(0xFFFF, _mm512_maskz_cvtepi8_epi32(0xFFFF, (__m128i)value));
#elif defined(__AVX2__)
    const __m128i low = (__m128i)value;
    all.part[0] = (FloatPart)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low));
    all.part[1] = (FloatPart)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(low, low)));
#else
    typedef std::int32_t Signed32 __attribute__((vector_size(16)));
    const Words16 low = (Words16)interleave_low(value, value), high = (Words16)interleave_high(value, value);
    const Words16 quarters[4] = {interleave_low(low, low), interleave_high(low, low), interleave_low(high, high),
                                 interleave_high(high, high)};
    for (int i = 0; i < 4; ++i) all.part[i] = __builtin_convertvector((Signed32)quarters[i] >> 24, FloatPart);
#endif
    return all;
}

// --- single numbers -------------------------------------------------------------------------------------------------

QF_INLINE float float_of(u32 bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

/// A binary16 word, widened exactly.
QF_INLINE float half(u16 word) {
#if defined(__F16C__)
    return _cvtsh_ss(word);
#else
    const u32 magnitude = word & 0x7FFFU, sign = static_cast<u32>(word & 0x8000U) << 16;
    const u32 special = magnitude >= 0x7C00 ? 0x7F800000U : 0;
    // The fields fit a binary32 number that is 2^112 too small; subnormals become normal by the product.
    const float scaled = float_of(magnitude << 13) * 0x1p112F;
    u32 bits;
    std::memcpy(&bits, &scaled, sizeof bits);
    return float_of(bits | special | sign);
#endif
}
QF_INLINE float half(const u8* from) { return half(load<u16>(from)); }

/// Sixteen products of a block's scale and signed local scales.
struct Scales {
    alignas(64) float value[16];
};
QF_INLINE Scales scales_of(Floats d, Bytes local) {
    Scales scales;
    store(scales.value, d * widen(local));
    return scales;
}

// --- loops over constants --------------------------------------------------------------------------------------------

template <int value_>
struct Constant {
    static constexpr int value = value_;
};

/// `step(constant)` for the constants 0 to count - 1, unrolled.
template <int count, int at = 0, class Step>
QF_INLINE void unrolled(Step step) {
    if constexpr (at < count) {
        step(Constant<at>{});
        unrolled<count, at + 1>(step);
    }
}

}  // namespace quantform::QUANTFORM_SET
