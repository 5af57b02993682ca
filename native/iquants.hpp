// The grid formats IQ2, IQ3 and IQ1: lanes of eight values that are rows of a codebook.
//
// A row is one load of 64 bits (32 in IQ3). Signs are put on the codes before the scale: the product's sign is the
// same, whatever its rounding.
#pragma once

#include "codebooks.hpp"
#include "outputs.hpp"

namespace quantform::QUANTFORM_SET {

/// Row numbers, signs of the rows and scales of a block, unpacked together before the rows are read one by one.
template <int rows, int signs>
struct Unpacked {
    Scales scale;
    alignas(16) u16 row[rows];
    alignas(16) u8 sign[signs];
};

/// Seven signs in each byte, and an eighth that makes the count of ones even.
QF_INLINE Bytes with_parity(Bytes signs) {
    const Bytes fours = signs ^ right<4>(signs), pairs = fours ^ right<2>(fours);
    return signs | left<7>(pairs ^ right<1>(pairs));
}

template <class T, class Vector>
QF_INLINE void keep(T* to, Vector value) {
    std::memcpy(to, &value, sizeof value);
}

/// Sixteen row numbers of 8 low bits and what is above them.
QF_INLINE void keep_rows(u16* to, Bytes low, Bytes high) {
    keep(to, interleave_low(low, high));
    keep(to + 8, interleave_high(low, high));
}

/// The two nibbles of each of eight bytes, in order.
QF_INLINE Bytes nibbles(const u8* from) {
    const Bytes packed = bytes(load<u64>(from), u64{0});
    return interleave_low(field<4, 0>(packed), field<4, 4>(packed));
}

/// `d (2 t + 1)`, which is exact: all of this family's scales are that, or an eighth or a fourth of it.
QF_INLINE Scales odd_scales(float d, Bytes local) { return scales_of(splat(d), local + local + splat(1)); }

QF_INLINE u16 two_signs(const u8* signs) { return load<u16>(signs); }

struct IQ2_XS {
    static constexpr const char* identifier = "gguf:iq2_xs";
    static constexpr int ggml_type = 17, values = 256, bytes = 74;
    using Prepared = Unpacked<32, 32>;
    QF_INLINE Prepared prepare(const u8* in) {
        Prepared block;
        block.scale = odd_scales(half(in) * 0.125F, nibbles(in + 66));
        for (int i = 0; i < 2; ++i) {  // words of nine bits of row and seven of signs
            const Words16 first = load<Words16>(in + 2 + 32 * i), second = load<Words16>(in + 18 + 32 * i);
            keep(block.row + 16 * i, first & 511);
            keep(block.row + 16 * i + 8, second & 511);
            keep(block.sign + 16 * i, with_parity(right<1>(odd_bytes((Bytes)first, (Bytes)second))));
        }
        return block;
    }
    template <class Out>
    QF_INLINE void decode(const u8*, const Prepared& block, Out* out) {
        const u64* const grid = codebooks::iq2xs_grid;
        for (int i = 0; i < 16; ++i) {
            const Bytes rows = QUANTFORM_SET::bytes(grid[block.row[2 * i]], grid[block.row[2 * i + 1]]);
            put(out + 16 * i, negate(rows, two_signs(block.sign + 2 * i)), block.scale.value[i]);
        }
    }
};

struct IQ2_S {
    static constexpr const char* identifier = "gguf:iq2_s";
    static constexpr int ggml_type = 22, values = 256, bytes = 82;
    using Prepared = Unpacked<32, 1>;  // signs are read where they are
    QF_INLINE Prepared prepare(const u8* in) {
        Prepared block;
        block.scale = odd_scales(half(in) * 0.125F, nibbles(in + 74));
        const Bytes packed = QUANTFORM_SET::bytes(load<u64>(in + 66), u64{0});  // two high bits of each row, in order
        const Words16 even = (Words16)interleave_low(field<2, 0>(packed), field<2, 2>(packed));
        const Words16 odd = (Words16)interleave_low(field<2, 4>(packed), field<2, 6>(packed));
        keep_rows(block.row, load<Bytes>(in + 2), (Bytes)interleave_low(even, odd));
        keep_rows(block.row + 16, load<Bytes>(in + 18), (Bytes)interleave_high(even, odd));
        return block;
    }
    template <class Out>
    QF_INLINE void decode(const u8* in, const Prepared& block, Out* out) {
        const u64* const grid = codebooks::iq2s_grid;
        for (int i = 0; i < 16; ++i) {
            const Bytes rows = QUANTFORM_SET::bytes(grid[block.row[2 * i]], grid[block.row[2 * i + 1]]);
            put(out + 16 * i, negate(rows, two_signs(in + 34 + 2 * i)), block.scale.value[i]);
        }
    }
};

struct IQ3_S {
    static constexpr const char* identifier = "gguf:iq3_s";
    static constexpr int ggml_type = 21, values = 256, bytes = 110;
    using Prepared = Unpacked<64, 1>;
    QF_INLINE Prepared prepare(const u8* in) {
        // Four bytes of local scales end the block; with the four before them they are read as the last eight of 16.
        Prepared block;
        block.scale = odd_scales(half(in), nibbles(in + 102));
        for (int i = 0; i < 4; ++i) {
            const Bytes ninth = lanes_of(load<u16>(in + 66 + 2 * i)) & splat(1);
            keep_rows(block.row + 16 * i, load<Bytes>(in + 2 + 16 * i), ninth);
        }
        return block;
    }
    template <class Out>
    QF_INLINE void decode(const u8* in, const Prepared& block, Out* out) {
        const u32* const grid = codebooks::iq3s_grid;
        for (int i = 0; i < 16; ++i) {
            const u16* const row = block.row + 4 * i;
            const Bytes rows = QUANTFORM_SET::bytes(grid[row[0]], grid[row[1]], grid[row[2]], grid[row[3]]);
            put(out + 16 * i, negate(rows, two_signs(in + 74 + 2 * i)), block.scale.value[8 + i / 2]);
        }
    }
};

/// Signs and scales of the eight groups of IQ2_XXS and IQ3_XXS: words of four times seven signs and a local scale.
struct Groups {
    alignas(16) u8 sign[32];
    alignas(16) float scale[8];
};
QF_INLINE Groups groups_of(float d, Words32 first, Words32 second) {
    typedef std::int32_t Signed32 __attribute__((vector_size(16)));
    typedef float Float4 __attribute__((vector_size(16)));
    Groups groups;
    for (int i = 0; i < 2; ++i) {
        const Words32 word = i == 0 ? first : second;
        const Words32 spread = (word & 0x7FU) | (word << 1 & 0x7F00U) | (word << 2 & 0x7F0000U) | (word << 3 & 0x7F000000U);
        keep(groups.sign + 16 * i, with_parity((Bytes)spread));
        const Words32 odd = (word >> 27) | 1U;  // 2 t + 1: the bit below the local scale is a sign
        keep(groups.scale + 4 * i, d * __builtin_convertvector((Signed32)odd, Float4));
    }
    return groups;
}

struct IQ2_XXS {
    static constexpr const char* identifier = "gguf:iq2_xxs";
    static constexpr int ggml_type = 16, values = 256, bytes = 66;
    QF_INLINE Groups prepare(const u8* in) {
        Words32 rest[2];
        for (int i = 0; i < 2; ++i) {  // a word of rows and a word of the rest, in turn
            rest[i] = __builtin_shufflevector(load<Words32>(in + 2 + 32 * i), load<Words32>(in + 18 + 32 * i), 1, 3, 5, 7);
        }
        return groups_of(half(in) * 0.125F, rest[0], rest[1]);
    }
    template <class Out>
    QF_INLINE void decode(const u8* in, const Groups& groups, Out* out) {
        const u64* const grid = codebooks::iq2xxs_grid;
        for (int i = 0; i < 16; ++i) {
            const u8* const row = in + 2 + i / 2 * 8 + i % 2 * 2;
            const Bytes rows = QUANTFORM_SET::bytes(grid[row[0]], grid[row[1]]);
            put(out + 16 * i, negate(rows, two_signs(groups.sign + 2 * i)), groups.scale[i / 2]);
        }
    }
};

struct IQ3_XXS {
    static constexpr const char* identifier = "gguf:iq3_xxs";
    static constexpr int ggml_type = 18, values = 256, bytes = 98;
    QF_INLINE Groups prepare(const u8* in) {
        return groups_of(half(in) * 0.25F, load<Words32>(in + 66), load<Words32>(in + 82));
    }
    template <class Out>
    QF_INLINE void decode(const u8* in, const Groups& groups, Out* out) {
        const u32* const grid = codebooks::iq3xxs_grid;
        for (int i = 0; i < 16; ++i) {
            const u8* const row = in + 2 + 4 * i;
            const Bytes rows = QUANTFORM_SET::bytes(grid[row[0]], grid[row[1]], grid[row[2]], grid[row[3]]);
            put(out + 16 * i, negate(rows, two_signs(groups.sign + 2 * i)), groups.scale[i / 2]);
        }
    }
};

// IQ1's rows are stored times eight, so that a shift of an eighth is one more or less; the scale is divided by eight.

struct IQ1_S {
    static constexpr const char* identifier = "gguf:iq1_s";
    static constexpr int ggml_type = 19, values = 256, bytes = 50;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const float d = half(in) * 0.125F;
        const u64* const grid = codebooks::iq1s_grid;
        for (int group = 0; group < 8; ++group) {
            const u8* const q = in + 2 + 4 * group;
            const u32 high = load<u16>(in + 34 + 2 * group);
            const float scale = d * static_cast<float>(static_cast<int>(high >> 11 & 14) + 1);
            const Bytes shift = splat(1 - static_cast<int>(high >> 15) * 2);
            const Bytes first = QUANTFORM_SET::bytes(grid[q[0] | (high << 8 & 0x700)], grid[q[1] | (high << 5 & 0x700)]);
            const Bytes second = QUANTFORM_SET::bytes(grid[q[2] | (high << 2 & 0x700)], grid[q[3] | (high >> 1 & 0x700)]);
            put(out + 32 * group, first + shift, scale);
            put(out + 32 * group + 16, second + shift, scale);
        }
    }
};

/// Four fields of three bits, a byte each.
QF_INLINE u32 spread_threes(u64 word) {
    return static_cast<u32>((word & 7) | (word << 5 & 0x700) | (word << 10 & 0x70000) | (word << 15 & 0x7000000));
}

/// The shifts of two rows by the two bits that make each negative.
alignas(16) constexpr std::int8_t row_shifts[4][16] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {-1, -1, -1, -1, -1, -1, -1, -1, 1, 1, 1, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1},
    {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1},
};

struct IQ1_M {
    static constexpr const char* identifier = "gguf:iq1_m";
    static constexpr int ggml_type = 29, values = 256, bytes = 56;
    using Prepared = Unpacked<32, 16>;
    QF_INLINE Prepared prepare(const u8* in) {
        const u64 packed = load<u64>(in + 48);  // four words of four local scales and a nibble of the block's scale
        const float d = half(static_cast<u16>((packed >> 12 & 0xF) | (packed >> 24 & 0xF0) | (packed >> 36 & 0xF00) |
                                              (packed >> 48 & 0xF000)));
        Prepared block;
        block.scale =
            odd_scales(d * 0.125F, QUANTFORM_SET::bytes(spread_threes(packed), spread_threes(packed >> 16),
                                                        spread_threes(packed >> 32), spread_threes(packed >> 48)));
        const Bytes high = load<Bytes>(in + 32), even = field<3, 0>(high), odd = field<3, 4>(high);
        keep_rows(block.row, load<Bytes>(in), interleave_low(even, odd));
        keep_rows(block.row + 16, load<Bytes>(in + 16), interleave_high(even, odd));
        keep(block.sign, bit<3, 0>(high) | bit<7, 1>(high));
        return block;
    }
    template <class Out>
    QF_INLINE void decode(const u8*, const Prepared& block, Out* out) {
        const u64* const grid = codebooks::iq1s_grid;
        for (int i = 0; i < 16; ++i) {
            const Bytes rows = QUANTFORM_SET::bytes(grid[block.row[2 * i]], grid[block.row[2 * i + 1]]);
            Bytes shifts;
            std::memcpy(&shifts, row_shifts[block.sign[i]], sizeof shifts);
            put(out + 16 * i, rows + shifts, block.scale.value[i]);
        }
    }
};

}  // namespace quantform::QUANTFORM_SET
