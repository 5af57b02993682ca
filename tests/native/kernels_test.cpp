// Runs every kernel of every instruction set this processor has over random blocks in buffers of the exact size, so
// that the sanitizers see each read and write, and compares the sets with each other in every bit. That the values are
// right is tested from Python, against the NumPy path.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "cpu.hpp"
#include "decode.hpp"
#include "same_numbers.hpp"

namespace {

using namespace quantform;
using Buffer = std::unique_ptr<std::uint8_t[]>;

int failures = 0;

void check(bool right, const char* what, const char* set, int type, std::size_t count) {
    if (right) return;
    std::fprintf(stderr, "%s: set %s, ggml type %d, %zu blocks\n", what, set, type, count);
    ++failures;
}

void test_blocks(std::mt19937& random) {
    std::uniform_int_distribution<int> byte(0, 255);
    for (int type = 0; type < packed_types; ++type) {
        const PackedKernel& reference = portable::kernels.packed[type];
        if (reference.values == 0) continue;
        for (const std::size_t count : {0U, 1U, 2U, 3U, 5U, 31U, 67U}) {
            const std::size_t bytes = count * static_cast<std::size_t>(reference.bytes);
            const std::size_t values = count * static_cast<std::size_t>(reference.values);
            for (int output = 0; output < outputs; ++output) {
                const Output kind = static_cast<Output>(output);
                const std::size_t size = values * output_bytes(kind);
                const std::size_t offset = count % 2 == 0 ? 0 : count % 7;  // unaligned in half of the cases
                const Buffer blocks(new std::uint8_t[bytes + offset]), expected(new std::uint8_t[size]);
                for (std::size_t i = 0; i < bytes; ++i) blocks[offset + i] = static_cast<std::uint8_t>(byte(random));
                decode(portable::kernels, {&reference, blocks.get() + offset, count, kind, expected.get()},
                       Stores::cached, 1);
                for (const KernelSet* set : usable_sets()) {
                    for (const Stores stores : {Stores::automatic, Stores::cached, Stores::streamed}) {
                        const Buffer found(new std::uint8_t[size + offset]);
                        std::memset(found.get(), 0xA5, size + offset);
                        decode(*set, {&set->packed[type], blocks.get() + offset, count, kind, found.get() + offset},
                               stores, 3);
                        check(same(kind, values, expected.get(), found.get() + offset), "values differ", set->name, type,
                              count);
                        for (std::size_t i = 0; i < offset; ++i) {
                            check(found[i] == 0xA5, "bytes before the output changed", set->name, type, count);
                        }
                    }
                }
            }
        }
    }
}

/// The work of several threads on pieces of every kind.
void test_threads(std::mt19937& random) {
    const int type = 12;
    const std::size_t count = 34001;  // more than an output that one thread decodes
    const PackedKernel& reference = portable::kernels.packed[type];
    std::vector<std::uint8_t> blocks(count * static_cast<std::size_t>(reference.bytes));
    for (std::uint8_t& each : blocks) each = static_cast<std::uint8_t>(random());
    const std::size_t values = count * static_cast<std::size_t>(reference.values);
    std::vector<std::uint8_t> expected(4 * values), found(4 * values + 4);
    decode(portable::kernels, {&reference, blocks.data(), count, Output::float32, expected.data()}, Stores::cached, 1);
    for (const KernelSet* set : usable_sets()) {
        for (const std::size_t threads : {0U, 2U, 7U}) {
            for (const std::size_t offset : {0U, 1U}) {
                decode(*set, {&set->packed[type], blocks.data(), count, Output::float32, found.data() + offset},
                       Stores::automatic, threads);
                check(same(Output::float32, values, expected.data(), found.data() + offset), "threads differ", set->name,
                      type, count);
            }
        }
    }
}

/// Conversions of each set against the portable one, around every place where rounding changes.
void test_conversions(std::mt19937& random) {
    const int type = 15;  // Q8_K with codes of one decodes to its binary32 scale
    const PackedKernel& reference = portable::kernels.packed[type];
    const std::size_t bytes = static_cast<std::size_t>(reference.bytes);
    std::vector<std::uint8_t> blocks;
    const auto add = [&](std::uint32_t word) {
        blocks.resize(blocks.size() + bytes, 1);
        std::memcpy(blocks.data() + blocks.size() - bytes, &word, sizeof word);
    };
    for (std::uint32_t top = 0; top < 0x10000; top += 7) {
        for (const std::uint32_t low : {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
            add(top << 16 | low);
        }
    }
    while (blocks.size() < 90000 * bytes) add(static_cast<std::uint32_t>(random()));
    const std::size_t count = blocks.size() / bytes, values = count * static_cast<std::size_t>(reference.values);
    for (int output = 0; output < outputs; ++output) {
        const Output kind = static_cast<Output>(output);
        std::vector<std::uint8_t> expected(values * output_bytes(kind)), found(expected.size());
        decode(portable::kernels, {&reference, blocks.data(), count, kind, expected.data()}, Stores::cached, 1);
        for (const KernelSet* set : usable_sets()) {
            decode(*set, {&set->packed[type], blocks.data(), count, kind, found.data()}, Stores::cached, 1);
            check(same(kind, values, expected.data(), found.data()), "conversions differ", set->name, output, count);
        }
    }
}

}  // namespace

int main() {
    std::mt19937 random(1);
    test_blocks(random);
    test_threads(random);
    test_conversions(random);
    for (const KernelSet* set : usable_sets()) std::printf("tested: %s\n", set->name);
    return failures == 0 ? 0 : 1;
}
