// Grouped integers: signed codes under one binary16 scale, of row_split_k128_v1's planes or one code a byte.
#pragma once

#include "kernel_set.hpp"
#include "outputs.hpp"

namespace quantform::QUANTFORM_SET {

// --- codes of one group ---------------------------------------------------------------------------------------------

/// Sixteen lanes to the bytes of both nibbles, even lanes from the low ones; the other bits of a byte are anything.
QF_INLINE Bytes low_lanes(Bytes q) { return interleave_low(q, (Bytes)((Words16)q >> 4)); }
QF_INLINE Bytes high_lanes(Bytes q) { return interleave_high(q, (Bytes)((Words16)q >> 4)); }

/// Codes of two bits, four a byte, as 64 lanes of bits `to` and `to + 1`.
struct Lanes64 {
    Bytes part[4];
};
template <int to>
QF_INLINE Bytes two_bits(Bytes value, int at) {
    const Words16 words = (Words16)value;
    return (Bytes)(at >= to ? words >> (at - to) : words << (to - at)) & splat(3 << to);
}
template <int to>
QF_INLINE Lanes64 lanes_of_two_bits(const u8* from) {
    const Bytes q = load<Bytes>(from);
    const Bytes first = two_bits<to>(q, 0), second = two_bits<to>(q, 2), third = two_bits<to>(q, 4);
    const Bytes fourth = two_bits<to>(q, 6);
    const Words16 a = (Words16)interleave_low(first, second), b = (Words16)interleave_low(third, fourth);
    const Words16 c = (Words16)interleave_high(first, second), e = (Words16)interleave_high(third, fourth);
    return {{(Bytes)interleave_low(a, b), (Bytes)interleave_high(a, b), (Bytes)interleave_low(c, e),
             (Bytes)interleave_high(c, e)}};
}

/// Two's complement of words below twice `sign`.
QF_INLINE Bytes extended(Bytes words, int sign) { return (words ^ splat(sign)) - splat(sign); }

QF_INLINE bool all_zero(const u8* from, size_t bytes) {
    u8 any = 0;
    for (size_t i = 0; i < bytes; ++i) any = static_cast<u8>(any | from[i]);
    return any == 0;
}

/// What most formats say: every word of the width is a code, and zero is the word 0.
struct AnyCode {
    static constexpr bool any_finite_scale = false;
    QF_INLINE bool legal(const u8*, size_t) { return true; }
};

struct Q2Codes : AnyCode {
    static constexpr const char* name = "q2_g64_fp16";
    static constexpr int group = 64, code_bytes = 16, high_bytes = 0;
    static constexpr bool any_finite_scale = true;
    template <class Out>
    QF_INLINE void decode(const u8* codes, const u8*, float scale, Out* out) {
        const Lanes64 lanes = lanes_of_two_bits<0>(codes);
        for (int i = 0; i < 4; ++i) put(out + 16 * i, lanes.part[i] - splat(1), scale);
    }
};

struct T2Codes : AnyCode {
    static constexpr const char* name = "t2_g128_fp16";
    static constexpr int group = 128, code_bytes = 32, high_bytes = 0;
    template <class Out>
    QF_INLINE void decode(const u8* codes, const u8*, float scale, Out* out) {
        for (int half = 0; half < 2; ++half) {
            const Lanes64 lanes = lanes_of_two_bits<0>(codes + 16 * half);
            for (int i = 0; i < 4; ++i) put(out + 64 * half + 16 * i, extended(lanes.part[i], 2), scale);
        }
    }
    /// -2 is no code.
    QF_INLINE bool legal(const u8* codes, size_t bytes) {
        u8 any = 0;
        for (size_t i = 0; i < bytes; ++i) any = static_cast<u8>(any | (codes[i] >> 1 & ~codes[i]));
        return (any & 0x55) == 0;
    }
};

struct Q4Codes : AnyCode {
    static constexpr const char* name = "q4_g64_fp16";
    static constexpr int group = 64, code_bytes = 32, high_bytes = 0;
    template <class Out>
    QF_INLINE void decode(const u8* codes, const u8*, float scale, Out* out) {
        const Bytes integers = (Bytes)SignedBytes{0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
        const auto values_of = scaled_codes<Out>(integers, scale);
        for (int half = 0; half < 2; ++half) {
            const Bytes q = load<Bytes>(codes + 16 * half);
            put_codes<0>(out + 32 * half, low_lanes(q), values_of);
            put_codes<0>(out + 32 * half + 16, high_lanes(q), values_of);
        }
    }
};

struct Q5Codes : AnyCode {
    static constexpr const char* name = "q5_g64_fp16";
    static constexpr int group = 64, code_bytes = 32, high_bytes = 8;
    template <class Out>
    QF_INLINE void decode(const u8* codes, const u8* high, float scale, Out* out) {
        for (int i = 0; i < 4; ++i) {
            const u64 q = load<u64>(codes + 8 * i);
            const Bytes low = interleave_low(bytes(q, 0), bytes(q >> 4, 0)) & splat(15);
            // The fifth bit is the sign: its lanes' ones are then a sign extension.
            put(out + 16 * i, low | (lanes_of(load<u16>(high + 2 * i)) & splat(0xF0)), scale);
        }
    }
};

struct Q6Codes : AnyCode {
    static constexpr const char* name = "q6_g64_fp16";
    static constexpr int group = 64, code_bytes = 32, high_bytes = 16;
    template <class Out>
    QF_INLINE void decode(const u8* codes, const u8* high, float scale, Out* out) {
        const Lanes64 top = lanes_of_two_bits<4>(high);
        for (int i = 0; i < 4; ++i) {
            const u64 q = load<u64>(codes + 8 * i);
            const Bytes low = interleave_low(bytes(q, 0), bytes(q >> 4, 0)) & splat(15);
            put(out + 16 * i, extended(low | top.part[i], 32), scale);
        }
    }
};

struct Q8Codes : AnyCode {
    static constexpr const char* name = "q8_g32_fp16";
    static constexpr int group = 32, code_bytes = 32, high_bytes = 0;
    template <class Out>
    QF_INLINE void decode(const u8* codes, const u8*, float scale, Out* out) {
        put(out, load<Bytes>(codes), scale);
        put(out + 16, load<Bytes>(codes + 16), scale);
    }
    /// -128 is no code.
    QF_INLINE bool legal(const u8* codes, size_t bytes) {
        u8 any = 0;
        for (size_t i = 0; i < bytes; ++i) any = static_cast<u8>(any | (codes[i] == 0x80));
        return any == 0;
    }
};

/// One signed code a byte, as words have them.
template <class Stored, int qmin, int qmax>
struct OneByte {
    static constexpr int group = Stored::group, code_bytes = group, high_bytes = 0;
    static constexpr bool any_finite_scale = Stored::any_finite_scale;
    template <class Out>
    QF_INLINE void decode(const u8* codes, const u8*, float scale, Out* out) {
        for (int i = 0; i < group; i += 16) put(out + i, load<Bytes>(codes + i), scale);
    }
    QF_INLINE bool legal(const u8* codes, size_t bytes) {
        u8 any = 0;
        for (size_t i = 0; i < bytes; ++i) {
            any = static_cast<u8>(any | (static_cast<u8>(codes[i] - qmin) > static_cast<u8>(qmax - qmin)));
        }
        return any == 0;
    }
};
struct Q2Bytes : OneByte<Q2Codes, -1, 2> {
    static constexpr const char* name = "q2_g64_fp16 bytes";
};
struct Q4Bytes : OneByte<Q4Codes, -8, 7> {
    static constexpr const char* name = "q4_g64_fp16 bytes";
};
struct Q5Bytes : OneByte<Q5Codes, -16, 15> {
    static constexpr const char* name = "q5_g64_fp16 bytes";
};
struct Q6Bytes : OneByte<Q6Codes, -32, 31> {
    static constexpr const char* name = "q6_g64_fp16 bytes";
};
struct Q8Bytes : OneByte<Q8Codes, -127, 127> {
    static constexpr const char* name = "q8_g32_fp16 bytes";
};
struct T2Bytes : OneByte<T2Codes, -1, 1> {
    static constexpr const char* name = "t2_g128_fp16 bytes";
};

// --- units ----------------------------------------------------------------------------------------------------------

/// `count` groups side by side: 128 values in the layout's planes, one group where a code is a byte.
template <class Codes, int count>
struct GroupUnit {
    static constexpr const char* name = Codes::name;
    static constexpr int values = count * Codes::group, code_bytes = count * Codes::code_bytes;
    static constexpr int high_bytes = count * Codes::high_bytes, scales = count, scale_bytes = 2 * count;
    static constexpr bool one_scale = false, subnormal = false;  // products are multiples of 2^-24

    template <class Out>
    QF_INLINE void decode(const u8* codes, const u8* high, const u8* scales, float, Out* out) {
        for (int i = 0; i < count; ++i) {
            Codes::decode(codes + i * Codes::code_bytes, high + i * Codes::high_bytes, half(scales + 2 * i),
                          out + i * Codes::group);
        }
    }

    static bool legal(const RowWords& words, size_t units) {
        const size_t groups = units * count;
        u16 bad = 0, zero = 0;
        for (size_t i = 0; i < groups; ++i) {
            const u16 scale = load<u16>(words.scales + 2 * i);
            bad = static_cast<u16>(bad | ((scale & 0x7C00) == 0x7C00));
            if constexpr (!Codes::any_finite_scale) {
                bad = static_cast<u16>(bad | (scale == 0x8000));
                zero = static_cast<u16>(zero | (scale == 0));
            }
        }
        if (bad != 0 || !Codes::legal(words.codes, groups * Codes::code_bytes)) return false;
        for (size_t i = 0; zero != 0 && i < groups; ++i) {
            if (load<u16>(words.scales + 2 * i) != 0) continue;
            if (!all_zero(words.codes + i * Codes::code_bytes, Codes::code_bytes)) return false;
            if (!all_zero(words.high + i * Codes::high_bytes, Codes::high_bytes)) return false;
        }
        return true;
    }
};
template <class Codes>
using Split = GroupUnit<Codes, 128 / Codes::group>;
template <class Codes>
using Whole = GroupUnit<Codes, 1>;

}  // namespace quantform::QUANTFORM_SET
