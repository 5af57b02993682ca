// Every encoder, for one instruction set: CMake compiles this file once for each, with QUANTFORM_SET naming it.
#include "encode_grouped.hpp"
#include "encode_nvfp4.hpp"
#include "encode_rows.hpp"

namespace quantform::QUANTFORM_SET {

extern const EncodeKernels encoders;
constexpr EncodeKernels encoders{
    {encode_groups<Q4, false>, encode_groups<Q5, false>, encode_groups<Q6, false>, encode_groups<Q8, false>},
    {encode_groups<Q4, true>, encode_groups<Q5, true>, encode_groups<Q6, true>, encode_groups<Q8, true>},
    {encode_rows<RowScale::bfloat16>, encode_rows<RowScale::float16>},
    encode_nvfp4,
    largest_of_rows};

}  // namespace quantform::QUANTFORM_SET
