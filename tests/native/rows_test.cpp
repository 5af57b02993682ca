// Runs the kernels for rows of every instruction set this processor has over random planes in buffers of the exact size,
// so that the sanitizers see each read and write, and compares the sets with each other in every bit. That the values
// are right is tested from Python, against the NumPy path.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "checks.hpp"
#include "cpu.hpp"
#include "rows.hpp"
#include "same_numbers.hpp"

namespace {

using namespace quantform;
using Buffer = std::unique_ptr<std::uint8_t[]>;

/// Bytes that begin at a cache line.
struct Lines {
    std::uint8_t* bytes;
    explicit Lines(std::size_t size) : bytes(static_cast<std::uint8_t*>(::operator new(size, std::align_val_t{64}))) {}
    Lines(const Lines&) = delete;
    Lines& operator=(const Lines&) = delete;
    ~Lines() { ::operator delete(bytes, std::align_val_t{64}); }
};

int failures = 0;

void check(bool right, const char* what, const char* set, const char* kernel, std::size_t columns) {
    if (right) return;
    std::fprintf(stderr, "%s: set %s, kernel %s, %zu columns\n", what, set, kernel, columns);
    ++failures;
}

Buffer random_bytes(std::mt19937& random, std::size_t bytes) {
    Buffer buffer(new std::uint8_t[bytes]);
    for (std::size_t i = 0; i < bytes; ++i) buffer[i] = static_cast<std::uint8_t>(random() >> 7);
    return buffer;
}

/// Planes whose rows have just the bytes that they need, or those of whole units.
struct Planes {
    Buffer codes, high, scales;
    std::vector<float> divisors;
    StoredRows rows{};

    Planes(std::mt19937& random, const RowKernel& kernel, std::size_t count, std::size_t columns, bool padded, bool tiled) {
        rows.kernel = &kernel;
        const std::size_t values = static_cast<std::size_t>(kernel.values);
        rows.columns = padded ? (columns + values - 1) / values * values : columns;
        rows.tiled = tiled;
        const RowBytes bytes = row_bytes(rows);
        rows.columns = columns;
        const std::size_t scale_rows = tiled ? count / 128 : count;
        codes = random_bytes(random, count * bytes.codes);
        scales = random_bytes(random, scale_rows * bytes.scales);
        rows.codes = {codes.get(), static_cast<std::ptrdiff_t>(bytes.codes), bytes.codes};
        rows.scales = {scales.get(), static_cast<std::ptrdiff_t>(bytes.scales), bytes.scales};
        if (bytes.high != 0) {
            high = random_bytes(random, count * bytes.high);
            rows.high = {high.get(), static_cast<std::ptrdiff_t>(bytes.high), bytes.high};
        }
        if (std::strcmp(kernel.name, "nvfp4") == 0) {
            divisors = {3.0F, 0x1p-130F};
            rows.divisors = divisors.data();
            rows.divisor_rows = count / 2;
        }
        rows.count = count;
    }
};

/// The same rows for another set's kernel.
StoredRows with(const KernelSet& set, const StoredRows& rows, int kernel) {
    StoredRows other = rows;
    other.kernel = &set.rows[kernel];
    return other;
}

void test_decode(std::mt19937& random, int number, const StoredRows& rows) {
    const char* const name = rows.kernel->name;
    for (int output = 0; output < outputs; ++output) {
        const Output kind = static_cast<Output>(output);
        const std::size_t values = rows.count * rows.columns, size = values * output_bytes(kind);
        const std::size_t offset = random() % 2 == 0 ? 0 : random() % 65;
        const Buffer expected(new std::uint8_t[size]);
        decode(portable::kernels, with(portable::kernels, rows, number), kind, expected.get(), Stores::cached, 1);
        for (const KernelSet* set : usable_sets()) {
            for (const Stores stores : {Stores::automatic, Stores::cached, Stores::streamed}) {
                const Lines lines(size + offset);
                std::uint8_t* const found = lines.bytes;
                std::memset(found, 0xA5, size + offset);
                decode(*set, with(*set, rows, number), kind, found + offset, stores, 3);
                check(same(kind, values, expected.get(), found + offset), "values differ", set->name, name,
                      rows.columns);
                for (std::size_t i = 0; i < offset; ++i) {
                    check(found[i] == 0xA5, "bytes before the output changed", set->name, name, rows.columns);
                }
            }
        }
    }
}

void test_rows(std::mt19937& random) {
    for (int number = 0; number < row_kernels; ++number) {
        const RowKernel& kernel = portable::kernels.rows[number];
        const bool fp4 = std::strcmp(kernel.name, "nvfp4") == 0;
        for (const std::size_t columns : {1U, 16U, 63U, 64U, 65U, 128U, 320U, 1153U}) {
            if (fp4 && columns % 16 != 0) continue;
            const bool tiled = fp4 && columns % 64 == 0;
            for (const bool padded : {false, true}) {
                Planes planes(random, kernel, tiled ? 256 : 6, columns, padded, tiled);
                test_decode(random, number, planes.rows);
                // Backwards, with repeats; then none.
                std::vector<std::int64_t> chosen;
                for (std::size_t row = planes.rows.count; row-- > 0;) chosen.push_back(static_cast<std::int64_t>(row));
                chosen.insert(chosen.end(), {0, 0, static_cast<std::int64_t>(planes.rows.count) - 1});
                planes.rows.chosen = chosen.data(), planes.rows.count = chosen.size();
                test_decode(random, number, planes.rows);
                planes.rows.count = 0;
                test_decode(random, number, planes.rows);
            }
        }
    }
}

/// Random words are hardly ever legal; zeros are, and a planted word is found wherever it is.
void test_legal(std::mt19937& random) {
    for (int number = 0; number < row_kernels; ++number) {
        const RowKernel& kernel = portable::kernels.rows[number];
        if (kernel.legal == nullptr) continue;
        for (const std::size_t columns : {1U, 64U, 129U, 1000U}) {
            for (const bool padded : {false, true}) {
                Planes planes(random, kernel, 7, columns, padded, false);
                const std::size_t codes = 7 * planes.rows.codes.width, scales = 7 * planes.rows.scales.width;
                std::memset(planes.codes.get(), 0, codes);
                std::memset(planes.scales.get(), 0, scales);
                if (planes.high) std::memset(planes.high.get(), 0, 7 * planes.rows.high.width);
                for (const KernelSet* set : usable_sets()) {
                    const StoredRows rows = with(*set, planes.rows, number);
                    check(legal(rows, 1), "legal words refused", set->name, kernel.name, columns);
                    std::uint8_t& upper = planes.scales[(random() % (scales / 2)) * 2 + 1];
                    upper = 0x7F;  // not finite in binary16
                    planes.scales[0] ^= 0x80;  // and, with this, not in bfloat16 either, where it is the same word
                    const bool bf16 = std::strcmp(kernel.name, "fp8_e4m3fn_row_bf16") == 0;
                    check(bf16 || !legal(rows, 3), "illegal scale accepted", set->name, kernel.name, columns);
                    upper = 0, planes.scales[0] ^= 0x80;
                    std::uint8_t& code = planes.codes[random() % codes];
                    code = 0x7F;  // under a zero scale
                    const bool free = std::strncmp(kernel.name, "q2_g64_fp16", 12) == 0;
                    check(legal(rows, 2) == free, "codes under zero scales", set->name, kernel.name, columns);
                    code = 0;
                }
            }
        }
    }
}

void test_blocks(std::mt19937& random) {
    for (int type = 0; type < packed_types; ++type) {
        const PackedKernel& kernel = portable::kernels.packed[type];
        if (kernel.values == 0) continue;
        const std::size_t bytes = 5 * static_cast<std::size_t>(kernel.bytes);
        const Buffer blocks = random_bytes(random, 4 * bytes);
        StoredRows rows{};
        rows.columns = 5 * static_cast<std::size_t>(kernel.values);
        rows.codes = {blocks.get(), static_cast<std::ptrdiff_t>(bytes), bytes};
        const std::vector<std::int64_t> chosen{3, 0, 0, 2, 1};
        rows.chosen = chosen.data(), rows.count = chosen.size();
        const std::size_t size = rows.count * rows.columns * 4;
        const Buffer expected(new std::uint8_t[size]), found(new std::uint8_t[size]);
        for (const KernelSet* set : usable_sets()) {
            rows.packed = &set->packed[type];
            for (std::size_t row = 0; row < chosen.size(); ++row) {
                kernel.decode[0](blocks.get() + static_cast<std::size_t>(chosen[row]) * bytes, 5,
                                 expected.get() + row * rows.columns * 4);
            }
            for (const Stores stores : {Stores::cached, Stores::streamed}) {
                decode(*set, rows, Output::float32, found.get(), stores, 2);
                check(same(Output::float32, size / 4, expected.get(), found.get()), "rows of blocks differ", set->name,
                      "packed", rows.columns);
            }
        }
    }
}

void test_checks(std::mt19937& random) {
    for (const std::size_t size : {1U, 100U, 4096U, 10001U}) {
        const Buffer buffer(new std::uint8_t[size]);
        std::memset(buffer.get(), 0x7E, size);
        check(bytes_at_most(buffer.get(), size, 0x7E), "no byte is above", "", "bytes_at_most", size);
        buffer[random() % size] = 0x7F;
        check(!bytes_at_most(buffer.get(), size, 0x7E), "a byte is above", "", "bytes_at_most", size);
    }
    check(bytes_at_most(nullptr, 0, 0), "there is no byte", "", "bytes_at_most", 0);
    const std::uint8_t mask[3] = {0xF0, 0xFF, 0}, expected[3] = {0x50, 0x55, 0};
    const Buffer ends(new std::uint8_t[5 * 4 + 3]);  // rows four bytes apart
    for (std::size_t i = 0; i < 23; ++i) ends[i] = 0x55;
    check(rows_match(ends.get(), 4, 6, mask, expected, 3), "the rows match", "", "rows_match", 3);
    ends[4 * (random() % 6) + 1] = 0x54;
    check(!rows_match(ends.get(), 4, 6, mask, expected, 3), "a row does not match", "", "rows_match", 3);
    const Buffer blocks(new std::uint8_t[6 * 7]);
    std::memset(blocks.get(), 0xFF, 6 * 7);
    blocks[5] = blocks[6 * 4 + 4] = 0;
    check(count_set(blocks.get(), 7, 6, {4, 2, 0x7C00}) == 6, "five words and one", "", "count_set", 6);
    check(count_set(blocks.get(), 7, 6, {2, 4, 0x7C000001}) == 6, "six words", "", "count_set", 6);
}

}  // namespace

int main() {
    std::mt19937 random(2);
    test_rows(random);
    test_legal(random);
    test_blocks(random);
    test_checks(random);
    for (const KernelSet* set : usable_sets()) std::printf("tested: %s\n", set->name);
    return failures == 0 ? 0 : 1;
}
