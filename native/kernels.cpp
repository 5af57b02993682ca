// Every kernel, for one instruction set: CMake compiles this file once for each, with QUANTFORM_SET naming it.
#include "kernel_set.hpp"

#include "fp4.hpp"
#include "iquants.hpp"
#include "kquants.hpp"
#include "legacy.hpp"
#include "outputs.hpp"
#include "ternary.hpp"

namespace quantform::QUANTFORM_SET {

/// Blocks whose scales take long to unpack have a `prepare` for that. It runs some blocks ahead of `decode`: a processor
/// does not look far enough ahead to do by itself the one while it waits for the other.
template <class Block>
concept HasPrepare = requires(const u8* in) { Block::prepare(in); };
constexpr size_t prepared_blocks = 8;

template <class Block, class Out>
static void decode(const u8* blocks, size_t count, u8* out) {
    Out* const to = reinterpret_cast<Out*>(out);
    if constexpr (HasPrepare<Block>) {
        decltype(Block::prepare(blocks)) prepared[prepared_blocks];
        for (size_t first = 0; first < count; first += prepared_blocks) {
            const size_t end = count - first < prepared_blocks ? count : first + prepared_blocks;
            for (size_t i = first; i < end; ++i) prepared[i - first] = Block::prepare(blocks + i * Block::bytes);
            for (size_t i = first; i < end; ++i) {
                Block::decode(blocks + i * Block::bytes, prepared[i - first], to + i * Block::values);
            }
        }
    } else {
        for (size_t i = 0; i < count; ++i) Block::decode(blocks + i * Block::bytes, to + i * Block::values);
    }
}

/// Whether a value may be a subnormal binary32 number. Under a binary16 scale none is: every product and sum is a
/// multiple of 2^-27.
template <class Block>
constexpr bool may_be_subnormal = requires { Block::subnormal; };

template <class Block>
static constexpr PackedKernel make_kernel() {
    const DecodeBlocks to_bfloat16 =
        may_be_subnormal<Block> ? decode<Block, BFloat16> : decode<Block, NormalBFloat16>;
    return {{decode<Block, Float32>, decode<Block, Float16>, to_bfloat16, decode<Block, Float64>},
            Block::values,
            Block::bytes,
            Block::identifier};
}

extern const EncodeKernels encoders;             // see encoders.cpp
extern const RowKernel row_table[row_kernels];  // see row_kernels.cpp

template <class... Blocks>
static constexpr KernelSet make_set(const char* name) {
    KernelSet set{name, {}, row_table, stream, fence, &encoders};
    ((set.packed[Blocks::ggml_type] = make_kernel<Blocks>()), ...);
    return set;
}

extern const KernelSet kernels;
constexpr KernelSet kernels =
    make_set<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q8_K, IQ4_NL, Q1_0, Q2_0,        //
             Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS,                                //
             IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M, TQ1_0, TQ2_0,  //
             MXFP4, NVFP4>(QUANTFORM_SET_NAME);

}  // namespace quantform::QUANTFORM_SET
