// Grouped integers: a group's scale by its largest magnitude (Section 7.2) or by search, its codes, and their packing.
#pragma once

#include "encode_search.hpp"

namespace quantform::QUANTFORM_SET {

/// Groups whose scales are worked out together, one a lane.
constexpr size_t batch = 16;

struct GroupScales {
    alignas(64) u16 words[batch];
    Floats inverses;  ///< rounded reciprocals, and zero for a zero scale
};

/// The reciprocals that go with binary16 words.
QF_INLINE Floats inverses_of(const u16* words) {
    const Floats scales = halves_at(reinterpret_cast<const u8*>(words));
    Floats inverses = splat(1.0F) / scales;
    for (int i = 0; i < parts; ++i) {
        inverses.part[i] = (FloatPart)((WordPart)inverses.part[i] & (WordPart)(scales.part[i] != FloatPart{}));
    }
    return inverses;
}

/// The binary16 words of sixteen groups by their largest magnitudes, which stand there as binary32 words. A group that has
/// no scale gets one above the largest finite word.
template <class Q>
QF_INLINE void absmax_scales(const u32* largest, u16* words) {
    store(reinterpret_cast<Float16*>(words),
          floats_at(reinterpret_cast<const u8*>(largest)) / splat(static_cast<float>(Q::qmax)));
    for (size_t i = 0; i < batch; ++i) words[i] = words[i] == 0 && largest[i] != 0 ? 1 : words[i];
}

/// The codes of sixteen values.
template <class Q>
QF_INLINE Bytes codes_of(Floats values, float inverse) {
    WordLanes codes;
    for (int i = 0; i < parts; ++i) {
        codes.part[i] = integers(clamped<Q>(values.part[i] * inverse));
    }
    return narrow(codes);
}

/// The codes of a whole group as row_split_k128_v1 has them.
template <class Q>
QF_INLINE void put_packed(const Bytes* codes, u8* low, u8* high) {
    if constexpr (Q::bits == 8) {
        for (int i = 0; i < 2; ++i) std::memcpy(low + 16 * i, &codes[i], sizeof codes[i]);
    } else {
        for (int i = 0; i < 2; ++i) {
            const Bytes nibbles = join_nibbles(codes[2 * i], codes[2 * i + 1]);
            std::memcpy(low + 16 * i, &nibbles, sizeof nibbles);
        }
        if constexpr (Q::bits == 5) {
            for (int i = 0; i < 4; ++i) {
                const u16 bits = join_bits(codes[i]);
                std::memcpy(high + 2 * i, &bits, sizeof bits);
            }
        } else if constexpr (Q::bits == 6) {
            const Bytes pairs = join_pairs(codes);
            std::memcpy(high, &pairs, sizeof pairs);
        }
    }
}

/// Consecutive groups of a row.
struct Batch {
    const u8* values;  ///< binary32, of `groups` whole groups
    size_t groups;     ///< at most `batch`
    size_t first;      ///< the first one's number in the row
};

template <class Q>
QF_INLINE bool batch_scales(const Batch& some, const Search* search, GroupScales& scales) {
    alignas(64) u32 highest[batch] = {};
    for (size_t group = 0; group < some.groups; ++group) {
        const u8* const values = some.values + 4 * Q::group * group;
        Words words = magnitudes(floats_at(values));
        for (size_t lane = 16; lane < Q::group; lane += 16) words = larger(words, magnitudes(floats_at(values + 4 * lane)));
        highest[group] = largest(words);
    }
    absmax_scales<Q>(highest, scales.words);
    u16 most = 0;
    for (const u16 word : scales.words) most = word > most ? word : most;
    if (most >= 0x7C00) return false;
    if (search != nullptr) {
        for (size_t group = 0; group < some.groups; ++group) {
            if (highest[group] == 0) continue;
            const Candidate<Q> start{some.values + 4 * Q::group * group, highest[group], scales.words[group]};
            scales.words[group] = search_scale<Q>(start, *search, some.first + group);
        }
    }
    scales.inverses = inverses_of(scales.words);
    return true;
}

/// Bytes of a group in the planes of row_split_k128_v1: low code bits, the other ones.
template <class Q>
constexpr size_t low_bytes = Q::group * (Q::bits == 8 ? 8 : 4) / 8;
template <class Q>
constexpr size_t high_bytes = Q::group * (Q::bits == 8 ? 0 : Q::bits - 4) / 8;

template <class Q, bool packed>
static bool encode_groups(const Values& values, const Search* search, const GroupedRows& out, size_t first, size_t end) {
    constexpr size_t row_multiple = 128;
    const size_t logical = (values.columns + Q::group - 1) / Q::group;
    const size_t extended = (values.columns + row_multiple - 1) / row_multiple * (row_multiple / Q::group);
    const size_t groups = packed ? extended : logical;
    Stage stage;
    GroupScales scales;
    alignas(64) float inverses[batch];
    for (size_t row = first; row < end; ++row) {
        const u8* const source = row_at(values, row);
        u8* const low = out.low.data + row * out.low.stride;
        u8* const high = high_bytes<Q> != 0 && packed ? out.high.data + row * out.high.stride : low;
        u8* const words = out.scales.data + row * out.scales.stride;
        for (size_t group = 0; group < groups; group += batch) {
            const size_t count = groups - group < batch ? groups - group : batch;
            const size_t column = group * Q::group < values.columns ? group * Q::group : values.columns;
            const size_t left = values.columns - column, whole = count * Q::group;
            const size_t there = left < whole ? left : whole;
            // A search reads a group again and again, and what it found at first must still be so.
            const u8* const some = staged(values, source, column, there, whole, stage, search != nullptr);
            if (!batch_scales<Q>({some, count, group}, search, scales)) return false;
            std::memcpy(words + 2 * group, scales.words, 2 * count);
            store(inverses, scales.inverses);
            for (size_t i = 0; i < count; ++i) {
                Bytes codes[Q::group / 16];
                for (size_t part = 0; part < Q::group / 16; ++part) {
                    codes[part] = codes_of<Q>(floats_at(some + 4 * (Q::group * i + 16 * part)), inverses[i]);
                }
                const size_t at = group + i, lanes = left - Q::group * i;
                if constexpr (packed) {
                    put_packed<Q>(codes, low + at * low_bytes<Q>, high + at * high_bytes<Q>);
                } else {
                    std::memcpy(low + at * Q::group, codes, lanes < Q::group ? lanes : Q::group);
                }
            }
        }
    }
    return true;
}

struct Q4 {
    static constexpr size_t group = 64;
    static constexpr int bits = 4, qmin = -8, qmax = 7;
};
struct Q5 {
    static constexpr size_t group = 64;
    static constexpr int bits = 5, qmin = -16, qmax = 15;
};
struct Q6 {
    static constexpr size_t group = 64;
    static constexpr int bits = 6, qmin = -32, qmax = 31;
};
struct Q8 {
    static constexpr size_t group = 32;
    static constexpr int bits = 8, qmin = -127, qmax = 127;
};

}  // namespace quantform::QUANTFORM_SET
