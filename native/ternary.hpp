// Ternary blocks: a scale times -1, 0 or +1 (and +2 in TQ2_0).
#pragma once

#include "outputs.hpp"

namespace quantform::QUANTFORM_SET {

/// The leading base-3 digit of bytes that hold digits as a fraction of 256, less one.
QF_INLINE Bytes leading_trit(Bytes fraction) {
    // Three times the fraction reaches one from 86 on, and two from 171 on; a true comparison is minus one.
    return splat(-1) - (Bytes)(fraction >= splat(86)) - (Bytes)(fraction >= splat(171));
}
/// Drops the leading digit: the product wraps.
QF_INLINE Bytes times_three(Bytes fraction) { return fraction + fraction + fraction; }

struct TQ1_0 {
    static constexpr const char* identifier = "gguf:tq1_0";
    static constexpr int ggml_type = 34, values = 256, bytes = 54;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const float d = half(in + 52);
        Bytes left = load<Bytes>(in), right = load<Bytes>(in + 16), last = load<Bytes>(in + 32);
        for (int digit = 0; digit < 5; ++digit) {
            put(out + 32 * digit, leading_trit(left), d);
            put(out + 32 * digit + 16, leading_trit(right), d);
            put(out + 160 + 16 * digit, leading_trit(last), d);
            left = times_three(left), right = times_three(right), last = times_three(last);
        }
        // Four digits of each of four bytes: the same bytes in every quarter, multiplied once more each time.
        const u32 word = load<u32>(in + 48);
        const Bytes one = QUANTFORM_SET::bytes(word, word, word, word), three = times_three(one);
        const Bytes nine = times_three(three), all = times_three(nine);
        const Words32 four = {((Words32)one)[0], ((Words32)three)[1], ((Words32)nine)[2], ((Words32)all)[3]};
        put(out + 240, leading_trit((Bytes)four), d);
    }
};

struct TQ2_0 {
    static constexpr const char* identifier = "gguf:tq2_0";
    static constexpr int ggml_type = 35, values = 256, bytes = 66;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const float d = half(in + 64);
        unrolled<4>([&](auto group) {
            constexpr int h = group.value / 2, side = group.value % 2;
            const Bytes q = load<Bytes>(in + 32 * h + 16 * side);
            unrolled<4>([&](auto plane) {
                constexpr int p = plane.value;
                put(out + 128 * h + 32 * p + 16 * side, field<2, 2 * p>(q) - splat(1), d);
            });
        });
    }
};

}  // namespace quantform::QUANTFORM_SET
