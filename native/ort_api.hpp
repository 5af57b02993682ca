// What the operator needs of onnxruntime's C interface, of which no header comes with its packages: opaque types, the
// structure that describes a custom operator, and places in the runtime's table of functions.
//
// The table only ever grows at its end, so a place holds for every later version; docs/onnx.md says which were tried.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace quantform::ort {

/// Every function used here is in version 17 of the table, but runtimes before 1.22 do not let an operator infer the type
/// of its output.
constexpr std::uint32_t api_version = 22;

struct Status;
struct SessionOptions;
struct OpDomain;
struct KernelInfo;
struct KernelContext;
struct InferContext;
struct Attribute;
struct Value;
struct TypeInfo;
struct TensorInfo;  // element type and shape

enum class ErrorCode : int { fail = 1, invalid_argument = 2, not_implemented = 9, invalid_graph = 10 };
/// Of these types the numbers are the same as ONNX's own.
enum class Element : int { undefined = 0, float32 = 1, uint8 = 2, float16 = 10, float64 = 11, bfloat16 = 16 };
enum class AttributeKind : int { integer = 1, integers = 2 };
enum class Characteristic : int { required = 0, optional = 1 };
constexpr int default_memory = 0;

/// The runtime's table of functions; read with `call`.
struct Api;

struct ApiBase {
    const Api* (*get_api)(std::uint32_t version);  // null where the runtime does not have that version
    const char* (*version_text)();
};

/// A function's place in the table, and its type.
template <std::size_t number, class Function>
struct Slot;
template <std::size_t number, class Result, class... Arguments>
struct Slot<number, Result(Arguments...)> {
    static constexpr std::size_t place = number;
    using Pointer = Result (*)(Arguments...);
};

using AnyFunction = void (*)();

template <std::size_t number, class Result, class... Arguments>
Result call(const Api* api, Slot<number, Result(Arguments...)>, std::type_identity_t<Arguments>... arguments) {
    const AnyFunction function = reinterpret_cast<const AnyFunction*>(api)[number];
    return reinterpret_cast<Result (*)(Arguments...)>(function)(arguments...);
}

constexpr Slot<0, Status*(ErrorCode, const char*)> create_status;
constexpr Slot<26, Status*(const char*, OpDomain**)> create_op_domain;
struct CustomOp;
constexpr Slot<27, Status*(OpDomain*, const CustomOp*)> add_op;
constexpr Slot<28, Status*(SessionOptions*, OpDomain*)> add_op_domain;
constexpr Slot<51, Status*(const Value*, void**)> tensor_data;
constexpr Slot<55, Status*(const TypeInfo*, const TensorInfo**)> tensor_info_of_type;  // null if it is no tensor
constexpr Slot<57, Status*(TensorInfo**)> create_tensor_info;
constexpr Slot<58, Status*(TensorInfo*, Element)> set_element;
constexpr Slot<59, Status*(TensorInfo*, const std::int64_t*, std::size_t)> set_dimensions;
constexpr Slot<61, Status*(const TensorInfo*, std::size_t*)> dimensions_count;
constexpr Slot<62, Status*(const TensorInfo*, std::int64_t*, std::size_t)> get_dimensions;
constexpr Slot<65, Status*(const Value*, TensorInfo**)> tensor_info_of_value;
constexpr Slot<85, Status*(const KernelInfo*, const char*, float*)> float_attribute;
constexpr Slot<86, Status*(const KernelInfo*, const char*, std::int64_t*)> integer_attribute;
constexpr Slot<87, Status*(const KernelInfo*, const char*, char*, std::size_t*)> text_attribute;
constexpr Slot<90, Status*(const KernelContext*, std::size_t, const Value**)> kernel_input;
constexpr Slot<91, Status*(KernelContext*, std::size_t, const std::int64_t*, std::size_t, Value**)> kernel_output;
constexpr Slot<93, void(Status*)> release_status;
constexpr Slot<98, void(TypeInfo*)> release_type_info;
constexpr Slot<99, void(TensorInfo*)> release_tensor_info;
constexpr Slot<163, Status*(const KernelInfo*, const char*, std::int64_t*, std::size_t*)> integers_attribute;
constexpr Slot<234, Status*(const KernelInfo*, std::size_t, TypeInfo**)> kernel_input_type;
constexpr Slot<244, Status*(const KernelInfo*, char*, std::size_t*)> node_name;
constexpr Slot<269, Status*(const InferContext*, const char*, const Attribute**)> infer_attribute;
constexpr Slot<270, Status*(const InferContext*, std::size_t, const TensorInfo*)> infer_output;
constexpr Slot<272, Status*(const Attribute*, AttributeKind, void*, std::size_t, std::size_t*)> read_attribute;
constexpr Slot<274, Status*(const KernelContext*, void (*)(void*, std::size_t), std::size_t, std::size_t, void*)>
    parallel_for;
constexpr std::size_t api_slots = 275;

/// A custom operator as version 22 describes it; null where the runtime asks only operators of another kind.
struct CustomOp {
    std::uint32_t version;
    void* (*create_kernel_1)(const CustomOp*, const Api*, const KernelInfo*);
    const char* (*name)(const CustomOp*);
    const char* (*provider)(const CustomOp*);
    Element (*input_type)(const CustomOp*, std::size_t);
    std::size_t (*input_count)(const CustomOp*);
    Element (*output_type)(const CustomOp*, std::size_t);
    std::size_t (*output_count)(const CustomOp*);
    void (*compute_1)(void*, KernelContext*);
    void (*destroy)(void*);
    Characteristic (*input_characteristic)(const CustomOp*, std::size_t);
    Characteristic (*output_characteristic)(const CustomOp*, std::size_t);
    int (*input_memory)(const CustomOp*, std::size_t);
    int (*variadic_input_arity)(const CustomOp*);
    int (*variadic_input_homogeneity)(const CustomOp*);
    int (*variadic_output_arity)(const CustomOp*);
    int (*variadic_output_homogeneity)(const CustomOp*);
    Status* (*create_kernel)(const CustomOp*, const Api*, const KernelInfo*, void**);
    Status* (*compute)(void*, KernelContext*);
    Status* (*infer)(const CustomOp*, InferContext*);
    int (*start_version)(const CustomOp*);
    int (*end_version)(const CustomOp*);
    std::size_t (*may_inplace)(int**, int**);
    void (*release_may_inplace)(int*, int*);
    std::size_t (*alias_map)(int**, int**);
    void (*release_alias_map)(int*, int*);
};

}  // namespace quantform::ort
