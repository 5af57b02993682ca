// The grid formats IQ2, IQ3 and IQ1: lanes of eight values that are rows of a codebook.
//
// A row is one load of 64 bits (32 in IQ3). Signs are put on the codes before the scale: the product's sign is the
// same, whatever its rounding.
#pragma once

#include "codebooks.hpp"
#include "lanes.hpp"

namespace quantform::QUANTFORM_SET {

struct Parity {
    u8 value[128];
};
/// Seven signs and an eighth that makes the count of ones even.
constexpr Parity make_parity() {
    Parity table{};
    for (int signs = 0; signs < 128; ++signs) {
        int count = 0;
        for (int at = 0; at < 7; ++at) count += signs >> at & 1;
        table.value[signs] = static_cast<u8>(signs | (count & 1) << 7);
    }
    return table;
}
constexpr Parity parity = make_parity();

/// Sixteen sign bits from two fields of seven.
QF_INLINE u16 signs_of(u32 first, u32 second) {
    return static_cast<u16>(parity.value[first & 127] | parity.value[second & 127] << 8);
}

/// `M(M(d, 0.5 + t), factor)`.
QF_INLINE float half_step(float d, u32 local, float factor) { return d * (static_cast<float>(local) + 0.5F) * factor; }

struct IQ2_XXS {
    static constexpr int ggml_type = 16, values = 256, bytes = 66;
    QF_INLINE void decode(const u8* in, float* out) {
        const float d = half(in);
        for (int group = 0; group < 8; ++group) {
            const u8* const index = in + 2 + 8 * group;
            const u32 rest = load<u32>(index + 4);
            const float scale = half_step(d, rest >> 28, 0.25F);
            const u64* const grid = codebooks::iq2xxs_grid;
            put(out + 32 * group, negate(QUANTFORM_SET::bytes(grid[index[0]], grid[index[1]]), signs_of(rest, rest >> 7)),
                scale);
            put(out + 32 * group + 16,
                negate(QUANTFORM_SET::bytes(grid[index[2]], grid[index[3]]), signs_of(rest >> 14, rest >> 21)), scale);
        }
    }
};

struct IQ2_XS {
    static constexpr int ggml_type = 17, values = 256, bytes = 74;
    QF_INLINE void decode(const u8* in, float* out) {
        const float d = half(in);
        const u64* const grid = codebooks::iq2xs_grid;
        for (int pair = 0; pair < 16; ++pair) {
            const u32 words = load<u32>(in + 2 + 4 * pair);
            const u32 local = static_cast<u32>(in[66 + pair / 2] >> pair % 2 * 4 & 15);
            const Bytes codes = QUANTFORM_SET::bytes(grid[words & 511], grid[words >> 16 & 511]);
            put(out + 16 * pair, negate(codes, signs_of(words >> 9, words >> 25)), half_step(d, local, 0.25F));
        }
    }
};

struct IQ2_S {
    static constexpr int ggml_type = 22, values = 256, bytes = 82;
    QF_INLINE void decode(const u8* in, float* out) {
        const float d = half(in);
        const u64* const grid = codebooks::iq2s_grid;
        for (int pair = 0; pair < 16; ++pair) {
            const u32 high = static_cast<u32>(in[66 + pair / 2] >> pair % 2 * 4), first = in[2 + 2 * pair];
            const u32 second = in[3 + 2 * pair], local = static_cast<u32>(in[74 + pair / 2] >> pair % 2 * 4 & 15);
            const Bytes codes =
                QUANTFORM_SET::bytes(grid[first | (high & 3) << 8], grid[second | (high >> 2 & 3) << 8]);
            put(out + 16 * pair, negate(codes, load<u16>(in + 34 + 2 * pair)), half_step(d, local, 0.25F));
        }
    }
};

struct IQ3_XXS {
    static constexpr int ggml_type = 18, values = 256, bytes = 98;
    QF_INLINE void decode(const u8* in, float* out) {
        const float d = half(in);
        const u32* const grid = codebooks::iq3xxs_grid;
        for (int group = 0; group < 8; ++group) {
            const u8* const q = in + 2 + 8 * group;
            const u32 rest = load<u32>(in + 66 + 4 * group);
            const float scale = half_step(d, rest >> 28, 0.5F);
            const Bytes first = QUANTFORM_SET::bytes(grid[q[0]], grid[q[1]], grid[q[2]], grid[q[3]]);
            const Bytes second = QUANTFORM_SET::bytes(grid[q[4]], grid[q[5]], grid[q[6]], grid[q[7]]);
            put(out + 32 * group, negate(first, signs_of(rest, rest >> 7)), scale);
            put(out + 32 * group + 16, negate(second, signs_of(rest >> 14, rest >> 21)), scale);
        }
    }
};

struct IQ3_S {
    static constexpr int ggml_type = 21, values = 256, bytes = 110;
    QF_INLINE void decode(const u8* in, float* out) {
        const float d = half(in);
        const u32* const grid = codebooks::iq3s_grid;
        for (int pair = 0; pair < 16; ++pair) {
            const u8* const q = in + 2 + 4 * pair;
            const u32 high = static_cast<u32>(in[66 + pair / 2]) << 8 >> pair % 2 * 4;
            const u32 local = static_cast<u32>(in[106 + pair / 4] >> pair / 2 % 2 * 4 & 15);
            const Bytes codes = QUANTFORM_SET::bytes(grid[q[0] | (high & 256)], grid[q[1] | (high >> 1 & 256)],
                                                     grid[q[2] | (high >> 2 & 256)], grid[q[3] | (high >> 3 & 256)]);
            put(out + 16 * pair, negate(codes, load<u16>(in + 74 + 2 * pair)), d * static_cast<float>(2 * local + 1));
        }
    }
};

// IQ1's rows are stored times eight, so that a shift of an eighth is one more or less; the scale is divided by eight,
// which is exact: it has few bits and is far from the subnormals of binary32.
QF_INLINE float eighth_step(float d, u32 local) { return d * static_cast<float>(2 * local + 1) * 0.125F; }

struct IQ1_S {
    static constexpr int ggml_type = 19, values = 256, bytes = 50;
    QF_INLINE void decode(const u8* in, float* out) {
        const float d = half(in);
        const u64* const grid = codebooks::iq1s_grid;
        for (int group = 0; group < 8; ++group) {
            const u8* const q = in + 2 + 4 * group;
            const u32 high = load<u16>(in + 34 + 2 * group);
            const float scale = eighth_step(d, high >> 12 & 7);
            const Bytes shift = splat(1 - static_cast<int>(high >> 15) * 2);
            const Bytes first = QUANTFORM_SET::bytes(grid[q[0] | (high << 8 & 0x700)], grid[q[1] | (high << 5 & 0x700)]);
            const Bytes second = QUANTFORM_SET::bytes(grid[q[2] | (high << 2 & 0x700)], grid[q[3] | (high >> 1 & 0x700)]);
            put(out + 32 * group, first + shift, scale);
            put(out + 32 * group + 16, second + shift, scale);
        }
    }
};

struct IQ1_M {
    static constexpr int ggml_type = 29, values = 256, bytes = 56;
    QF_INLINE void decode(const u8* in, float* out) {
        const u64 packed = load<u64>(in + 48);  // four words of three local scales and a nibble of the block scale each
        const float d = half(static_cast<u16>((packed >> 12 & 0xF) | (packed >> 24 & 0xF0) | (packed >> 36 & 0xF00) |
                                              (packed >> 48 & 0xF000)));
        const u64* const grid = codebooks::iq1s_grid;
        for (int pair = 0; pair < 16; ++pair) {
            const u32 high = in[32 + pair];
            const u32 local = static_cast<u32>(packed >> (pair / 4 * 16 + pair % 4 * 3)) & 7;
            const u64 each = 0x0101010101010101U;
            const u64 first = (high >> 3 & 1) != 0 ? 0xFF * each : each, second = high >> 7 != 0 ? 0xFF * each : each;
            const Bytes rows = QUANTFORM_SET::bytes(grid[in[2 * pair] | (high << 8 & 0x700)],
                                                    grid[in[2 * pair + 1] | (high << 4 & 0x700)]);
            put(out + 16 * pair, rows + QUANTFORM_SET::bytes(first, second), eighth_step(d, local));
        }
    }
};

}  // namespace quantform::QUANTFORM_SET
