// Row-scaled FP8 (Section 3.4): values in bfloat16, one 16-bit multiplier a row, E4M3FN codes.
#pragma once

#include "encode_lanes.hpp"

namespace quantform::QUANTFORM_SET {

/// Finite binary32 numbers rounded to bfloat16.
QF_INLINE FloatPart bfloat16_values(FloatPart values) {
    const WordPart bits = (WordPart)values;
    return (FloatPart)((bits + (bits >> 16 & 1U) + 0x7FFFU) & 0xFFFF0000U);
}

/// The word of the largest magnitude of `count` values of a row.
QF_INLINE u32 largest_of_row(const Values& values, const u8* row, Stage& stage) {
    Words words{};
    for (size_t at = 0; at < values.columns; at += stage_values) {
        const size_t left = values.columns - at, count = left < stage_values ? left : stage_values;
        const size_t padded = (count + 15) / 16 * 16;
        const u8* const some = staged(values, row, at, count, padded, stage);
        for (size_t lane = 0; lane < padded; lane += 16) words = larger(words, magnitudes(floats_at(some + 4 * lane)));
    }
    return largest(words);
}

static u32 largest_of_rows(const Values& values, size_t first, size_t end) {
    Stage stage;
    u32 most = 0;
    for (size_t row = first; row < end; ++row) {
        const u32 word = largest_of_row(values, row_at(values, row), stage);
        most = word > most ? word : most;
    }
    return most;
}

/// The multiplier's word for a row by its largest magnitude: above the infinity's where it does not fit, and 0 for zeros.
template <RowScale kind>
QF_INLINE u16 row_scale(float largest) {
    u8 words[32];
    const Floats raw = splat(largest) / splat(448.0F);
    if constexpr (kind == RowScale::bfloat16) {
        store(reinterpret_cast<BFloat16*>(words), raw);
    } else {
        store(reinterpret_cast<Float16*>(words), raw);
    }
    const u16 word = load<u16>(words);
    return word == 0 && largest != 0 ? 1 : word;
}

template <RowScale kind>
static bool encode_rows(const Values& values, const RowScaledRows& out, size_t first, size_t end) {
    Stage stage;
    for (size_t row = first; row < end; ++row) {
        const u8* const source = row_at(values, row);
        u8* const codes = out.codes.data + row * out.codes.stride;
        // Rounding keeps the order, so that the largest value has the largest rounded one. Beyond the finite words it ends
        // at infinity or a NaN.
        const u32 bits = largest_of_row(values, source, stage);
        if (bits > 0x7F800000U) return false;
        const float most = bfloat16_values(splat_part(float_of(bits)))[0];
        const u16 word = row_scale<kind>(most);
        const float scale = kind == RowScale::bfloat16 ? float_of(static_cast<u32>(word) << 16) : half(word);
        const float inverse = word == 0 ? 0.0F : 1.0F / scale;
        if (!(scale <= 0x1.fffffep127F) || !(most * inverse <= 0x1.fffffep127F)) return false;
        std::memcpy(out.scales.data + row * out.scales.stride, &word, sizeof word);
        if (word == 0) {
            std::memset(codes, 0, values.columns);
            continue;
        }
        for (size_t at = 0; at < values.columns; at += stage_values) {
            const size_t left = values.columns - at, count = left < stage_values ? left : stage_values;
            const size_t padded = (count + 15) / 16 * 16;
            const u8* const some = staged(values, source, at, count, padded, stage);
            for (size_t lane = 0; lane < padded; lane += 16) {
                const Floats sixteen = floats_at(some + 4 * lane);
                WordLanes words;
                for (int i = 0; i < parts; ++i) words.part[i] = e4m3fn(bfloat16_values(sixteen.part[i]) * inverse);
                const Bytes bytes = narrow(words);
                std::memcpy(codes + at + lane, &bytes, count - lane < 16 ? count - lane : 16);
            }
        }
    }
    return true;
}

}  // namespace quantform::QUANTFORM_SET
