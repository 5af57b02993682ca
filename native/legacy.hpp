// Blocks of 32 to 128 values with one binary16 scale: the conventional formats and IQ4_NL; and Q8_K.
#pragma once

#include "outputs.hpp"

namespace quantform::QUANTFORM_SET {

/// The nonlinear table of IQ4_NL and IQ4_XS.
QF_INLINE Bytes iq4_table() {
    return (Bytes)SignedBytes{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
}

struct Q4_0 {
    static constexpr const char* identifier = "gguf:q4_0";
    static constexpr int ggml_type = 2, values = 32, bytes = 18;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const Bytes q = load<Bytes>(in + 2);
        const auto values_of = centred_codes<Out>(half(in), 8);
        put_codes<0>(out, q, values_of);
        put_codes<4>(out + 16, q, values_of);
    }
};

struct Q4_1 {
    static constexpr const char* identifier = "gguf:q4_1";
    static constexpr int ggml_type = 3, values = 32, bytes = 20;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const Bytes q = load<Bytes>(in + 4);
        const auto values_of = affine_codes<Out>(half(in), -half(in + 2));
        put_codes<0>(out, q, values_of);
        put_codes<4>(out + 16, q, values_of);
    }
};

struct Q5_0 {
    static constexpr const char* identifier = "gguf:q5_0";
    static constexpr int ggml_type = 6, values = 32, bytes = 22;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const float d = half(in);
        const Bytes q = load<Bytes>(in + 6);
        // A clear fifth bit subtracts sixteen: the lanes' ones are then a sign extension.
        const Bytes low = lanes_of(static_cast<u16>(~load<u16>(in + 2))) & splat(0xF0);
        const Bytes high = lanes_of(static_cast<u16>(~load<u16>(in + 4))) & splat(0xF0);
        put(out, field<4, 0>(q) | low, d);
        put(out + 16, field<4, 4>(q) | high, d);
    }
};

struct Q5_1 {
    static constexpr const char* identifier = "gguf:q5_1";
    static constexpr int ggml_type = 7, values = 32, bytes = 24;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const float d = half(in), m = half(in + 2);
        const Bytes q = load<Bytes>(in + 8);
        put_plus(out, field<4, 0>(q) | (lanes_of(load<u16>(in + 4)) & splat(16)), d, m);
        put_plus(out + 16, field<4, 4>(q) | (lanes_of(load<u16>(in + 6)) & splat(16)), d, m);
    }
};

struct Q8_0 {
    static constexpr const char* identifier = "gguf:q8_0";
    static constexpr int ggml_type = 8, values = 32, bytes = 34;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const float d = half(in);
        put(out, load<Bytes>(in + 2), d);
        put(out + 16, load<Bytes>(in + 18), d);
    }
};

struct Q8_1 {
    static constexpr const char* identifier = "gguf:q8_1";
    static constexpr int ggml_type = 9, values = 32, bytes = 36;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const float d = half(in);
        put(out, load<Bytes>(in + 4), d);
        put(out + 16, load<Bytes>(in + 20), d);
    }
};

struct Q8_K {
    static constexpr const char* identifier = "gguf:q8_k";
    static constexpr int ggml_type = 15, values = 256, bytes = 292;
    static constexpr bool subnormal = true;  // a binary32 scale may be
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const float d = load<float>(in);
        for (int i = 0; i < 256; i += 16) put(out + i, load<Bytes>(in + 4 + i), d);
    }
};

struct IQ4_NL {
    static constexpr const char* identifier = "gguf:iq4_nl";
    static constexpr int ggml_type = 20, values = 32, bytes = 18;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const Bytes q = load<Bytes>(in + 2);
        const auto values_of = scaled_codes<Out>(iq4_table(), half(in));
        put_codes<0>(out, q, values_of);
        put_codes<4>(out + 16, q, values_of);
    }
};

struct Q1_0 {
    static constexpr const char* identifier = "gguf:q1_0";
    static constexpr int ggml_type = 41, values = 128, bytes = 18;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const float d = half(in);
        for (int i = 0; i < 8; ++i) put(out + 16 * i, (lanes_of(load<u16>(in + 2 + 2 * i)) & splat(2)) - splat(1), d);
    }
};

struct Q2_0 {
    static constexpr const char* identifier = "gguf:q2_0";
    static constexpr int ggml_type = 42, values = 64, bytes = 18;
    template <class Out>
    QF_INLINE void decode(const u8* in, Out* out) {
        const float d = half(in);
        const Bytes q = load<Bytes>(in + 2), one = splat(1);
        const Bytes first = field<2, 0>(q) - one, second = field<2, 2>(q) - one;
        const Bytes third = field<2, 4>(q) - one, fourth = field<2, 6>(q) - one;
        // The four codes of a byte are neighbours in the output.
        const Words16 a = (Words16)interleave_low(first, second), b = (Words16)interleave_low(third, fourth);
        const Words16 c = (Words16)interleave_high(first, second), e = (Words16)interleave_high(third, fourth);
        put(out, (Bytes)interleave_low(a, b), d);
        put(out + 16, (Bytes)interleave_high(a, b), d);
        put(out + 32, (Bytes)interleave_low(c, e), d);
        put(out + 48, (Bytes)interleave_high(c, e), d);
    }
};

}  // namespace quantform::QUANTFORM_SET
