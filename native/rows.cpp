#include "rows.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "threads.hpp"

namespace quantform {
namespace {

constexpr std::size_t most_unit_values = 256;
constexpr std::size_t tile_rows = 128, tile_scale_bytes = 512;

/// A kernel's numbers, whichever kind it is of.
struct Unit {
    std::size_t values, codes, high, scales, scale_step, scale_words;

    explicit Unit(const StoredRows& rows) {
        if (rows.packed != nullptr) {
            values = static_cast<std::size_t>(rows.packed->values), codes = static_cast<std::size_t>(rows.packed->bytes);
            high = scales = scale_step = 0, scale_words = 1;
        } else {
            const RowKernel& kernel = *rows.kernel;
            values = static_cast<std::size_t>(kernel.values), codes = static_cast<std::size_t>(kernel.code_bytes);
            high = static_cast<std::size_t>(kernel.high_bytes), scales = static_cast<std::size_t>(kernel.scale_bytes);
            scale_words = static_cast<std::size_t>(kernel.scales);
            scale_step = kernel.one_scale ? 0 : rows.tiled ? tile_scale_bytes : scales;
        }
    }

    /// Of `bytes` a unit those that the first `columns` values of one need.
    std::size_t part(std::size_t bytes, std::size_t columns) const { return (columns * bytes + values - 1) / values; }
    std::size_t scale_part(std::size_t columns) const { return part(scale_words, columns) * (scales / scale_words); }
};

/// The last unit of a row where not all of it may be read: its words, followed by zeros.
struct Copied {
    std::uint8_t codes[most_unit_values] = {};
    std::uint8_t high[most_unit_values] = {};
    std::uint8_t scales[most_unit_values] = {};
};

RowWords words_at(const StoredRows& rows, const Unit& unit, std::size_t row, std::size_t at) {
    const std::size_t number = rows.chosen != nullptr ? static_cast<std::size_t>(rows.chosen[row]) : rows.first + row;
    const auto in = [](const RowPlane& plane, std::size_t line, std::size_t offset) {
        if (plane.first == nullptr) return plane.first;
        return plane.first + static_cast<std::ptrdiff_t>(line) * plane.stride + offset;
    };
    RowWords words{in(rows.codes, number, at * unit.codes), in(rows.high, number, at * unit.high), nullptr,
                   unit.scale_step, 1.0F};
    if (rows.tiled) {
        words.scales = in(rows.scales, number / tile_rows,
                          at * unit.scale_step + number % 32 * 16 + number % tile_rows / 32 * 4);
    } else {
        words.scales = in(rows.scales, number, at * unit.scale_step);
    }
    if (rows.divisors != nullptr) words.divisor = rows.divisors[number / rows.divisor_rows];
    return words;
}

/// Calls `visit(words, units, values, place)` for units `first` to `end`, those of all rows counted one after another:
/// runs of whole units, and the rest of a row alone. `place` is where the first value belongs in the output.
template <class Visit>
void for_units(const StoredRows& rows, const Unit& unit, std::size_t first, std::size_t end, const Visit& visit) {
    const std::size_t whole = rows.columns / unit.values, rest = rows.columns % unit.values;
    const std::size_t units = whole + (rest != 0);
    std::size_t row = first / units, at = first % units;
    for (; first < end; ++row, at = 0) {
        const std::size_t stop = std::min(units, at + end - first);
        first += stop - at;
        const std::size_t place = row * rows.columns;
        if (at < std::min(stop, whole)) {
            const std::size_t run = std::min(stop, whole) - at;
            visit(words_at(rows, unit, row, at), run, run * unit.values, place + at * unit.values);
        }
        if (stop <= whole) continue;
        RowWords words = words_at(rows, unit, row, whole);
        Copied copied;
        const auto extend = [&](const std::uint8_t*& from, std::uint8_t* to, const RowPlane& plane, std::size_t bytes,
                                std::size_t part) {
            if (from == nullptr || plane.width >= units * bytes) return;
            std::memcpy(to, from, part);
            from = to;
        };
        extend(words.codes, copied.codes, rows.codes, unit.codes, unit.part(unit.codes, rest));
        extend(words.high, copied.high, rows.high, unit.high, unit.part(unit.high, rest));
        extend(words.scales, copied.scales, rows.scales, unit.scale_step, unit.scale_part(rest));
        visit(words, 1, rest, place + whole * unit.values);
    }
}

std::size_t total_units(const StoredRows& rows, const Unit& unit) {
    return rows.count * ((rows.columns + unit.values - 1) / unit.values);
}

/// Decodes with `kernel(words, units, out)`; `past` is the same past the caches, or null.
template <class Kernel>
void decode_with(const KernelSet& set, const StoredRows& rows, Output output, std::uint8_t* out, Stores stores,
                 std::size_t threads, const Kernel& kernel, DecodeUnits past) {
    const Unit unit(rows);
    const std::size_t width = output_bytes(output), bytes = unit.values * width;
    const std::size_t total = rows.count * rows.columns * width;
    const bool streamed = past_caches(stores, total);
    constexpr std::size_t line = 64;
    if (reinterpret_cast<std::uintptr_t>(out) % line != 0 || rows.columns * width % line != 0) past = nullptr;
    const std::size_t piece = std::max<std::size_t>(1, piece_bytes / bytes), step = stage_bytes / bytes;
    const std::size_t units = rows.columns / unit.values + (rows.columns % unit.values != 0);
    split(total_units(rows, unit), piece, useful_threads(threads, total), [&](std::size_t first, std::size_t end) {
        // Straight to the output, but for units of which a row has only a part.
        const auto directly = [&](const auto& decode_run, const auto& store_rest) {
            for_units(rows, unit, first, end,
                      [&](const RowWords& words, std::size_t run, std::size_t values, std::size_t place) {
                          std::uint8_t* const to = out + place * width;
                          if (values == run * unit.values) {
                              decode_run(words, run, to);
                          } else {
                              std::uint8_t whole[most_unit_values * sizeof(double)];
                              kernel(words, run, whole);
                              store_rest(whole, values * width, to);
                          }
                      });
        };
        if (!streamed) {
            directly(kernel, [](const std::uint8_t* from, std::size_t count, std::uint8_t* to) {
                std::memcpy(to, from, count);
            });
            return;
        }
        if (past != nullptr) {
            directly(past, set.stream);
            set.fence();
            return;
        }
        Stage stage(set, out + (first / units * rows.columns + first % units * unit.values) * width);
        for_units(rows, unit, first, end, [&](RowWords words, std::size_t run, std::size_t values, std::size_t) {
            for (; run > step; run -= step, values -= step * unit.values) {
                kernel(words, step, stage.room(step * bytes));
                stage.add(step * bytes);
                words.codes += step * unit.codes;
                if (words.high != nullptr) words.high += step * unit.high;
                if (words.scales != nullptr) words.scales += step * unit.scale_step;
            }
            kernel(words, run, stage.room(run * bytes));
            stage.add(values * width);
        });
    });
}

}  // namespace

RowBytes row_bytes(const StoredRows& rows) {
    const Unit unit(rows);
    const std::size_t columns = rows.columns, whole = columns / unit.values, rest = columns % unit.values;
    const auto bytes = [&](std::size_t each) { return whole * each + unit.part(each, rest); };
    const std::size_t scales = unit.scale_step == 0 ? unit.scales : whole * unit.scale_step + unit.scale_part(rest);
    return {bytes(unit.codes), bytes(unit.high), scales};
}

void decode(const KernelSet& set, const StoredRows& rows, Output output, std::uint8_t* out, Stores stores,
            std::size_t threads) {
    if (rows.packed != nullptr) {
        const DecodeBlocks kernel = rows.packed->decode[static_cast<int>(output)];
        const auto blocks = [kernel](const RowWords& words, std::size_t units, std::uint8_t* to) {
            kernel(words.codes, units, to);
        };
        decode_with(set, rows, output, out, stores, threads, blocks, nullptr);
    } else {
        decode_with(set, rows, output, out, stores, threads, rows.kernel->decode[static_cast<int>(output)],
                    rows.kernel->stream[static_cast<int>(output)]);
    }
}

bool legal(const StoredRows& rows, std::size_t threads) {
    const Unit unit(rows);
    const std::size_t total = total_units(rows, unit), bytes = unit.codes + unit.high + unit.scales;
    std::atomic<bool> all{true};
    const std::size_t piece = std::max<std::size_t>(1, piece_bytes / bytes);
    split(total, piece, useful_threads(threads, total * bytes), [&](std::size_t first, std::size_t end) {
        if (!all.load(std::memory_order_relaxed)) return;
        for_units(rows, unit, first, end, [&](const RowWords& words, std::size_t run, std::size_t, std::size_t) {
            if (!rows.kernel->legal(words, run)) all.store(false, std::memory_order_relaxed);
        });
    });
    return all.load();
}

}  // namespace quantform
