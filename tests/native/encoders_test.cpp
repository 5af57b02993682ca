// Runs every encoder of every instruction set this processor has over random rows in buffers of the exact size, so that
// the sanitizers see each read and write, and compares the sets with each other in every bit. That the words are right is
// tested from Python, against the NumPy path.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cpu.hpp"
#include "encode.hpp"

namespace {

using namespace quantform;
using Bytes = std::vector<std::uint8_t>;

int failures = 0;
std::mt19937 source(1);

void check(bool right, const char* what, const char* set, std::size_t columns) {
    if (right) return;
    std::fprintf(stderr, "%s: set %s, %zu columns\n", what, set, columns);
    ++failures;
}

/// Rows of random finite numbers of a type, `offset` bytes into their memory and with a gap between the rows.
struct Matrix {
    Matrix(std::size_t rows, std::size_t columns, Number number, std::size_t offset)
        : bytes(number_bytes(number)), stride(columns * bytes + offset), memory(new std::uint8_t[rows * stride]) {
        std::normal_distribution<float> normal(0.0F, 0.02F);
        for (std::size_t i = 0; i < rows * stride; ++i) memory[i] = 0xA5;
        for (std::size_t row = 0; row < rows; ++row) {
            for (std::size_t column = 0; column < columns; ++column) {
                const float value = source() % 16 == 0 ? 0.0F : normal(source);
                std::uint8_t word[4];
                std::memcpy(word, &value, sizeof word);
                if (number == Number::float16) word[3] &= 0xBB;  // any finite words do
                const std::uint8_t* const upper = bytes == 2 ? word + 2 : word;
                std::memcpy(memory.get() + row * stride + offset + column * bytes, upper, bytes);
            }
        }
        values = {memory.get() + offset, static_cast<std::ptrdiff_t>(stride), columns, number};
    }
    void set(std::size_t row, std::size_t column, std::uint32_t word) {
        const std::uint16_t upper = static_cast<std::uint16_t>(word >> 16);
        std::uint8_t* const at = const_cast<std::uint8_t*>(values.data) + row * stride + column * bytes;
        if (bytes == 2) std::memcpy(at, &upper, 2);
        else std::memcpy(at, &word, 4);
    }
    std::size_t bytes, stride;
    std::unique_ptr<std::uint8_t[]> memory;
    Values values;
};

/// Outputs of exact sizes.
struct Planes {
    explicit Planes(std::initializer_list<std::size_t> sizes) {
        for (const std::size_t size : sizes) plane.emplace_back(size, 0xA5);
    }
    std::vector<Bytes> plane;
};

/// Runs an encoder of every set and compares; `run(set, planes, threads)`.
template <class Run>
void compare(const char* what, const Planes& blank, std::size_t columns, const Run& run) {
    Planes expected = blank;
    check(run(portable::kernels, expected, 1), what, "portable", columns);
    for (const KernelSet* set : usable_sets()) {
        Planes found = blank;
        check(run(*set, found, 3) && found.plane == expected.plane, what, set->name, columns);
    }
}

std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

void test_grouped(const Matrix& matrix, std::size_t rows) {
    const std::size_t columns = matrix.values.columns, lanes = round_up(columns, 128);
    for (int number = 0; number < grouped_formats; ++number) {
        const auto format = static_cast<Grouped>(number);
        const std::size_t group = group_size(format), groups = round_up(columns, group) / group, bits = code_bits(format);
        const std::size_t low = bits == 8 ? lanes : lanes / 2, high = bits == 8 ? 0 : lanes * (bits - 4) / 8;
        std::vector<double> importance(groups * group);
        for (std::size_t i = 0; i < columns; ++i) importance[i] = std::ldexp(1.0, static_cast<int>(source() % 2000) - 1000);
        for (std::size_t i = 0; i < columns && columns % 2 == 0; ++i) importance[i] = i % 7 == 0 ? 0 : 1.5;
        for (const bool packed : {false, true}) {
            const Planes blank = packed ? Planes{rows * low, rows * high, rows * lanes / group * 2}
                                        : Planes{rows * columns, 0, rows * groups * 2};
            for (int kind = 0; kind < 4; ++kind) {
                const GroupedJob job{format, packed, kind > 0, kind == 3, kind > 1 ? importance.data() : nullptr};
                compare("grouped", blank, columns, [&](const KernelSet& set, Planes& out, std::size_t threads) {
                    Rows at[3];
                    for (std::size_t i = 0; i < 3; ++i) {
                        at[i] = {out.plane[i].data(), out.plane[i].size() / std::max<std::size_t>(1, rows)};
                    }
                    return encode_grouped(set, job, matrix.values, rows, {at[0], at[1], at[2]}, threads);
                });
            }
        }
    }
}

void test_rows(const Matrix& matrix, std::size_t rows) {
    const std::size_t columns = matrix.values.columns, record = columns + 2;
    for (const RowScale scale : {RowScale::bfloat16, RowScale::float16}) {
        compare("rows", Planes{rows * record}, columns, [&](const KernelSet& set, Planes& out, std::size_t threads) {
            std::uint8_t* const to = out.plane[0].data();
            return encode_rows(set, scale, matrix.values, rows, {{to, record}, {to + columns, record}}, threads);
        });
    }
    for (const KernelSet* set : usable_sets()) {
        const float expected = largest_magnitude(portable::kernels, matrix.values, rows, 1);
        check(largest_magnitude(*set, matrix.values, rows, 3) == expected, "largest", set->name, columns);
    }
}

void test_nvfp4(const Matrix& matrix, std::size_t rows) {
    const std::size_t columns = matrix.values.columns;
    for (const bool tiled : {false, true}) {
        if (tiled && columns % 64 != 0) continue;
        const std::size_t shift = tiled ? 128 - rows : 0;  // the last rows of a tile
        const Planes blank{rows * columns / 2, (rows + shift) * columns / 16};
        compare("nvfp4", blank, columns, [&](const KernelSet& set, Planes& out, std::size_t threads) {
            const Nvfp4Rows to{{out.plane[0].data(), columns / 2}, out.plane[1].data(), shift, tiled};
            return encode_nvfp4(set, 30000.0F, matrix.values, rows, to, threads);
        });
    }
}

/// Values that no format has are reported, wherever they are.
void test_refusals() {
    const std::uint32_t infinity = 0x7F800000, negative = 0xFF800000, nan = 0x7FC00000;
    for (const KernelSet* set : usable_sets()) {
        for (const std::size_t columns : {1U, 16U, 17U, 64U, 2000U}) {
            for (const std::uint32_t word : {infinity, negative, nan}) {
                Matrix matrix(3, columns, columns % 2 == 0 ? Number::float32 : Number::bfloat16, 1);
                matrix.set(2, columns - 1, word);
                Planes out{3 * columns, 6};
                const Rows codes{out.plane[0].data(), columns};
                Bytes words(3 * std::max<std::size_t>(2, columns));
                const GroupedJob job{Grouped::q4, false, true, true, nullptr};
                const GroupedRows groups{codes, {}, {words.data(), words.size() / 3}};
                check(!encode_grouped(*set, job, matrix.values, 3, groups, 2), "grouped refusal", set->name, columns);
                check(!encode_rows(*set, RowScale::bfloat16, matrix.values, 3, {codes, {out.plane[1].data(), 2}}, 2),
                      "rows refusal", set->name, columns);
                check(!std::isfinite(largest_magnitude(*set, matrix.values, 3, 1)), "largest refusal", set->name, columns);
                if (columns % 16 == 0) {
                    check(!encode_nvfp4(*set, 1.0F, matrix.values, 3, {codes, words.data(), 0, false}, 1), "nvfp4 refusal",
                          set->name, columns);
                }
            }
        }
    }
}

/// Another thread changes the values meanwhile: whatever the words are then, every read and write stays where it belongs.
void test_changing_values() {
    constexpr std::size_t rows = 8, columns = 1024;
    const Matrix matrix(rows, columns, Number::float32, 0);
    auto* const words = reinterpret_cast<volatile std::uint32_t*>(matrix.memory.get());
    const std::vector<std::uint32_t> before(words, words + rows * columns);
    std::atomic<bool> done{false};
    std::thread other([&] {
        while (!done.load(std::memory_order_relaxed)) {
            for (std::size_t i = 0; i < rows * columns; ++i) words[i] = 0;
            for (std::size_t i = 0; i < rows * columns; ++i) words[i] = before[i];
        }
    });
    Bytes codes(rows * columns), scales(rows * columns / 32 * 2);
    for (const KernelSet* set : usable_sets()) {
        for (int number = 0; number < 20 * grouped_formats; ++number) {
            const auto format = static_cast<Grouped>(number % grouped_formats);
            const GroupedRows to{{codes.data(), columns}, {}, {scales.data(), columns / group_size(format) * 2}};
            encode_grouped(*set, {format, false, true, true, nullptr}, matrix.values, rows, to, 1);
        }
    }
    done.store(true);
    other.join();
}

}  // namespace

int main() {
    for (const std::size_t columns : {1U, 15U, 16U, 17U, 32U, 63U, 64U, 65U, 128U, 130U, 192U, 1024U, 1025U, 2064U}) {
        for (int number = 0; number < numbers; ++number) {
            for (const std::size_t rows : {0U, 1U, 5U}) {
                const Matrix matrix(rows, columns, static_cast<Number>(number), columns % 3);
                test_grouped(matrix, rows);
                test_rows(matrix, rows);
                if (columns % 16 == 0) test_nvfp4(matrix, rows);
            }
        }
    }
    test_refusals();
    test_changing_values();
    const Matrix many(700, 1000, Number::float32, 0);  // more than one thread takes
    test_rows(many, 700);
    for (const KernelSet* set : usable_sets()) std::printf("tested: %s\n", set->name);
    return failures == 0 ? 0 : 1;
}
