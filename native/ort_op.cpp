// The operator `DequantizePacked` as a library for onnxruntime, which calls `RegisterCustomOps`. It knows nothing of
// Python, and no exception leaves it: what is wrong with a model becomes a status that says it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cpu.hpp"
#include "decode.hpp"
#include "ort_api.hpp"
#include "threads.hpp"

namespace quantform::ort {
namespace {

/// Output bytes that a thread of the runtime's pool takes at a time; the pool's threads wait for work, none is started.
constexpr std::size_t piece_bytes = std::size_t{256} << 10;

/// What is wrong, in words for the model's author.
struct Problem {
    ErrorCode code;
    std::string text;
};

/// Throws the runtime's own error.
struct Refusal {
    Status* status;
};
void check(Status* status) {
    if (status != nullptr) throw Refusal{status};
}

/// Whether a call succeeded whose failure only says that something is not there.
bool succeeded(const Api* api, Status* status) {
    if (status != nullptr) call(api, release_status, status);
    return status == nullptr;
}

template <class Work>
Status* guarded(const Api* api, const Work& work) noexcept {
    try {
        work();
        return nullptr;
    } catch (const Refusal& refusal) {
        return refusal.status;
    } catch (const Problem& problem) {
        return call(api, create_status, problem.code, problem.text.c_str());
    } catch (const std::exception& error) {
        return call(api, create_status, ErrorCode::fail, error.what());
    }
}

/// A text of the model, in printable ASCII and not too much of it: a message must be legal UTF-8, as the model need not.
std::string quoted(std::string_view text) {
    constexpr std::size_t most = 80;
    std::string result = "'";
    for (const char each : text.substr(0, most)) {
        const unsigned char byte = static_cast<unsigned char>(each);
        if (byte >= 0x20 && byte < 0x7F && byte != '\'' && byte != '\\') {
            result += each;
        } else {
            std::array<char, 5> escape;
            std::snprintf(escape.data(), escape.size(), "\\x%02x", byte);
            result += escape.data();
        }
    }
    return result + (text.size() > most ? "'..." : "'");
}

std::string listed(const std::vector<std::int64_t>& numbers) {
    constexpr std::size_t most = 8;
    std::string result = "[";
    for (std::size_t i = 0; i < std::min(most, numbers.size()); ++i) {
        result += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
    }
    return result + (numbers.size() > most ? ", ...]" : "]");
}

struct OutputType {
    Element element;
    Output output;
};
constexpr std::array<OutputType, outputs> output_types{{{Element::float32, Output::float32},
                                                        {Element::float16, Output::float16},
                                                        {Element::bfloat16, Output::bfloat16},
                                                        {Element::float64, Output::float64}}};

const OutputType* find_output_type(std::int64_t number) {
    for (const OutputType& type : output_types) {
        if (number == static_cast<int>(type.element)) return &type;
    }
    return nullptr;
}

/// A node's attributes as they were found; absent ones, and ones of another kind, are empty.
struct Attributes {
    std::optional<std::string> format;
    std::optional<std::vector<std::int64_t>> shape;
    std::optional<std::int64_t> output_dtype;
};

// --- a node, checked -------------------------------------------------------------------------------------------------

struct Kernel {
    const Api* api;
    const PackedKernel* format;
    Output output;
    std::vector<std::int64_t> shape;
    std::int64_t payload;  // bytes
};

const PackedKernel* find_format(const std::string& identifier) {
    const KernelSet& set = *active_set().load();
    std::string known;
    for (const PackedKernel& each : set.packed) {
        if (each.values == 0) continue;
        if (identifier == each.identifier) return &each;
        known += (known.empty() ? "" : ", ") + std::string(each.identifier);
    }
    throw Problem{ErrorCode::invalid_argument,
                  "no format is called " + quoted(identifier) + ". Formats are case-sensitive and take no parameters: " + known};
}

[[noreturn]] void wrong_shape(const std::vector<std::int64_t>& shape, const std::string& what) {
    throw Problem{ErrorCode::invalid_argument, "shape " + listed(shape) + " " + what};
}

/// The product of the factors, of which none is negative; nothing where it does not fit.
std::optional<std::int64_t> product(const std::vector<std::int64_t>& factors) {
    if (std::find(factors.begin(), factors.end(), 0) != factors.end()) return 0;
    std::int64_t result = 1;
    for (const std::int64_t factor : factors) {
        if (__builtin_mul_overflow(result, factor, &result)) return std::nullopt;
    }
    return result;
}

Kernel checked(const Api* api, Attributes attributes) {
    if (!attributes.format) throw Problem{ErrorCode::invalid_graph, "attribute format is missing, or is no string"};
    if (!attributes.shape) throw Problem{ErrorCode::invalid_graph, "attribute shape is missing, or is no list of integers"};
    const PackedKernel& format = *find_format(*attributes.format);
    const OutputType* type = find_output_type(attributes.output_dtype.value_or(static_cast<int>(Element::float32)));
    if (type == nullptr) {
        throw Problem{ErrorCode::invalid_argument,
                      "output_dtype is no type of output; expected 1 (FLOAT), 10 (FLOAT16), 11 (DOUBLE) or 16 "
                      "(BFLOAT16), found " + std::to_string(*attributes.output_dtype)};
    }
    std::vector<std::int64_t> shape = std::move(*attributes.shape);
    if (shape.empty()) wrong_shape(shape, "has no dimension, or is no list of integers; expected one integer or more");
    for (const std::int64_t dimension : shape) {
        if (dimension < 0) wrong_shape(shape, "has a negative dimension; found " + std::to_string(dimension));
    }
    if (shape.back() % format.values != 0) {
        wrong_shape(shape, "does not end in whole " + *attributes.format + " blocks; expected a multiple of " +
                               std::to_string(format.values) + ", found " + std::to_string(shape.back()));
    }
    std::vector<std::int64_t> factors = shape;
    factors.back() /= format.values;
    factors.push_back(format.bytes);
    const std::optional<std::int64_t> payload = product(factors);
    factors.back() = format.values * static_cast<int>(output_bytes(type->output));
    if (!payload || !product(factors)) wrong_shape(shape, "has more bytes than a tensor can have");
    return {api, &format, type->output, std::move(shape), *payload};
}

/// Throws unless dimensions are those of the payload.
void check_payload(const Kernel& kernel, const std::vector<std::int64_t>& dimensions) {
    if (dimensions.size() != 1) {
        throw Problem{ErrorCode::invalid_argument,
                      "x is not a vector of bytes; expected uint8 [n], found uint8 " + listed(dimensions)};
    }
    if (dimensions[0] != kernel.payload) {
        throw Problem{ErrorCode::invalid_argument,
                      "the payload of " + std::string(kernel.format->identifier) + " " + listed(kernel.shape) +
                          " has the wrong length; expected " + std::to_string(kernel.payload) + " bytes, found " +
                          std::to_string(dimensions[0])};
    }
}

// --- what the runtime tells ------------------------------------------------------------------------------------------

template <auto release, class Object>
struct Owner {
    const Api* api;
    Object* object = nullptr;
    explicit Owner(const Api* of) : api(of) {}
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    ~Owner() {
        if (object != nullptr) call(api, release, object);
    }
};
using OwnTensorInfo = Owner<release_tensor_info, TensorInfo>;
using OwnTypeInfo = Owner<release_type_info, TypeInfo>;

std::vector<std::int64_t> dimensions_of(const Api* api, const TensorInfo* info) {
    std::size_t count = 0;
    check(call(api, dimensions_count, info, &count));
    std::vector<std::int64_t> dimensions(count);
    check(call(api, get_dimensions, info, dimensions.data(), count));
    return dimensions;
}

/// A text that the runtime gives first its size, closing zero included, and then itself; empty where there is none.
template <class Get>
std::optional<std::string> text_of(const Api* api, const Get& get) {
    std::size_t size = 0;
    if (!succeeded(api, get(nullptr, &size)) || size == 0) return std::nullopt;
    std::string text(size, '\0');
    check(get(text.data(), &size));
    text.pop_back();
    return text;
}

std::optional<std::string> find_text(const Api* api, const KernelInfo* info, const char* name) {
    return text_of(api, [&](char* out, std::size_t* size) { return call(api, text_attribute, info, name, out, size); });
}

std::optional<std::vector<std::int64_t>> find_integers(const Api* api, const KernelInfo* info, const char* name) {
    std::size_t size = 0;
    if (!succeeded(api, call(api, integers_attribute, info, name, nullptr, &size))) return std::nullopt;
    std::vector<std::int64_t> numbers(size);
    if (size != 0) check(call(api, integers_attribute, info, name, numbers.data(), &size));
    return numbers;
}

Attributes attributes_of(const Api* api, const KernelInfo* info) {
    Attributes found{find_text(api, info, "format"), find_integers(api, info, "shape"), std::nullopt};
    constexpr const char* name = "output_dtype";
    std::int64_t number = 0;
    float other = 0;
    if (succeeded(api, call(api, integer_attribute, info, name, &number))) {
        found.output_dtype = number;
    } else if (find_text(api, info, name) || find_integers(api, info, name) ||
               succeeded(api, call(api, float_attribute, info, name, &other))) {
        throw Problem{ErrorCode::invalid_graph, "attribute output_dtype is no integer"};
    }
    return found;
}

/// Refuses a payload that the model itself gives the wrong length, before anything runs.
void check_known_payload(const Kernel& kernel, const KernelInfo* info) {
    const Api* api = kernel.api;
    OwnTypeInfo type(api);
    const TensorInfo* tensor = nullptr;
    if (!succeeded(api, call(api, kernel_input_type, info, 0, &type.object))) return;
    if (!succeeded(api, call(api, tensor_info_of_type, type.object, &tensor)) || tensor == nullptr) return;
    const std::vector<std::int64_t> dimensions = dimensions_of(api, tensor);
    // An unknown rank looks like none, and an unknown dimension is negative.
    if (dimensions.size() > 1 || (dimensions.size() == 1 && dimensions[0] >= 0)) check_payload(kernel, dimensions);
}

// --- the operator ----------------------------------------------------------------------------------------------------

/// The operator as one runtime knows it. Sessions keep pointers to it, so it lives as long as this library.
struct Operator : CustomOp {
    const Api* api = nullptr;
    OpDomain* domain = nullptr;
};

Status* create(const CustomOp*, const Api* api, const KernelInfo* info, void** kernel) {
    return guarded(api, [&] {
        try {
            auto made = std::make_unique<Kernel>(checked(api, attributes_of(api, info)));
            check_known_payload(*made, info);
            *kernel = made.release();
        } catch (Problem& problem) {
            const auto get = [&](char* out, std::size_t* size) { return call(api, node_name, info, out, size); };
            problem.text = "DequantizePacked node " + quoted(text_of(api, get).value_or("")) + ": " + problem.text;
            throw;
        }
    });
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

struct Work {
    const KernelSet& set;
    Decode job;
    bool streamed;
    std::size_t piece;  // blocks

    void operator()(std::size_t number) const {
        const DefaultArithmetic arithmetic;
        const std::size_t first = number * piece;
        decode_run(set, job, streamed, first, std::min(first + piece, job.count));
    }
};

Status* compute(void* state, KernelContext* context) {
    const Kernel& kernel = *static_cast<const Kernel*>(state);
    const Api* api = kernel.api;
    return guarded(api, [&] {
        const Value* x = nullptr;
        check(call(api, kernel_input, context, 0, &x));
        if (x == nullptr) throw Problem{ErrorCode::invalid_graph, "there is no x"};
        OwnTensorInfo info(api);
        check(call(api, tensor_info_of_value, x, &info.object));
        check_payload(kernel, dimensions_of(api, info.object));

        Value* y = nullptr;
        check(call(api, kernel_output, context, 0, kernel.shape.data(), kernel.shape.size(), &y));
        const std::size_t count = static_cast<std::size_t>(kernel.payload / kernel.format->bytes);
        if (y == nullptr || count == 0) return;
        void *from = nullptr, *to = nullptr;
        check(call(api, tensor_data, x, &from));
        check(call(api, tensor_data, y, &to));
        const Decode job{kernel.format, static_cast<const std::uint8_t*>(from), count, kernel.output,
                         static_cast<std::uint8_t*>(to)};

        const std::size_t block = static_cast<std::size_t>(kernel.format->values) * output_bytes(kernel.output);
        Work work{*active_set().load(), job, streams(job, Stores::automatic), piece_bytes / block};
        const std::size_t pieces = (count - 1) / work.piece + 1;
        if (pieces == 1) {
            work(0);
        } else {
            const auto run = [](void* all, std::size_t number) { (*static_cast<const Work*>(all))(number); };
            check(call(api, parallel_for, context, run, pieces, 0, &work));
        }
    });
}

const Attribute* find_attribute(const Api* api, const InferContext* context, const char* name) {
    const Attribute* attribute = nullptr;
    return succeeded(api, call(api, infer_attribute, context, name, &attribute)) ? attribute : nullptr;
}

std::vector<std::int64_t> inferred_shape(const Api* api, const InferContext* context) {
    std::size_t bytes = 0;
    const Attribute* attribute = find_attribute(api, context, "shape");
    // A first call, which has no room for the numbers, tells how much they need.
    if (attribute == nullptr ||
        succeeded(api, call(api, read_attribute, attribute, AttributeKind::integers, nullptr, 0, &bytes))) {
        return {};
    }
    std::vector<std::int64_t> shape(bytes / sizeof(std::int64_t));
    check(call(api, read_attribute, attribute, AttributeKind::integers, shape.data(), bytes, &bytes));
    return shape;
}

Element inferred_element(const Api* api, const InferContext* context) {
    std::int64_t number = 0;
    std::size_t bytes = 0;
    const Attribute* attribute = find_attribute(api, context, "output_dtype");
    if (attribute == nullptr ||
        !succeeded(api, call(api, read_attribute, attribute, AttributeKind::integer, &number, sizeof number, &bytes))) {
        return Element::float32;
    }
    const OutputType* type = find_output_type(number);
    return type == nullptr ? Element::float32 : type->element;
}

/// Gives the output's type and shape. The runtime takes no notice of a status returned from here, so what is wrong with
/// the attributes is left for `create` to say.
Status* infer(const CustomOp* op, InferContext* context) {
    const Api* api = static_cast<const Operator*>(op)->api;
    Status* status = guarded(api, [&] {
        const std::vector<std::int64_t> shape = inferred_shape(api, context);
        if (shape.empty()) return;  // no output is a scalar: the node that is wrong is this one, not the next
        OwnTensorInfo info(api);
        check(call(api, create_tensor_info, &info.object));
        check(call(api, set_element, info.object, inferred_element(api, context)));
        check(call(api, set_dimensions, info.object, shape.data(), shape.size()));
        check(call(api, infer_output, context, 0, info.object));
    });
    succeeded(api, status);
    return nullptr;
}

std::unique_ptr<Operator> make_operator(const Api* api) {
    auto made = std::make_unique<Operator>();
    Operator& op = *made;
    op.api = api;
    op.version = api_version;
    op.name = [](const CustomOp*) { return "DequantizePacked"; };
    op.provider = [](const CustomOp*) { return "CPUExecutionProvider"; };
    op.input_type = [](const CustomOp*, std::size_t) { return Element::uint8; };
    op.input_count = [](const CustomOp*) -> std::size_t { return 1; };
    op.output_type = [](const CustomOp*, std::size_t) { return Element::undefined; };
    op.output_count = [](const CustomOp*) -> std::size_t { return 1; };
    op.destroy = destroy;
    op.input_characteristic = [](const CustomOp*, std::size_t) { return Characteristic::required; };
    op.output_characteristic = [](const CustomOp*, std::size_t) { return Characteristic::required; };
    op.input_memory = [](const CustomOp*, std::size_t) { return default_memory; };
    op.create_kernel = create;
    op.compute = compute;
    op.infer = infer;
    check(call(api, create_op_domain, "", &op.domain));
    check(call(api, add_op, op.domain, &op));
    return made;
}

/// A process may hold several runtimes, each of which has its own.
OpDomain* domain_of(const Api* api) {
    static std::mutex mutex;
    static std::map<const Api*, std::unique_ptr<Operator>> operators;
    const std::lock_guard lock(mutex);
    std::unique_ptr<Operator>& op = operators[api];
    if (op == nullptr) op = make_operator(api);
    return op->domain;
}

}  // namespace
}  // namespace quantform::ort

#if defined(_WIN32)
#define QUANTFORM_EXPORT __declspec(dllexport)
#else
#define QUANTFORM_EXPORT __attribute__((visibility("default")))
#endif

/// Called by onnxruntime for each set of session options that names this library.
extern "C" QUANTFORM_EXPORT quantform::ort::Status* RegisterCustomOps(quantform::ort::SessionOptions* options,
                                                                      const quantform::ort::ApiBase* base) {
    using namespace quantform::ort;
    const Api* api = base->get_api(api_version);
    if (api == nullptr) {
        const std::string text = "quantform's DequantizePacked needs onnxruntime 1." + std::to_string(api_version) +
                                 " or newer; found " + base->version_text();
        return call(base->get_api(1), create_status, ErrorCode::not_implemented, text.c_str());
    }
    return guarded(api, [&] {
        if (const char* name = std::getenv("QUANTFORM_ISA"); name != nullptr && *name != 0 && !quantform::use_set(name)) {
            throw Problem{ErrorCode::invalid_argument,
                          "QUANTFORM_ISA names no instruction set that is compiled in and that this processor has; found " +
                              quoted(name)};
        }
        check(call(api, add_op_domain, options, domain_of(api)));
    });
}
