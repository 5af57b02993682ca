// NVFP4 of checkpoints and artifacts: E2M1 codes, an E4M3FN scale for sixteen, and the divisor of the source matrix.
// (The packed profile of that name is another format; see fp4.hpp.)
#pragma once

#include "kernel_set.hpp"
#include "outputs.hpp"
#include "small_floats.hpp"

namespace quantform::QUANTFORM_SET {

struct Nvfp4Unit {
    static constexpr const char* name = "nvfp4";
    static constexpr int values = 64, code_bytes = 32, high_bytes = 0, scales = 4, scale_bytes = 4;
    static constexpr bool one_scale = false, subnormal = true;
    /// Whether no quotient of a product, of which the smallest is 2^-10, is a subnormal binary32 number.
    static bool all_normal(const RowWords& words) { return words.divisor > 0 && words.divisor <= 0x1p116F; }

    template <class Out>
    QF_INLINE void decode(const u8* codes, const u8*, const u8* scales, float divisor, Out* out) {
        for (int group = 0; group < 4; ++group) {
            // A code has 2 significant bits and a scale has 4: their product is exact, and only the division rounds.
            const Floats scale = splat(e4m3_values.value[scales[group]] * 0x1p14F);
            const u64 q = load<u64>(codes + 8 * group);
            const Bytes lanes = interleave_low(bytes(q, 0), bytes(q >> 4, 0));
#if defined(__AVX512BW__) && defined(__AVX512VL__)
            // Each of the sixteen codes is divided once, and its value then goes wherever the code is.
            const auto values_of = code_values<Out>(widen(e2m1_as_halves(count_up())) * scale / splat(divisor));
            put_codes<0>(out + 16 * group, lanes, values_of);
#else
            store(out + 16 * group, widen(e2m1_as_halves(lanes)) * scale / splat(divisor));
#endif
        }
    }
};

}  // namespace quantform::QUANTFORM_SET
