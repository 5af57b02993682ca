// The kernels of formats whose codes and scales lie apart, as a table.
#pragma once

#include "fp8_rows.hpp"
#include "grouped.hpp"
#include "kernel_set.hpp"
#include "nvfp4.hpp"

namespace quantform::QUANTFORM_SET {

template <class Unit, class Out>
static void decode_units(const RowWords& words, size_t units, u8* out) {
    Out* const to = reinterpret_cast<Out*>(out);
    for (size_t i = 0; i < units; ++i) {
        Unit::decode(words.codes + i * Unit::code_bytes, words.high + i * Unit::high_bytes,
                     words.scales + i * words.scale_step, words.divisor, to + i * Unit::values);
    }
}

template <class Unit>
static constexpr RowKernel make_row_kernel() {
    const DecodeUnits to_bfloat16 =
        Unit::subnormal ? decode_units<Unit, BFloat16> : decode_units<Unit, NormalBFloat16>;
    LegalUnits legal = nullptr;
    if constexpr (requires { Unit::legal; }) legal = Unit::legal;
    return {Unit::name,
            {decode_units<Unit, Float32>, decode_units<Unit, Float16>, to_bfloat16, decode_units<Unit, Float64>},
            legal,
            Unit::values,
            Unit::code_bytes,
            Unit::high_bytes,
            Unit::scale_bytes,
            Unit::one_scale};
}

template <class... Units>
static constexpr void add_row_kernels(KernelSet& set) {
    static_assert(sizeof...(Units) == row_kernels);
    int at = 0;
    ((set.rows[at++] = make_row_kernel<Units>()), ...);
}

}  // namespace quantform::QUANTFORM_SET
