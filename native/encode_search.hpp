// The search for a group's scale: of 68 candidates in a fixed order, the first with the least weighted squared error.
//
// Errors are binary64 sums whose order is part of the method: lanes are folded in halves. Most candidates are far from
// the best, though, and a sum in binary32 with a bound on its error shows that. So all candidates that are known
// beforehand are looked at in binary32, one a lane; only those that the bound does not exclude are computed as the method
// says, in order. Which one wins is therefore exactly what the method says.
#pragma once

#include "encode_lanes.hpp"

namespace quantform::QUANTFORM_SET {

// --- binary64 parts -------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int double_lanes = 8;
#elif defined(__AVX2__)
constexpr int double_lanes = 4;
#else
constexpr int double_lanes = 2;
#endif
typedef double DoublePart __attribute__((vector_size(8 * double_lanes)));
typedef float HalfFloats __attribute__((vector_size(4 * double_lanes)));

QF_INLINE DoublePart widened(const u8* from) {
    const HalfFloats values = load<HalfFloats>(from);
#if defined(__AVX512F__)
    return (DoublePart)_mm512_maskz_cvtps_pd(0xFF, (__m256)values);
#elif defined(__AVX2__)
    return (DoublePart)_mm256_cvtps_pd((__m128)values);
#else
    return __builtin_convertvector(values, DoublePart);
#endif
}
QF_INLINE DoublePart widened(const float* from) { return widened(reinterpret_cast<const u8*>(from)); }

template <class Q>
struct Doubles {
    static constexpr size_t count = Q::group / double_lanes;
    DoublePart part[count];
};

/// The sum of all lanes, halves onto halves; the terms are overwritten.
template <class Q>
QF_INLINE double folded(Doubles<Q>& terms) {
    for (size_t half = Doubles<Q>::count / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; ++i) terms.part[i] = terms.part[i] + terms.part[i + half];
    }
    double lanes[double_lanes];
    std::memcpy(lanes, &terms.part[0], sizeof lanes);
    for (int half = double_lanes / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
    }
    return lanes[0];
}

// --- candidates -----------------------------------------------------------------------------------------------------

constexpr u16 sign_bit = 0x8000, largest_half = 0x7BFF;
constexpr int ratios = 25;

/// 0.70, 0.72, ... 1.18, each the binary64 number nearest to it; room for whole vectors.
struct Ratios {
    double value[32];
};
constexpr Ratios make_ratios() {
    Ratios table{};
    for (int i = 0; i < ratios; ++i) table.value[i] = static_cast<double>(70 + 2 * i) / 100.0;
    return table;
}
constexpr Ratios ratio_table = make_ratios();

/// The word of a binary32 number in binary16.
QF_INLINE u16 half_word(float value) {
#if defined(__F16C__)
    return static_cast<u16>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
    return static_cast<u16>(to_half(splat_part(value))[0]);
#endif
}

/// binary64 to binary32 to binary16; what is lost to zero becomes the smallest scale of its sign.
QF_INLINE u16 rounded_scale(double value) {
    const u16 word = half_word(static_cast<float>(value));
    return (word & ~sign_bit) == 0 && value != 0 ? static_cast<u16>(word | 1) : word;
}

/// The scale `step` magnitude words away, its sign kept; zero where there is none.
QF_INLINE u16 neighbour(u16 scale, int step) {
    const int magnitude = scale & 0x7FFF, moved = magnitude + step;
    if (magnitude == 0 || moved < 1 || moved > largest_half) return 0;
    return static_cast<u16>(moved | (scale & sign_bit));
}

/// A group's beginning: its `grouped_absmax` scale.
template <class Q>
struct Candidate {
    const u8* values;  ///< binary32, a whole group, which nobody changes
    u32 largest;       ///< the word of the largest magnitude, finite and not zero
    u16 start;         ///< the scale's word, finite and positive
};

/// A group, and the arithmetic of a candidate on it.
template <class Q>
struct Group {
    const u8* values;
    const double* importance;  ///< of its lanes, or null
    Doubles<Q> exact;

    /// Codes under a scale as binary32 numbers.
    QF_INLINE void codes(const Group& group, float scale, float* to) {
        const float inverse = 1.0F / scale;
        for (size_t at = 0; at < Q::group; at += part_lanes) {
            const FloatPart values = load<FloatPart>(group.values + 4 * at);
            const FloatPart codes = integral(clamped<Q>(values * inverse));
            std::memcpy(to + at, &codes, sizeof codes);
        }
    }

    QF_INLINE DoublePart weights(const Group& group, size_t part) {
        DoublePart weights;
        std::memcpy(&weights, group.importance + part * double_lanes, sizeof weights);
        return weights;
    }

    /// `sum_k imp[k] * (w[k] - s * q[k])^2`
    static double error(const Group& group, float scale) {
        alignas(64) float products[Q::group];
        codes(group, scale, products);
        // A scale has 11 significant bits and a code at most 7: their product is exact in binary32.
        for (float& product : products) product = product * scale;
        Doubles<Q> terms;
        for (size_t i = 0; i < Doubles<Q>::count; ++i) {
            const DoublePart residual = group.exact.part[i] - widened(products + i * double_lanes);
            terms.part[i] = group.importance == nullptr ? residual * residual : weights(group, i) * residual * residual;
        }
        return folded<Q>(terms);
    }

    /// `sum(imp * w * q) / sum(imp * q * q)` for the codes of a scale, rounded; 0 where the codes weigh nothing.
    static u16 least_squares(const Group& group, float scale) {
        alignas(64) float codes_of_scale[Q::group];
        codes(group, scale, codes_of_scale);
        Doubles<Q> above, below;
        for (size_t i = 0; i < Doubles<Q>::count; ++i) {
            const DoublePart code = widened(codes_of_scale + i * double_lanes);
            if (group.importance == nullptr) {
                above.part[i] = group.exact.part[i] * code;
                below.part[i] = code * code;
            } else {
                above.part[i] = weights(group, i) * group.exact.part[i] * code;
                below.part[i] = weights(group, i) * code * code;
            }
        }
        const double divisor = folded<Q>(below);
        // A fit whose weights are all but zero is divided by this rather than by a subnormal.
        constexpr double least_divisor = 1e-300;
        if (!(divisor > 0)) return 0;
        return rounded_scale(folded<Q>(above) / (divisor > least_divisor ? divisor : least_divisor));
    }
};

/// Whether a scale competes.
QF_INLINE bool is_legal(u16 word, bool negative) {
    const u16 magnitude = word & 0x7FFF;
    return magnitude != 0 && magnitude <= largest_half && (negative || word < sign_bit);
}

/// The legal candidates of a group in order, the first one its beginning; room for whole vectors.
struct Candidates {
    static constexpr int most = 96;
    alignas(64) u16 words[most];
    alignas(64) float error[most];
    u16 left[most];  ///< of the words, see `look`
    int count, lefts;

    QF_INLINE void add(Candidates& all, u16 word, bool negative) {
        if (is_legal(word, negative)) all.words[all.count++] = word;
    }

    /// All ratios of a positive scale, rounded as `rounded_scale` does, with a sign.
    QF_INLINE void add_ratios(Candidates& all, double whole, u16 sign) {
        float scales[32];
        u16 words[32];
        for (int i = 0; i < 32; ++i) scales[i] = static_cast<float>(whole * ratio_table.value[i]);
        for (int i = 0; i < 32; i += 16) store(reinterpret_cast<Float16*>(words + i), load_floats(scales + i));
        int legal = 0;  // they grow, so that infinite ones are last
        for (int i = 0; i < ratios; ++i) legal += words[i] <= largest_half;
        for (int i = 0; i < ratios; ++i) words[i] = (words[i] == 0 ? u16{1} : words[i]) | sign;
        std::memcpy(all.words + all.count, words, sizeof(u16) * ratios);
        all.count += legal;
    }
};

template <class Q>
QF_INLINE void first_candidates(const Candidate<Q>& start, const Group<Q>& group, bool negative, Candidates& all) {
    all.count = 0;
    Candidates::add(all, start.start, negative);
    const double largest = static_cast<double>(float_of(start.largest));
    Candidates::add_ratios(all, largest / Q::qmax, 0);
    size_t lane = 0;  // the first of largest magnitude, whose sign is the extreme's
    while (lane < Q::group - 1 && (load<u32>(group.values + 4 * lane) & 0x7FFFFFFFU) != start.largest) ++lane;
    const bool below_zero = load<u32>(group.values + 4 * lane) >> 31 != 0;
    if (below_zero || negative) Candidates::add_ratios(all, largest / -Q::qmin, below_zero ? 0 : sign_bit);
    constexpr double powers[] = {0.25, 0.5, 2.0, 4.0};
    constexpr int steps[] = {-2, -1, 1, 2};
    const double scale = static_cast<double>(half(start.start));
    for (const double power : powers) Candidates::add(all, rounded_scale(scale * power), negative);
    for (const int step : steps) Candidates::add(all, neighbour(start.start, step), negative);
    const u16 fit = Group<Q>::least_squares(group, half(start.start));
    Candidates::add(all, fit, negative);
    const double middle = static_cast<double>(half(fit));
    Candidates::add(all, rounded_scale(middle * 0.5), negative);
    Candidates::add(all, rounded_scale(middle * 2.0), negative);
    for (const int step : steps) Candidates::add(all, neighbour(fit, step), negative);
}

// --- the first look -------------------------------------------------------------------------------------------------

/// Leaves the candidates that may have the least error, in order; errors are binary32, one a lane.
///
/// A residual is computed in steps of the scale, as the difference of the value's ratio, which the codes come from, and the
/// code. The ratio has two roundings, that of the reciprocal and that of the product, so that the residual is off by 2^-23 of
/// the value itself. With 64 lanes and weights below two, the square root of the error (a length) is off by 2^-23 * sqrt(64 * 2)
/// = 2^-19.5 of the largest value, and the lengths of two candidates by 2^-18.5 together; the limit allows 2^-18. Other
/// roundings, 64 additions among them, change an error by less than 2^-16 of it, and what underflows by less than 2^-90.
template <class Q>
static void look(const Candidate<Q>& start, const float* importance, Candidates& all) {
    struct Lane {
        float magnitude;
        u32 negative;
    };
    Lane lanes[Q::group];
    for (size_t lane = 0; lane < Q::group; ++lane) {
        const u32 word = load<u32>(start.values + 4 * lane);
        lanes[lane] = {float_of(word & 0x7FFFFFFFU), word >> 31};
    }
    for (int i = all.count; i < (all.count + 15) / 16 * 16; ++i) all.words[i] = all.words[0];
    Words highest{};
    for (int first = 0; first < all.count; first += 16) {
        const Floats signed_scales = halves_at(reinterpret_cast<const u8*>(all.words + first));
        Floats scales, limits[2];  // of codes by the value's sign
        for (int i = 0; i < parts; ++i) {
            const WordPart words = (WordPart)signed_scales.part[i], below = (WordPart)((SignedPart)words >> 31);
            const WordPart low = (WordPart)splat_part(static_cast<float>(-Q::qmin));
            const WordPart high = (WordPart)splat_part(static_cast<float>(Q::qmax));
            scales.part[i] = (FloatPart)(words & 0x7FFFFFFFU);
            limits[0].part[i] = (FloatPart)((low & below) | (high & ~below));
            limits[1].part[i] = (FloatPart)((high & below) | (low & ~below));
        }
        const Floats inverses = splat(1.0F) / scales;
        const auto add = [&](Floats& sums, size_t lane) __attribute__((always_inline)) {
            const FloatPart value = splat_part(lanes[lane].magnitude);
            const Floats& limit = limits[lanes[lane].negative];
            for (int i = 0; i < parts; ++i) {
                const FloatPart ratio = value * inverses.part[i];
                const FloatPart residual = ratio - smaller(integral(ratio), limit.part[i]);
                const FloatPart square = residual * residual;
                sums.part[i] = sums.part[i] + (importance == nullptr ? square : square * importance[lane]);
            }
        };
        Floats even = splat(0.0F), odd = splat(0.0F);  // neither sum waits for the other
        for (size_t lane = 0; lane < Q::group; lane += 2) {
            add(even, lane);
            add(odd, lane + 1);
        }
        const Floats errors = (even + odd) * scales * scales;
        store(all.error + first, errors);
        // Errors are not negative, so that they are in the order of their words.
        for (int i = 0; i < parts; ++i) highest.part[i] = larger(highest.part[i], 0x7FFFFFFFU - (WordPart)errors.part[i]);
    }
    const float least = float_of(0x7FFFFFFFU - largest(highest));
    const float length = __builtin_sqrtf(least) + float_of(start.largest) * 0x1p-18F;
    const float limit = length * length * (1.0F + 0x1p-14F) + 0x1p-90F;
    all.lefts = 0;
    for (int first = 0; first < all.count; first += 16) {
        u32 bits = at_most(load_floats(all.error + first), limit);
        if (all.count - first < 16) bits &= (1U << (all.count - first)) - 1;
        for (; bits != 0; bits &= bits - 1) all.left[all.lefts++] = all.words[first + __builtin_ctz(bits)];
    }
}
/// Words of the largest magnitudes, 2^-20 and 2^20, between which the bound holds.
constexpr u32 least_ordinary = 0x35800000, most_ordinary = 0x49800000;

// --- the search -----------------------------------------------------------------------------------------------------

/// The best scale of a group, the `number`th in its row.
template <class Q>
[[gnu::noinline]] static u16 search_scale(const Candidate<Q>& start, const Search& search, size_t number) {
    const Weights weights = search.kind == nullptr ? Weights::ordinary : static_cast<Weights>(search.kind[number]);
    if (weights == Weights::none) return start.start;
    Group<Q> group;
    group.values = start.values;
    group.importance = search.importance == nullptr ? nullptr : search.importance + number * Q::group;
    for (size_t i = 0; i < Doubles<Q>::count; ++i) group.exact.part[i] = widened(start.values + 4 * i * double_lanes);
    Candidates all;
    first_candidates<Q>(start, group, search.negative, all);
    const u16* words = all.words;
    int count = all.count;
    if (weights == Weights::ordinary && start.largest >= least_ordinary && start.largest <= most_ordinary) {
        look<Q>(start, search.rounded == nullptr ? nullptr : search.rounded + number * Q::group, all);
        words = all.left, count = all.lefts;
    }
    u16 best = words[0];
    double least = Group<Q>::error(group, half(best));
    const auto compete = [&](u16 word) {
        if (word == best) return;
        const double error = Group<Q>::error(group, half(word));
        if (error < least) best = word, least = error;
    };
    for (int i = 1; i < count; ++i) compete(words[i]);
    const u16 refit = Group<Q>::least_squares(group, half(best));
    const u16 last[] = {refit, neighbour(refit, -1), neighbour(refit, 1)};
    for (const u16 word : last) {
        if (is_legal(word, search.negative)) compete(word);
    }
    return best;
}

}  // namespace quantform::QUANTFORM_SET
