// NVFP4: values times the tensor's divisor, an E4M3FN scale for 16 of them, E2M1 codes.
#pragma once

#include "encode_lanes.hpp"

namespace quantform::QUANTFORM_SET {

constexpr size_t nvfp4_group = 16, nvfp4_batch = 16;

/// Where the scale of a group stands in tiles of 128 rows and four groups.
QF_INLINE size_t tiled_scale(size_t row, size_t group, size_t groups) {
    return (row / 128 * (groups / 4) + group / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + group % 4;
}

/// The E4M3FN words of sixteen groups' scales by their largest magnitudes, and the values of the words.
QF_INLINE Floats nvfp4_scales(const u32* largest, u8* to) {
    const Floats raw = floats_at(reinterpret_cast<const u8*>(largest)) / splat(6.0F);
    WordLanes words;
    Floats values;
    for (int i = 0; i < parts; ++i) {
        words.part[i] = e4m3fn(raw.part[i]);
        // A normal word's fields are a binary32 number's, 2^-120 times as large; so are those of a subnormal one.
        values.part[i] = (FloatPart)((WordPart)words.part[i] << 20) * 0x1p120F;
    }
    const Bytes bytes = narrow(words);
    std::memcpy(to, &bytes, sizeof bytes);
    return values;
}

static bool encode_nvfp4(const Values& values, float divisor, const Nvfp4Rows& out, size_t first, size_t end) {
    const size_t groups = values.columns / nvfp4_group;
    Stage stage;
    alignas(64) float scaled[nvfp4_group * nvfp4_batch], multipliers[nvfp4_batch];
    for (size_t row = first; row < end; ++row) {
        const u8* const source = row_at(values, row);
        u8* const codes = out.codes.data + row * out.codes.stride;
        for (size_t group = 0; group < groups; group += nvfp4_batch) {
            const size_t count = groups - group < nvfp4_batch ? groups - group : nvfp4_batch;
            const size_t columns = nvfp4_group * count;
            const u8* const some = staged(values, source, nvfp4_group * group, columns, columns, stage);
            alignas(64) u32 highest[nvfp4_batch] = {};
            for (size_t i = 0; i < count; ++i) {
                const Floats products = floats_at(some + 4 * nvfp4_group * i) * splat(divisor);
                store(scaled + nvfp4_group * i, products);
                highest[i] = largest(magnitudes(products));
                if (highest[i] >= 0x7F800000U) return false;
            }
            u8 words[nvfp4_batch];
            store(multipliers, nvfp4_scales(highest, words));
            Bytes nibbles[nvfp4_batch] = {};
            for (size_t i = 0; i < count; ++i) {
                if (multipliers[i] == 0) continue;  // its codes are positive zeros
                const Floats ratios = load_floats(scaled + nvfp4_group * i) / splat(multipliers[i]);
                WordLanes lanes;
                for (int part = 0; part < parts; ++part) lanes.part[part] = e2m1(ratios.part[part]);
                nibbles[i] = narrow(lanes);
            }
            u8* const to = codes + nvfp4_group / 2 * group;
            for (size_t i = 0; i < count; i += 2) {
                const Bytes joined = join_nibbles(nibbles[i], i + 1 < count ? nibbles[i + 1] : Bytes{});
                std::memcpy(to + nvfp4_group / 2 * i, &joined, i + 1 < count ? 16 : 8);
            }
            if (!out.tiled) {
                std::memcpy(out.scales + (out.scale_row + row) * groups + group, words, count);
            } else {
                for (size_t i = 0; i < count; i += 4) {  // rows of tiles are whole
                    std::memcpy(out.scales + tiled_scale(out.scale_row + row, group + i, groups), words + i, 4);
                }
            }
        }
    }
    return true;
}

}  // namespace quantform::QUANTFORM_SET
