// Every kernel, for one instruction set: CMake compiles this file once for each, with QUANTFORM_SET naming it.
#include "kernel_set.hpp"

#include "fp4.hpp"
#include "iquants.hpp"
#include "kquants.hpp"
#include "legacy.hpp"
#include "outputs.hpp"
#include "ternary.hpp"

namespace quantform::QUANTFORM_SET {

template <class Block>
static void decode(const u8* blocks, size_t count, float* out) {
    for (size_t i = 0; i < count; ++i) Block::decode(blocks + i * Block::bytes, out + i * Block::values);
}

template <class... Blocks>
static constexpr KernelSet make_set(const char* name) {
    KernelSet set{name, {}, {store_float32, store_float16, store_bfloat16, store_float64}, stream, fence};
    ((set.packed[Blocks::ggml_type] = {decode<Blocks>, Blocks::values, Blocks::bytes}), ...);
    return set;
}

extern const KernelSet kernels;
constexpr KernelSet kernels =
    make_set<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q8_K, IQ4_NL, Q1_0, Q2_0,        //
             Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS,                                //
             IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M, TQ1_0, TQ2_0,  //
             MXFP4, NVFP4>(QUANTFORM_SET_NAME);

}  // namespace quantform::QUANTFORM_SET
