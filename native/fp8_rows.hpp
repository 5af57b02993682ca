// FP8 rows: E4M3FN codes under one bfloat16 or binary16 multiplier a row.
#pragma once

#include "kernel_set.hpp"
#include "outputs.hpp"
#include "small_floats.hpp"

namespace quantform::QUANTFORM_SET {

/// `infinity` is the multiplier's; the legal words are those below it.
template <u16 infinity>
struct Fp8Unit {
    static constexpr int values = 32, code_bytes = 32, high_bytes = 0, scales = 1, scale_bytes = 2;
    static constexpr bool one_scale = true;

    static bool legal(const RowWords& words, size_t units) {
        u8 nan = 0, any = 0;
        for (size_t i = 0; i < units * code_bytes; ++i) {
            const u8 magnitude = words.codes[i] & 0x7F;
            nan = static_cast<u8>(nan | (magnitude == 0x7F));
            any = static_cast<u8>(any | magnitude);
        }
        const u16 scale = load<u16>(words.scales);
        return nan == 0 && scale < infinity && (scale != 0 || any == 0);
    }
};

struct Fp8Bf16Unit : Fp8Unit<0x7F80> {
    static constexpr const char* name = "fp8_e4m3fn_row_bf16";
    static constexpr bool subnormal = true;
    /// Whether no product with a code, of which the smallest is 2^-9, is a subnormal binary32 number.
    static bool all_normal(const RowWords& words) { return (load<u16>(words.scales) & 0x7FFF) >= 0x0500; }  // 2^-117
    template <class Out>
    QF_INLINE void decode(const u8* codes, const u8*, const u8* scales, float, Out* out) {
        const Floats multiplier = splat(float_of(static_cast<u32>(load<u16>(scales)) << 16));
        for (int i = 0; i < values; i += 16) {
            // First the code's exact value: a power of two moved to the multiplier could take that to infinity.
            const Floats code = widen(e4m3_as_halves(load<Bytes>(codes + i))) * splat(0x1p8F);
            store(out + i, code * multiplier);
        }
    }
};

struct Fp8Fp16Unit : Fp8Unit<0x7C00> {
    static constexpr const char* name = "fp8_e4m3fn_row_fp16";
    static constexpr bool subnormal = false;  // products are multiples of 2^-33
    template <class Out>
    QF_INLINE void decode(const u8* codes, const u8*, const u8* scales, float, Out* out) {
        const Floats multiplier = splat(half(scales) * 0x1p8F);
        for (int i = 0; i < values; i += 16) {
            store(out + i, widen(e4m3_as_halves(load<Bytes>(codes + i))) * multiplier);
        }
    }
};

}  // namespace quantform::QUANTFORM_SET
