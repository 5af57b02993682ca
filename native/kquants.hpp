// The K-quants and IQ4_XS: blocks of 256 values whose groups of 16 or 32 have packed scales of their own.
//
// The scales of a block are unpacked and multiplied at once, into a small array in the first-level cache (see kernels.cpp
// for `prepare`).
#pragma once

#include "legacy.hpp"

namespace quantform::QUANTFORM_SET {

struct TwoScales {
    Scales scale;
    Scales minimum;
};

struct Q2_K {
    static constexpr const char* identifier = "gguf:q2_k";
    static constexpr int ggml_type = 10, values = 256, bytes = 84;
    QF_INLINE TwoScales prepare(const u8* in) {
        const Bytes packed = load<Bytes>(in);
        return {scales_of(splat(half(in + 80)), field<4, 0>(packed)), scales_of(splat(half(in + 82)), field<4, 4>(packed))};
    }
    template <class Out>
    QF_INLINE void decode(const u8* in, const TwoScales& block, Out* out) {
        unrolled<4>([&](auto group) {  // a half of the block, and of it the left or right sixteen lanes
            constexpr int h = group.value / 2, side = group.value % 2;
            const Bytes q = load<Bytes>(in + 16 + 32 * h + 16 * side);
            unrolled<4>([&](auto plane) {
                constexpr int p = plane.value, at = 8 * h + 2 * p + side;
                put_less(out + 16 * at, field<2, 2 * p>(q), block.scale.value[at], block.minimum.value[at]);
            });
        });
    }
};

struct Q3_K {
    static constexpr const char* identifier = "gguf:q3_k";
    static constexpr int ggml_type = 11, values = 256, bytes = 110;
    QF_INLINE Scales prepare(const u8* in) {
        const u64 nibbles = load<u64>(in + 96), each = 0x0F0F0F0F0F0F0F0FU;
        const u32 pairs = load<u32>(in + 104);
        const Bytes low = QUANTFORM_SET::bytes(nibbles & each, nibbles >> 4 & each);
        const Bytes high = QUANTFORM_SET::bytes(pairs, pairs >> 2, pairs >> 4, pairs >> 6) & splat(3);
        return scales_of(splat(half(in + 108)), (low | left<4>(high)) - splat(32));
    }
    template <class Out>
    QF_INLINE void decode(const u8* in, const Scales& scale, Out* out) {
        unrolled<4>([&](auto group) {
            constexpr int h = group.value / 2, side = group.value % 2;
            const Bytes q = load<Bytes>(in + 32 + 32 * h + 16 * side), mask = load<Bytes>(in + 16 * side);
            unrolled<4>([&](auto plane) {
                constexpr int p = plane.value, at = 8 * h + 2 * p + side;
                const Bytes code = field<2, 2 * p>(q) | bit<4 * h + p, 2>(mask);
                put(out + 16 * at, code - splat(4), scale.value[at]);
            });
        });
    }
};

/// Eight 6-bit scales and then eight 6-bit minima from 12 bytes, times `d` and `dmin`.
QF_INLINE Scales scales_minima(const u8* in) {
    const u32 first = load<u32>(in + 4), second = load<u32>(in + 8), third = load<u32>(in + 12);
    const u32 six = 0x3F3F3F3FU, four = 0x0F0F0F0FU, two = 0x30303030U;
    const Bytes local = bytes(first & six, (third & four) | (first >> 2 & two),  //
                              second & six, (third >> 4 & four) | (second >> 2 & two));
    const float d = half(in), dmin = half(in + 2);
    alignas(64) const float both[16] = {d, d, d, d, d, d, d, d, dmin, dmin, dmin, dmin, dmin, dmin, dmin, dmin};
    return scales_of(load_floats(both), local);
}

struct Q4_K {
    static constexpr const char* identifier = "gguf:q4_k";
    static constexpr int ggml_type = 12, values = 256, bytes = 144;
    QF_INLINE Scales prepare(const u8* in) {
        return scales_minima(in);
    }
    template <class Out>
    QF_INLINE void decode(const u8* in, const Scales& scale, Out* out) {
        for (int group = 0; group < 4; ++group) {
            const auto low = affine_codes<Out>(scale.value[2 * group], scale.value[2 * group + 8]);
            const auto high = affine_codes<Out>(scale.value[2 * group + 1], scale.value[2 * group + 9]);
            for (int side = 0; side < 2; ++side) {
                const Bytes q = load<Bytes>(in + 16 + 32 * group + 16 * side);
                put_codes<0>(out + 64 * group + 16 * side, q, low);
                put_codes<4>(out + 64 * group + 32 + 16 * side, q, high);
            }
        }
    }
};

struct Q5_K {
    static constexpr const char* identifier = "gguf:q5_k";
    static constexpr int ggml_type = 13, values = 256, bytes = 176;
    QF_INLINE Scales prepare(const u8* in) {
        return scales_minima(in);
    }
    template <class Out>
    QF_INLINE void decode(const u8* in, const Scales& scale, Out* out) {
        unrolled<2>([&](auto half_) {
            constexpr int side = half_.value;
            const Bytes high = load<Bytes>(in + 16 + 16 * side);
            unrolled<4>([&](auto group) {
                constexpr int g = group.value;
                const Bytes q = load<Bytes>(in + 48 + 32 * g + 16 * side);
                Out* const to = out + 64 * g + 16 * side;
                put_less(to, field<4, 0>(q) | bit<2 * g, 4>(high), scale.value[2 * g], scale.value[2 * g + 8]);
                put_less(to + 32, field<4, 4>(q) | bit<2 * g + 1, 4>(high), scale.value[2 * g + 1],
                         scale.value[2 * g + 9]);
            });
        });
    }
};

struct Q6_K {
    static constexpr const char* identifier = "gguf:q6_k";
    static constexpr int ggml_type = 14, values = 256, bytes = 210;
    QF_INLINE Scales prepare(const u8* in) {
        return scales_of(splat(half(in + 208)), load<Bytes>(in + 192));
    }
    template <class Out>
    QF_INLINE void decode(const u8* in, const Scales& scale, Out* out) {
        unrolled<4>([&](auto group) {
            constexpr int h = group.value / 2, side = group.value % 2;
            const Bytes high = load<Bytes>(in + 128 + 32 * h + 16 * side);
            const Bytes first = load<Bytes>(in + 64 * h + 16 * side), second = load<Bytes>(in + 64 * h + 32 + 16 * side);
            unrolled<4>([&](auto plane) {
                constexpr int p = plane.value, at = 8 * h + 2 * p + side;
                const Bytes low = field<4, p / 2 * 4>(p % 2 == 0 ? first : second);
                const Bytes code = low | left<4>(field<2, 2 * p>(high));
                put(out + 16 * at, code - splat(32), scale.value[at]);
            });
        });
    }
};

struct IQ4_XS {
    static constexpr const char* identifier = "gguf:iq4_xs";
    static constexpr int ggml_type = 23, values = 256, bytes = 136;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const float d = half(in);
        const u32 high = load<u16>(in + 2), low = load<u32>(in + 4);
        for (int group = 0; group < 8; ++group) {
            const u32 local = (low >> 4 * group & 15) | (high >> 2 * group & 3) << 4;
            const float scale = d * static_cast<float>(static_cast<int>(local) - 32);
            const Bytes q = load<Bytes>(in + 8 + 16 * group);
            const auto values_of = scaled_codes<Out>(iq4_table(), scale);
            put_codes<0>(out + 32 * group, q, values_of);
            put_codes<4>(out + 32 * group + 16, q, values_of);
        }
    }
};

}  // namespace quantform::QUANTFORM_SET
