// Rows of layouts and of words, decoded and checked. Every bound is checked here: numbers from Python are not trusted.
#include "bind_layouts.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "checks.hpp"
#include "cpu.hpp"
#include "rows.hpp"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using Plane = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::device::cpu>;
using Divisors = nb::ndarray<const float, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using Out = nb::ndarray<nb::device::cpu, nb::c_contig>;  // of any type: it is filled with bytes

constexpr std::size_t tile_rows = 128, tile_columns = 64;

void require(bool fits, const char* what) {
    if (!fits) throw nb::value_error(what);
}

const quantform::RowKernel& row_kernel(const std::string& name) {
    const quantform::RowKernel* const kernels = quantform::active_set().load()->rows;
    for (int i = 0; i < quantform::row_kernels; ++i) {
        if (name == kernels[i].name) return kernels[i];
    }
    throw nb::value_error("no such row kernel");
}

std::vector<std::string> row_kernels() {
    std::vector<std::string> names;
    const quantform::RowKernel* const kernels = quantform::active_set().load()->rows;
    for (int i = 0; i < quantform::row_kernels; ++i) names.emplace_back(kernels[i].name);
    return names;
}

/// A matrix of bytes whose rows may lie apart, with at least `rows` of at least `bytes`.
quantform::RowPlane plane_of(const Plane& plane, std::size_t rows, std::size_t bytes) {
    require(plane.shape(0) >= rows && plane.shape(1) >= bytes, "a plane is too small");
    require(plane.shape(1) <= 1 || plane.stride(1) == 1, "the bytes of a row do not lie together");
    return {plane.data(), static_cast<std::ptrdiff_t>(plane.stride(0)), plane.shape(1)};
}

/// Sets which rows are meant. Their numbers are copied to `numbers` before they are checked: the caller's array may change
/// while rows are decoded.
void choose(quantform::StoredRows& rows, std::size_t total, const std::optional<Numbers>& chosen, std::size_t first,
            std::size_t count, std::vector<std::int64_t>& numbers) {
    if (chosen) {
        require(chosen->size() == count, "the number of rows is not that of the row numbers");
        numbers.assign(chosen->data(), chosen->data() + count);
        for (const std::int64_t row : numbers) {
            require(row >= 0 && static_cast<std::uint64_t>(row) < total, "a row is outside the matrix");
        }
        rows.chosen = numbers.data();
    } else {
        require(first <= total && count <= total - first, "the rows are outside the matrix");
    }
    rows.first = first, rows.count = count;
}

quantform::StoredRows rows_of(const std::string& kernel, std::size_t columns, const Plane& codes,
                              const std::optional<Plane>& high, const Plane& scales, bool tiled,
                              const std::optional<Divisors>& divisors) {
    quantform::StoredRows rows{};
    rows.kernel = &row_kernel(kernel);
    rows.columns = columns;
    rows.tiled = tiled;
    require(columns > 0 && columns / 8 <= codes.shape(1), "there are not as many columns");  // eight in a byte at most
    const quantform::RowBytes bytes = row_bytes(rows);
    const std::size_t total = codes.shape(0);
    rows.codes = plane_of(codes, total, bytes.codes);
    require((bytes.high != 0) == high.has_value(), "the kernel's planes are others");
    if (high) rows.high = plane_of(*high, total, bytes.high);
    if (tiled) {
        require(rows.kernel->values == tile_columns && !rows.kernel->one_scale && total % tile_rows == 0 &&
                    columns % tile_columns == 0,
                "the matrix is not whole tiles");
    }
    rows.scales = plane_of(scales, tiled ? total / tile_rows : total, bytes.scales);
    if (divisors) {
        require(divisors->size() > 0 && total % divisors->size() == 0, "the divisors do not share the rows");
        rows.divisors = divisors->data();
        rows.divisor_rows = std::max<std::size_t>(1, total / divisors->size());
    }
    return rows;
}

void decode(const quantform::StoredRows& rows, int output, const Out& out, std::size_t threads, int stores) {
    require(output >= 0 && output < quantform::outputs, "no such type");
    require(stores >= 0 && stores <= 2, "no such way to store");
    const auto type = static_cast<quantform::Output>(output);
    const std::size_t row = rows.columns * quantform::output_bytes(type);
    require(row == 0 ? out.nbytes() == 0 : out.nbytes() % row == 0 && out.nbytes() / row == rows.count,
            "out does not fit the rows");
    const nb::gil_scoped_release released;
    quantform::decode(*quantform::active_set().load(), rows, type, static_cast<std::uint8_t*>(out.data()),
                      static_cast<quantform::Stores>(stores), threads);
}

void decode_rows(const std::string& kernel, std::size_t columns, const Plane& codes, const std::optional<Plane>& high,
                 const Plane& scales, bool tiled, const std::optional<Divisors>& divisors,
                 const std::optional<Numbers>& chosen, std::size_t first, std::size_t count, int output, const Out& out,
                 std::size_t threads, int stores) {
    quantform::StoredRows rows = rows_of(kernel, columns, codes, high, scales, tiled, divisors);
    std::vector<std::int64_t> numbers;
    choose(rows, codes.shape(0), chosen, first, count, numbers);
    decode(rows, output, out, threads, stores);
}

bool legal_rows(const std::string& kernel, std::size_t columns, const Plane& codes, const std::optional<Plane>& high,
                const Plane& scales, bool tiled, const std::optional<Divisors>& divisors, std::size_t threads) {
    quantform::StoredRows rows = rows_of(kernel, columns, codes, high, scales, tiled, divisors);
    require(rows.kernel->legal != nullptr, "the kernel has no rule");
    rows.count = codes.shape(0);
    const nb::gil_scoped_release released;
    return quantform::legal(rows, threads);
}

void decode_block_rows(int ggml_type, const Plane& blocks, const std::optional<Numbers>& chosen, std::size_t first,
                       std::size_t count, int output, const Out& out, std::size_t threads, int stores) {
    require(ggml_type >= 0 && ggml_type < quantform::packed_types, "no such type");
    quantform::StoredRows rows{};
    rows.packed = &quantform::active_set().load()->packed[ggml_type];
    require(rows.packed->values != 0, "no such type");
    const auto bytes = static_cast<std::size_t>(rows.packed->bytes);
    require(blocks.shape(1) % bytes == 0, "a row is not whole blocks");
    rows.columns = blocks.shape(1) / bytes * static_cast<std::size_t>(rows.packed->values);
    rows.codes = plane_of(blocks, 0, 0);
    std::vector<std::int64_t> numbers;
    choose(rows, blocks.shape(0), chosen, first, count, numbers);
    decode(rows, output, out, threads, stores);
}

bool bytes_at_most(const Bytes& data, int most) {
    require(most >= 0 && most < 256, "no such byte");
    const nb::gil_scoped_release released;
    return quantform::bytes_at_most(data.data(), data.size(), static_cast<std::uint8_t>(most));
}

bool rows_match(const Plane& plane, const Bytes& mask, const Bytes& expected) {
    require(mask.size() == plane.shape(1) && expected.size() == mask.size(), "the bytes of a row are not as many");
    const quantform::RowPlane rows = plane_of(plane, 0, 0);
    const std::size_t count = plane.shape(0);
    const nb::gil_scoped_release released;
    return quantform::rows_match(rows.first, rows.stride, count, mask.data(), expected.data(), mask.size());
}

std::size_t count_set(const Bytes& blocks, std::size_t block_bytes, std::size_t offset, std::size_t width,
                      std::uint32_t mask) {
    require(width == 1 || width == 2 || width == 4, "no such word");
    require(width <= block_bytes && offset <= block_bytes - width, "the field leaves the block");
    require(blocks.size() % block_bytes == 0, "these are not whole blocks");
    const nb::gil_scoped_release released;
    return quantform::count_set(blocks.data(), blocks.size() / block_bytes, block_bytes, {offset, width, mask});
}

}  // namespace

void register_layouts(nb::module_& m) {
    const auto plane = [](const char* name) { return nb::arg(name).noconvert(); };
    m.def("row_kernels", &row_kernels, "Names of the kernels that `decode_rows` and `legal_rows` take.");
    m.def("decode_rows", &decode_rows, nb::arg("kernel"), nb::arg("columns"), plane("codes"), plane("high").none(),
          plane("scales"), nb::arg("tiled"), plane("divisors").none(), plane("rows").none(), nb::arg("first"),
          nb::arg("count"), nb::arg("output"), plane("out"), nb::arg("threads"), nb::arg("stores") = 0,
          "Decode the chosen rows, or `count` from `first` on, to the bytes of `out`.");
    m.def("legal_rows", &legal_rows, nb::arg("kernel"), nb::arg("columns"), plane("codes"), plane("high").none(),
          plane("scales"), nb::arg("tiled"), plane("divisors").none(), nb::arg("threads"),
          "Whether all words are legal; false may also mean padding that is not canonical.");
    m.def("decode_block_rows", &decode_block_rows, nb::arg("ggml_type"), plane("blocks"), plane("rows").none(),
          nb::arg("first"), nb::arg("count"), nb::arg("output"), plane("out"), nb::arg("threads"),
          nb::arg("stores") = 0, "Decode the chosen rows of packed blocks, or `count` from `first` on.");
    m.def("bytes_at_most", &bytes_at_most, plane("data"), nb::arg("most"), "Whether no byte is above `most`.");
    m.def("rows_match", &rows_match, plane("plane"), plane("mask"), plane("expected"),
          "Whether every row has the bits of `expected` where `mask` has ones.");
    m.def("count_set", &count_set, plane("blocks"), nb::arg("block_bytes"), nb::arg("offset"), nb::arg("width"),
          nb::arg("mask"), "How many blocks have all bits of `mask` in the little-endian word at `offset`.");
}
