// The encoders as Python sees them: every size is checked here, since kernels trust what they are given.
#include "bind_encode.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <initializer_list>
#include <optional>
#include <vector>

#include "cpu.hpp"
#include "encode.hpp"

namespace nb = nanobind;

namespace {

using namespace quantform;
using Matrix = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;
using Plane = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using Planes = std::vector<Plane>;
using Importance = nb::ndarray<const double, nb::ndim<1>, nb::device::cpu, nb::c_contig>;

std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

Values values_of(const Matrix& matrix, int number) {
    if (number < 0 || number >= numbers) throw nb::value_error("no such number type");
    const auto kind = static_cast<Number>(number);
    const auto expected = kind == Number::float32 ? nb::dtype<float>() : nb::dtype<std::uint16_t>();
    const bool adjacent = matrix.size() == 0 || matrix.shape(1) == 1 || matrix.stride(1) == 1;
    if (matrix.dtype() != expected || matrix.shape(1) == 0 || !adjacent) {
        throw nb::value_error("values are not rows of the number type");
    }
    const auto stride = static_cast<std::ptrdiff_t>(matrix.stride(0)) * static_cast<std::ptrdiff_t>(number_bytes(kind));
    return {static_cast<const std::uint8_t*>(matrix.data()), stride, matrix.shape(1), kind};
}

/// Planes that have a whole number of rows of the given bytes, all the same number, and room for the values' rows.
class Targets {
   public:
    Targets(const Planes& planes, std::initializer_list<std::size_t> row_bytes, std::size_t row, std::size_t rows) {
        std::size_t total = 0;
        if (planes.size() != row_bytes.size()) throw nb::value_error("another number of planes");
        for (const std::size_t bytes : row_bytes) {
            const Plane& plane = planes[targets_.size()];
            if (targets_.empty()) total = plane.size() / bytes;
            if (plane.size() % bytes != 0 || plane.size() / bytes != total) throw nb::value_error("planes of another size");
            targets_.push_back({plane.data() + (row <= total ? row : 0) * bytes, bytes});
        }
        if (row > total || rows > total - row) throw nb::value_error("the rows leave the planes");
    }
    const Rows& operator[](std::size_t index) const { return targets_[index]; }

   private:
    std::vector<Rows> targets_;
};

Grouped grouped_of(int bits) {
    for (int format = 0; format < grouped_formats; ++format) {
        if (code_bits(static_cast<Grouped>(format)) == static_cast<std::size_t>(bits)) return static_cast<Grouped>(format);
    }
    throw nb::value_error("no grouped format with such codes");
}

bool encode_grouped_rows(const Matrix& matrix, int number, const Planes& planes, std::size_t row, bool packed,
                         std::size_t threads, int bits, bool search, const std::optional<Importance>& importance,
                         bool negative) {
    const Values values = values_of(matrix, number);
    const Grouped format = grouped_of(bits);
    const std::size_t rows = matrix.shape(0), group = group_size(format), groups = round_up(values.columns, group) / group;
    if (importance && importance->size() != groups * group) throw nb::value_error("importance of another size");
    GroupedRows out{};
    if (packed) {
        const std::size_t lanes = round_up(values.columns, 128), code = code_bits(format);
        if (code == 4 || code == 8) {
            const Targets targets(planes, {lanes * code / 8, lanes / group * 2}, row, rows);
            out = {targets[0], {}, targets[1]};
        } else {
            const Targets targets(planes, {lanes / 2, lanes * (code - 4) / 8, lanes / group * 2}, row, rows);
            out = {targets[0], targets[1], targets[2]};
        }
    } else {
        const Targets targets(planes, {values.columns, 2 * groups}, row, rows);
        out = {targets[0], {}, targets[1]};
    }
    const GroupedJob job{format, packed, search, negative, importance ? importance->data() : nullptr};
    const KernelSet& set = *active_set().load();
    const nb::gil_scoped_release released;
    return encode_grouped(set, job, values, rows, out, threads);
}

bool encode_scaled_rows(const Matrix& matrix, int number, const Planes& planes, std::size_t row, bool packed,
                        std::size_t threads, bool half_scales) {
    const Values values = values_of(matrix, number);
    const std::size_t rows = matrix.shape(0), columns = values.columns;
    RowScaledRows out{};
    if (packed && half_scales) {  // row_interleaved_v1
        const Targets targets(planes, {columns + 2}, row, rows);
        out = {targets[0], {targets[0].data + columns, columns + 2}};
    } else {  // row_scale_v1's planes are the words
        const Targets targets(planes, {columns, 2}, row, rows);
        out = {targets[0], targets[1]};
    }
    const KernelSet& set = *active_set().load();
    const nb::gil_scoped_release released;
    return encode_rows(set, half_scales ? RowScale::float16 : RowScale::bfloat16, values, rows, out, threads);
}

bool encode_nvfp4_rows(const Matrix& matrix, int number, const Planes& planes, std::size_t row, bool packed,
                       std::size_t threads, float divisor) {
    const Values values = values_of(matrix, number);
    const std::size_t rows = matrix.shape(0), columns = values.columns;
    if (columns % (packed ? 64 : 16) != 0) throw nb::value_error("rows are not whole groups or tiles");
    Planes of_rows = planes;
    if (packed) {
        if (planes.size() != 3 || planes[2].size() % sizeof divisor != 0) throw nb::value_error("no plane of divisors");
        of_rows.pop_back();
    }
    const Targets targets(of_rows, {columns / 2, columns / 16}, row, rows);
    if (packed && planes[1].size() / (columns / 16) % 128 != 0) throw nb::value_error("planes are not whole tiles");
    if (packed) {
        for (std::size_t at = 0; at < planes[2].size(); at += sizeof divisor) {
            std::memcpy(planes[2].data() + at, &divisor, sizeof divisor);
        }
    }
    // The place of a scale in its tile depends on the row, so that rows count from the plane's beginning.
    const Nvfp4Rows out{targets[0], packed ? planes[1].data() : targets[1].data, packed ? row : 0, packed};
    const KernelSet& set = *active_set().load();
    const nb::gil_scoped_release released;
    return encode_nvfp4(set, divisor, values, rows, out, threads);
}

float largest_magnitude_of(const Matrix& matrix, int number, std::size_t threads) {
    const Values values = values_of(matrix, number);
    const KernelSet& set = *active_set().load();
    const nb::gil_scoped_release released;
    return largest_magnitude(set, values, matrix.shape(0), threads);
}

}  // namespace

void register_encode(nb::module_& m) {
    m.def("encode_grouped", &encode_grouped_rows, nb::arg("values").noconvert(), nb::arg("number"), nb::arg("planes"),
          nb::arg("row"), nb::arg("packed"), nb::arg("threads"), nb::arg("code_bits"), nb::arg("search") = false,
          nb::arg("importance").none() = nb::none(), nb::arg("negative") = false,
          "Encode rows to grouped words or to row_split_k128_v1's planes.");
    m.def("encode_fp8_rows", &encode_scaled_rows, nb::arg("values").noconvert(), nb::arg("number"), nb::arg("planes"),
          nb::arg("row"), nb::arg("packed"), nb::arg("threads"), nb::arg("half_scales"),
          "Encode rows to FP8 words or to the planes of row_scale_v1 or row_interleaved_v1.");
    m.def("encode_nvfp4", &encode_nvfp4_rows, nb::arg("values").noconvert(), nb::arg("number"), nb::arg("planes"),
          nb::arg("row"), nb::arg("packed"), nb::arg("threads"), nb::arg("divisor"),
          "Encode rows to NVFP4 words or to the planes of block_scale_k16_m128x4_v1.");
    m.def("largest_magnitude", &largest_magnitude_of, nb::arg("values").noconvert(), nb::arg("number"),
          nb::arg("threads"), "The largest magnitude of all values; infinity or NaN where one is.");
}
