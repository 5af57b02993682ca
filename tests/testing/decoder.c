/* A decoder of five packed layouts that knows nothing of quantform: what the conformance kit is tried on.

   decoder FORMAT PAYLOAD SHAPE OUTPUT DTYPE

   writes float32 or float16 values; exit code 77 says that a format or type is not implemented. MISTAKE, given when it is
   compiled, plants one mistake:

     1  Q4_0 takes neighbouring values from the two nibbles of a byte
     2  Q4_0 writes +0 for every zero code
     3  Q5_1 reads its mask of fifth bits from the other end
     4  float16 cuts off what it cannot hold instead of rounding
     5  Q4_K forgets the two high bits of the later scales
     6  MXFP4 multiplies by the whole scale, which is infinite for the largest exponent
     7  Q8_0 reads its codes as unsigned
     8  float16 rounds halves away from zero
     9  Q4_K reads the minima as if they were scales
    10  float16 is infinite from 65536 on, and not from 65520 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef MISTAKE
#define MISTAKE 0
#endif

enum { NOT_IMPLEMENTED = 77 };

static uint16_t word16(const uint8_t *bytes) { return (uint16_t)(bytes[0] | bytes[1] << 8); }

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7FFF;
    if (magnitude >= 0x7C00) return from_bits(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
    if (magnitude >= 0x0400) return from_bits(sign | ((magnitude << 13) + 0x38000000));
    float value = (float)magnitude * 0x1p-24f;
    return sign ? -value : value;
}

static uint16_t float_to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return sign | 0x7E00;
    if (bits >= 0x47800000) return sign | 0x7C00;
#if MISTAKE == 10
    if (bits >= 0x477FF000) return sign | 0x7BFF;
#endif
    uint32_t kept, rest, half;
    if (bits >= 0x38800000) {
        kept = (bits - 0x38000000) >> 13, rest = bits & 0x1FFF, half = 0x1000;
    } else {
        uint32_t shift = 126 - (bits >> 23);
        if (bits < 0x33000000) return sign;
        uint32_t fraction = (bits & 0x7FFFFF) | 0x800000;
        kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), half = 1u << (shift - 1);
    }
#if MISTAKE == 4
    (void)rest, (void)half;
#elif MISTAKE == 8
    if (rest >= half) kept++;
#else
    if (rest > half || (rest == half && (kept & 1))) kept++;
#endif
    return (uint16_t)(sign | kept);
}

static void q4_0(const uint8_t *block, float *out) {
    float d = half_to_float(word16(block));
    for (int j = 0; j < 32; j++) {
#if MISTAKE == 1
        int code = block[2 + j / 2] >> 4 * (j % 2) & 15;
#else
        int code = block[2 + j % 16] >> 4 * (j / 16) & 15;
#endif
        out[j] = d * (float)(code - 8);
#if MISTAKE == 2
        if (code == 8 && d - d == 0) out[j] = 0;
#endif
    }
}

static void q5_1(const uint8_t *block, float *out) {
    float d = half_to_float(word16(block)), m = half_to_float(word16(block + 2));
    uint32_t high = (uint32_t)word16(block + 4) | (uint32_t)word16(block + 6) << 16;
    for (int j = 0; j < 32; j++) {
#if MISTAKE == 3
        int fifth = high >> (31 - j) & 1;
#else
        int fifth = high >> j & 1;
#endif
        int code = (block[8 + j % 16] >> 4 * (j / 16) & 15) | fifth << 4;
        float product = d * (float)code;
        out[j] = product + m;
    }
}

static void q8_0(const uint8_t *block, float *out) {
    float d = half_to_float(word16(block));
    for (int j = 0; j < 32; j++) {
#if MISTAKE == 7
        out[j] = d * (float)block[2 + j];
#else
        out[j] = d * (float)(int8_t)block[2 + j];
#endif
    }
}

static void q4_k(const uint8_t *block, float *out) {
    float d = half_to_float(word16(block)), dmin = half_to_float(word16(block + 2));
    const uint8_t *s = block + 4, *q = block + 16;
    for (int k = 0; k < 8; k++) {
        int scale = k < 4 ? s[k] & 63 : (s[k + 4] & 15) | (s[k - 4] >> 6) << 4;
        int minimum = k < 4 ? s[k + 4] & 63 : s[k + 4] >> 4 | (s[k] >> 6) << 4;
#if MISTAKE == 5
        scale = k < 4 ? scale : scale & 15;
#elif MISTAKE == 9
        minimum = scale;
#endif
        float a = d * (float)scale, b = dmin * (float)minimum;
        for (int j = 0; j < 32; j++) {
            float product = a * (float)(q[k / 2 * 32 + j] >> 4 * (k % 2) & 15);
            out[32 * k + j] = product - b;
        }
    }
}

static void mxfp4(const uint8_t *block, float *out) {
    static const float doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    uint32_t e = block[0];
#if MISTAKE == 6
    float d = from_bits(e ? e << 23 : 0x00400000);
    float factor = 0.5f;
#else
    float d = from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    float factor = 1;
#endif
    for (int j = 0; j < 32; j++) out[j] = d * (doubled[block[1 + j % 16] >> 4 * (j / 16) & 15] * factor);
}

static const struct {
    const char *name;
    size_t bytes, values;
    void (*decode)(const uint8_t *, float *);
} kinds[] = {
    {"gguf:q4_0", 18, 32, q4_0},    {"gguf:q5_1", 24, 32, q5_1},   {"gguf:q8_0", 34, 32, q8_0},
    {"gguf:q4_k", 144, 256, q4_k}, {"gguf:mxfp4", 17, 32, mxfp4},
};

int main(int count, char **arguments) {
    if (count != 6) {
        fputs("decoder FORMAT PAYLOAD SHAPE OUTPUT DTYPE\n", stderr);
        return 2;
    }
    int half = strcmp(arguments[5], "float16") == 0;
    if (!half && strcmp(arguments[5], "float32") != 0) return NOT_IMPLEMENTED;
    size_t kind = 0, kinds_count = sizeof kinds / sizeof *kinds;
    while (kind < kinds_count && strcmp(arguments[1], kinds[kind].name) != 0) kind++;
    if (kind == kinds_count) return NOT_IMPLEMENTED;
    FILE *in = fopen(arguments[2], "rb"), *out = fopen(arguments[4], "wb");
    if (in == NULL || out == NULL) {
        perror("decoder");
        return 1;
    }
    uint8_t block[144];
    float values[256];
    while (fread(block, kinds[kind].bytes, 1, in) == 1) {
        kinds[kind].decode(block, values);
        for (size_t j = 0; j < kinds[kind].values; j++) {
            uint16_t word = float_to_half(values[j]);
            if (half ? fwrite(&word, 2, 1, out) != 1 : fwrite(&values[j], 4, 1, out) != 1) return 1;
        }
    }
    fclose(in);
    return fclose(out) == 0 ? 0 : 1;
}
