// The kernels of formats whose codes and scales lie apart, for one instruction set: CMake compiles this file once for
// each, with QUANTFORM_SET naming it.
#include "fp8_rows.hpp"
#include "grouped.hpp"
#include "kernel_set.hpp"
#include "nvfp4.hpp"

namespace quantform::QUANTFORM_SET {

template <class Out>
struct NormalElement {
    using Type = Out;
};
template <>
struct NormalElement<BFloat16> {
    using Type = NormalBFloat16;
};
template <class Out>
struct NormalElement<Past<Out>> {
    using Type = Past<typename NormalElement<Out>::Type>;
};
/// The element of an output without subnormal numbers.
template <class Out>
using Normal = typename NormalElement<Out>::Type;

template <class Unit, class Out>
static void decode_units(const RowWords& words, size_t units, u8* out) {
    // Where only some scales or divisors lead to subnormal numbers, the others' rows take the faster conversion.
    if constexpr (requires { Unit::all_normal; } && !std::is_same_v<Normal<Out>, Out>) {
        if (Unit::all_normal(words)) return decode_units<Unit, Normal<Out>>(words, units, out);
    }
    Out* const to = reinterpret_cast<Out*>(out);
    for (size_t i = 0; i < units; ++i) {
        Unit::decode(words.codes + i * Unit::code_bytes, words.high + i * Unit::high_bytes,
                     words.scales + i * words.scale_step, words.divisor, to + i * Unit::values);
    }
}

template <class Unit>
static constexpr RowKernel make_row_kernel() {
    using BFloat = std::conditional_t<Unit::subnormal, BFloat16, Normal<BFloat16>>;
    LegalUnits legal = nullptr;
    if constexpr (requires { Unit::legal; }) legal = Unit::legal;
    return {Unit::name,
            {decode_units<Unit, Float32>, decode_units<Unit, Float16>, decode_units<Unit, BFloat>,
             decode_units<Unit, Float64>},
            {decode_units<Unit, Past<Float32>>, decode_units<Unit, Past<Float16>>, decode_units<Unit, Past<BFloat>>,
             decode_units<Unit, Past<Float64>>},
            legal,
            Unit::values,
            Unit::code_bytes,
            Unit::high_bytes,
            Unit::scale_bytes,
            Unit::scales,
            Unit::one_scale};
}

extern const RowKernel row_table[row_kernels];
constexpr RowKernel row_table[row_kernels] = {
    make_row_kernel<Split<Q2Codes>>(), make_row_kernel<Split<Q4Codes>>(), make_row_kernel<Split<Q5Codes>>(),
    make_row_kernel<Split<Q6Codes>>(), make_row_kernel<Split<Q8Codes>>(), make_row_kernel<Split<T2Codes>>(),
    make_row_kernel<Whole<Q2Bytes>>(), make_row_kernel<Whole<Q4Bytes>>(), make_row_kernel<Whole<Q5Bytes>>(),
    make_row_kernel<Whole<Q6Bytes>>(), make_row_kernel<Whole<Q8Bytes>>(), make_row_kernel<Whole<T2Bytes>>(),
    make_row_kernel<Nvfp4Unit>(),      make_row_kernel<Fp8Bf16Unit>(),    make_row_kernel<Fp8Fp16Unit>()};

}  // namespace quantform::QUANTFORM_SET
