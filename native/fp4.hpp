// Block floating point: E2M1 codes under E8M0 (MXFP4) or E4M3 (NVFP4) scales.
//
// Doubled E2M1 values are multiplied by half the scale, so that the largest scales stay finite in binary32.
#pragma once

#include "outputs.hpp"

namespace quantform::QUANTFORM_SET {

/// The E2M1 values doubled; both zeros are positive.
QF_INLINE Bytes fp4_table() { return (Bytes)SignedBytes{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; }

/// Half of 2^(e - 127); the two smallest are subnormal.
QF_INLINE float e8m0_half(u8 e) { return float_of(e < 2 ? 0x00200000U << e : (e - 1U) << 23); }

struct E4M3Halves {
    float value[256];
};
/// Half of the unsigned E4M3 value of every byte: bit 7 is no part of it, and 127 is zero but 255 is not.
constexpr E4M3Halves make_e4m3_halves() {
    E4M3Halves table{};
    for (int byte = 0; byte < 256; ++byte) {
        const int exponent = byte >> 3 & 15, mantissa = byte & 7;
        float value = exponent == 0 ? static_cast<float>(mantissa) : static_cast<float>(8 + mantissa);
        for (int power = exponent == 0 ? 1 : exponent; power > 1; --power) value *= 2.0F;
        table.value[byte] = byte == 127 ? 0.0F : value * 0x1p-10F;
    }
    return table;
}
constexpr E4M3Halves e4m3_halves = make_e4m3_halves();

struct MXFP4 {
    static constexpr const char* identifier = "gguf:mxfp4";
    static constexpr int ggml_type = 39, values = 32, bytes = 17;
    static constexpr bool subnormal = true;  // under the smallest scales
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const Bytes q = load<Bytes>(in + 1);
        const auto values_of = scaled_codes<Out>(fp4_table(), e8m0_half(in[0]));
        put_codes<0>(out, q, values_of);
        put_codes<4>(out + 16, q, values_of);
    }
};

struct NVFP4 {
    static constexpr const char* identifier = "gguf:nvfp4";
    static constexpr int ggml_type = 40, values = 64, bytes = 36;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        for (int group = 0; group < 4; ++group) {
            const u64 q = load<u64>(in + 4 + 8 * group);  // eight low nibbles, then eight high ones
            const Bytes codes = QUANTFORM_SET::bytes(q, q >> 4) & splat(15);
            put(out + 16 * group, lookup(fp4_table(), codes), e4m3_halves.value[in[group]]);
        }
    }
};

}  // namespace quantform::QUANTFORM_SET
