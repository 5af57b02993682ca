// Drives the operator for onnxruntime through a table of functions of its own, so that the sanitizers see every read and
// write: models that are right, models that are wrong in every way, and runtimes whose calls fail.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "cpu.hpp"
#include "decode.hpp"
#include "ort_api.hpp"
#include "threads.hpp"

// --- a runtime, no more than the operator asks of it -----------------------------------------------------------------

namespace quantform::ort {

using Dimensions = std::vector<std::int64_t>;

struct Status {
    ErrorCode code;
    std::string text;
};
struct TensorInfo {
    Element element = Element::undefined;
    Dimensions dimensions;
};
struct TypeInfo {
    std::optional<TensorInfo> tensor;
};
struct Attribute {
    std::variant<std::string, Dimensions, std::int64_t, float> value;
};
using Attributes = std::map<std::string, Attribute>;
struct KernelInfo {
    Attributes attributes;
    std::optional<TypeInfo> input;
    std::string name = "layer \xff";
};
struct InferContext {
    Attributes attributes;
    mutable std::optional<TensorInfo> output;
};
struct Value {
    Dimensions dimensions;
    std::unique_ptr<std::uint8_t[]> data;
};
struct KernelContext {
    const Value* x;
    bool wants_y = true;
    std::size_t y_bytes = 0;  // what the test allows the operator to ask for
    Value y{};
};
struct OpDomain {
    const CustomOp* op = nullptr;
};
struct SessionOptions {
    std::vector<OpDomain*> domains;
};

namespace {

int calls = 0, failing_call = -1, live = 0;

Status* fail(const char* text) {
    ++live;
    return new Status{ErrorCode::fail, text};
}
/// Counts the calls that can fail; one of them does.
bool fails() { return calls++ == failing_call; }
#define MAY_FAIL() \
    if (fails()) return fail("injected")

template <class T>
const T* find(const Attributes& attributes, const char* name) {
    const auto at = attributes.find(name);
    return at == attributes.end() ? nullptr : std::get_if<T>(&at->second.value);
}

std::array<AnyFunction, api_slots> table;
const Api* const api = reinterpret_cast<const Api*>(table.data());
std::vector<std::unique_ptr<OpDomain>> domains;

template <class S>
void set(S, typename S::Pointer function) {
    table[S::place] = reinterpret_cast<AnyFunction>(function);
}

void fill() {
    table.fill([] { std::abort(); });
    set(create_status, [](ErrorCode code, const char* text) {
        ++live;
        return new Status{code, text};
    });
    set(release_status, [](Status* status) {
        --live;
        delete status;
    });
    set(create_op_domain, [](const char* name, OpDomain** out) -> Status* {
        MAY_FAIL();
        if (*name != 0) std::abort();
        *out = domains.emplace_back(std::make_unique<OpDomain>()).get();
        return nullptr;
    });
    set(add_op, [](OpDomain* domain, const CustomOp* op) -> Status* {
        MAY_FAIL();
        domain->op = op;
        return nullptr;
    });
    set(add_op_domain, [](SessionOptions* options, OpDomain* domain) -> Status* {
        MAY_FAIL();
        options->domains.push_back(domain);
        return nullptr;
    });
    set(tensor_data, [](const Value* value, void** out) -> Status* {
        MAY_FAIL();
        *out = value->data.get();
        return nullptr;
    });
    set(tensor_info_of_type, [](const TypeInfo* type, const TensorInfo** out) -> Status* {
        MAY_FAIL();
        *out = type->tensor ? &*type->tensor : nullptr;
        return nullptr;
    });
    set(create_tensor_info, [](TensorInfo** out) -> Status* {
        MAY_FAIL();
        ++live;
        *out = new TensorInfo;
        return nullptr;
    });
    set(set_element, [](TensorInfo* info, Element element) -> Status* {
        MAY_FAIL();
        info->element = element;
        return nullptr;
    });
    set(set_dimensions, [](TensorInfo* info, const std::int64_t* from, std::size_t count) -> Status* {
        MAY_FAIL();
        info->dimensions.assign(from, from + count);
        return nullptr;
    });
    set(dimensions_count, [](const TensorInfo* info, std::size_t* out) -> Status* {
        MAY_FAIL();
        *out = info->dimensions.size();
        return nullptr;
    });
    set(get_dimensions, [](const TensorInfo* info, std::int64_t* out, std::size_t count) -> Status* {
        MAY_FAIL();
        if (count != info->dimensions.size()) std::abort();
        std::copy(info->dimensions.begin(), info->dimensions.end(), out);
        return nullptr;
    });
    set(tensor_info_of_value, [](const Value* value, TensorInfo** out) -> Status* {
        MAY_FAIL();
        ++live;
        *out = new TensorInfo{Element::uint8, value->dimensions};
        return nullptr;
    });
    set(release_tensor_info, [](TensorInfo* info) {
        --live;
        delete info;
    });
    set(float_attribute, [](const KernelInfo* info, const char* name, float* out) -> Status* {
        MAY_FAIL();
        const float* found = find<float>(info->attributes, name);
        if (found == nullptr) return fail("no such attribute");
        *out = *found;
        return nullptr;
    });
    set(integer_attribute, [](const KernelInfo* info, const char* name, std::int64_t* out) -> Status* {
        MAY_FAIL();
        const std::int64_t* found = find<std::int64_t>(info->attributes, name);
        if (found == nullptr) return fail("no such attribute");
        *out = *found;
        return nullptr;
    });
    set(text_attribute, [](const KernelInfo* info, const char* name, char* out, std::size_t* size) -> Status* {
        MAY_FAIL();
        const std::string* found = find<std::string>(info->attributes, name);
        if (found == nullptr) return fail("no such attribute");
        if (out != nullptr && *size <= found->size()) return fail("no room");
        if (out != nullptr) std::memcpy(out, found->c_str(), found->size() + 1);
        *size = found->size() + 1;
        return nullptr;
    });
    set(integers_attribute, [](const KernelInfo* info, const char* name, std::int64_t* out, std::size_t* size) -> Status* {
        MAY_FAIL();
        const Dimensions* found = find<Dimensions>(info->attributes, name);
        if (found == nullptr) return fail("no such attribute");
        if (out != nullptr && *size < found->size()) return fail("no room");
        if (out != nullptr) std::copy(found->begin(), found->end(), out);
        *size = found->size();
        return nullptr;
    });
    set(kernel_input_type, [](const KernelInfo* info, std::size_t, TypeInfo** out) -> Status* {
        MAY_FAIL();
        if (!info->input) return fail("no type");
        ++live;
        *out = new TypeInfo(*info->input);
        return nullptr;
    });
    set(release_type_info, [](TypeInfo* info) {
        --live;
        delete info;
    });
    set(node_name, [](const KernelInfo* info, char* out, std::size_t* size) -> Status* {
        MAY_FAIL();
        if (out != nullptr) std::memcpy(out, info->name.c_str(), info->name.size() + 1);
        *size = info->name.size() + 1;
        return nullptr;
    });
    set(kernel_input, [](const KernelContext* context, std::size_t, const Value** out) -> Status* {
        MAY_FAIL();
        *out = context->x;
        return nullptr;
    });
    set(kernel_output,
        [](KernelContext* context, std::size_t, const std::int64_t* from, std::size_t count, Value** out) -> Status* {
            MAY_FAIL();
            *out = nullptr;
            if (!context->wants_y) return nullptr;
            context->y.dimensions.assign(from, from + count);
            context->y.data.reset(new std::uint8_t[context->y_bytes]);
            *out = &context->y;
            return nullptr;
        });
    set(infer_attribute, [](const InferContext* context, const char* name, const Attribute** out) -> Status* {
        MAY_FAIL();
        const auto at = context->attributes.find(name);
        if (at == context->attributes.end()) return fail("no such attribute");
        *out = &at->second;
        return nullptr;
    });
    set(infer_output, [](const InferContext* context, std::size_t, const TensorInfo* info) -> Status* {
        MAY_FAIL();
        context->output = *info;
        return nullptr;
    });
    set(read_attribute,
        [](const Attribute* attribute, AttributeKind kind, void* out, std::size_t room, std::size_t* size) -> Status* {
            MAY_FAIL();
            *size = 0;
            if (kind == AttributeKind::integer) {
                const std::int64_t* found = std::get_if<std::int64_t>(&attribute->value);
                if (found == nullptr) return fail("another kind");
                std::memcpy(out, found, *size = sizeof *found);
                return nullptr;
            }
            const Dimensions* found = std::get_if<Dimensions>(&attribute->value);
            *size = found == nullptr ? 0 : found->size() * sizeof(std::int64_t);
            if (room < *size) return fail("no room");
            if (*size != 0) std::memcpy(out, found->data(), *size);
            return nullptr;
        });
    set(parallel_for,
        [](const KernelContext*, void (*work)(void*, std::size_t), std::size_t total, std::size_t, void* all) -> Status* {
            MAY_FAIL();
            // The last piece first, half of them on a thread that flushes subnormal numbers.
            std::thread other([&] {
#if defined(__SSE__)
                _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
                for (std::size_t i = total; i-- > total / 2;) work(all, i);
            });
            for (std::size_t i = total / 2; i-- > 0;) work(all, i);
            other.join();
            return nullptr;
        });
}

}  // namespace
}  // namespace quantform::ort

extern "C" quantform::ort::Status* RegisterCustomOps(quantform::ort::SessionOptions*, const quantform::ort::ApiBase*);

// --- the tests -------------------------------------------------------------------------------------------------------

namespace {

using namespace quantform;
using namespace quantform::ort;

int failures = 0;

void check(bool right, const std::string& what) {
    if (right) return;
    std::fprintf(stderr, "%s\n", what.c_str());
    ++failures;
}

/// What a status says, which is released.
std::string text_of(Status* status) {
    if (status == nullptr) return "";
    std::string text = status->text;
    for (const char each : text) check(each >= 0x20 && each < 0x7F, "not printable: " + text);
    call(api, release_status, status);
    return text;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const ApiBase base{[](std::uint32_t version) { return version <= api_version ? api : nullptr; },
                   [] { return "1.22.0"; }};
const ApiBase old_base{[](std::uint32_t version) { return version < api_version ? api : nullptr; },
                       [] { return "1.21.1"; }};

const CustomOp& op() { return *domains.at(0)->op; }

struct KernelOwner {
    void* kernel = nullptr;
    ~KernelOwner() {
        if (kernel != nullptr) op().destroy(kernel);
    }
};

TypeInfo tensor(Dimensions dimensions) { return {TensorInfo{Element::uint8, std::move(dimensions)}}; }

void test_registration() {
    SessionOptions first, second;
    const std::string refused = text_of(RegisterCustomOps(&first, &old_base));
    check(contains(refused, "needs onnxruntime 1.22 or newer; found 1.21.1"), "old runtime: " + refused);
    for (failing_call = 0; failing_call < 3; ++failing_call) {
        calls = 0;
        check(text_of(RegisterCustomOps(&first, &base)) == "injected", "failing registration");
    }
    failing_call = -1;
    check(text_of(RegisterCustomOps(&first, &base)).empty() && text_of(RegisterCustomOps(&second, &base)).empty(),
          "registration");
    check(first.domains == second.domains && first.domains.size() == 1, "one domain");
    domains.erase(domains.begin(), domains.end() - 1);  // those of the failed calls
    check(op().version == api_version && std::string(op().name(&op())) == "DequantizePacked", "the operator");
}

/// Creates a kernel, runs it and compares with `decode`.
void test_one(const PackedKernel& format, Output output, std::int64_t element, std::size_t rows, std::mt19937& random) {
    const std::size_t count = 2 * rows, bytes = count * static_cast<std::size_t>(format.bytes);
    const Dimensions shape{static_cast<std::int64_t>(rows), 2 * format.values};
    KernelInfo info{{{"format", {std::string(format.identifier)}}, {"shape", {shape}}}, tensor({static_cast<std::int64_t>(bytes)})};
    if (output != Output::float32 || rows % 2 == 1) info.attributes["output_dtype"] = {element};
    InferContext inferring{info.attributes, std::nullopt};
    check(op().infer(&op(), &inferring) == nullptr && inferring.output &&
              inferring.output->element == static_cast<Element>(element) && inferring.output->dimensions == shape,
          "inference");
    KernelOwner owner;
    check(text_of(op().create_kernel(&op(), api, &info, &owner.kernel)).empty(), "creation");
    Value x{{static_cast<std::int64_t>(bytes)}, std::unique_ptr<std::uint8_t[]>(new std::uint8_t[bytes])};
    for (std::size_t i = 0; i < bytes; ++i) x.data[i] = static_cast<std::uint8_t>(random());
    KernelContext context{&x};
    context.y_bytes = count * static_cast<std::size_t>(format.values) * output_bytes(output);
    check(text_of(op().compute(owner.kernel, &context)).empty(), "computing");
    check(context.y.dimensions == shape, "the output's shape");
    std::vector<std::uint8_t> expected(context.y_bytes);
    decode(*active_set().load(), {&format, x.data.get(), count, output, expected.data()}, Stores::cached, 1);
    check(std::equal(expected.begin(), expected.end(), context.y.data.get()),
          std::string("values of ") + format.identifier);
}

void test_values(std::mt19937& random) {
    const std::array<std::int64_t, outputs> elements{1, 10, 16, 11};
    int formats = 0;
    for (const PackedKernel& format : active_set().load()->packed) {
        if (format.values == 0) continue;
        ++formats;
        for (std::size_t i = 0; i < outputs; ++i) {
            for (const std::size_t rows : {0U, 1U, 2U}) test_one(format, static_cast<Output>(i), elements[i], rows, random);
        }
        // several pieces, the last one not whole
        test_one(format, Output::float32, 1, 300001 / static_cast<std::size_t>(format.values), random);
    }
    check(formats == 27, "formats");
}

const Attribute q4_0{std::string("gguf:q4_0")};
const std::int64_t many = std::int64_t{1} << 62;

void test_wrong_attributes() {
    struct Case {
        Attributes attributes;
        std::string text;
    };
    const std::vector<Case> cases{
        {{}, "attribute format is missing"},
        {{{"format", q4_0}}, "attribute shape is missing"},
        {{{"format", {std::int64_t{2}}}, {"shape", {Dimensions{32}}}}, "attribute format is missing, or is no string"},
        {{{"format", q4_0}, {"shape", {std::int64_t{32}}}}, "attribute shape is missing, or is no list"},
        {{{"format", {std::string("gguf:Q4_0")}}, {"shape", {Dimensions{32}}}}, "'gguf:Q4_0'. Formats are case-sens"},
        {{{"format", {std::string("gguf:q4_0\0", 10)}}, {"shape", {Dimensions{32}}}}, "'gguf:q4_0\\x00'"},
        {{{"format", {std::string(1 << 20, '\xff')}}, {"shape", {Dimensions{32}}}}, "\\xff'..."},
        {{{"format", {std::string()}}, {"shape", {Dimensions{32}}}}, "no format is called ''"},
        {{{"format", q4_0}, {"shape", {Dimensions{}}}}, "shape [] has no dimension"},
        {{{"format", q4_0}, {"shape", {Dimensions{1, -1, 32}}}}, "shape [1, -1, 32] has a negative dimension; found -1"},
        {{{"format", q4_0}, {"shape", {Dimensions{0, 33}}}}, "expected a multiple of 32, found 33"},
        {{{"format", q4_0}, {"shape", {Dimensions(100, -32)}}}, "-32, ...] has a negative"},
        {{{"format", q4_0}, {"shape", {Dimensions{many, many, 32}}}}, "more bytes than a tensor can have"},
        {{{"format", q4_0}, {"shape", {Dimensions{many / 32, 32}}}, {"output_dtype", {std::int64_t{11}}}}, "more bytes"},
        {{{"format", q4_0}, {"shape", {Dimensions{32}}}, {"output_dtype", {std::int64_t{7}}}}, "no type of output; expect"},
        {{{"format", q4_0}, {"shape", {Dimensions{32}}}, {"output_dtype", {-many}}}, "found -4611686018427387904"},
        {{{"format", q4_0}, {"shape", {Dimensions{32}}}, {"output_dtype", {std::string("1")}}}, "output_dtype is no integer"},
        {{{"format", q4_0}, {"shape", {Dimensions{32}}}, {"output_dtype", {1.0F}}}, "output_dtype is no integer"},
        {{{"format", q4_0}, {"shape", {Dimensions{32}}}, {"output_dtype", {Dimensions{1}}}}, "output_dtype is no integer"},
    };
    for (const Case& each : cases) {
        const KernelInfo info{each.attributes, tensor({18})};
        KernelOwner owner;
        const std::string text = text_of(op().create_kernel(&op(), api, &info, &owner.kernel));
        check(contains(text, each.text) && contains(text, "DequantizePacked node 'layer \\xff': "), "said: " + text);
        InferContext inferring{each.attributes, std::nullopt};
        check(op().infer(&op(), &inferring) == nullptr, "inference of wrong attributes");
    }
    // the output has no byte, however large its other dimensions are
    for (const Dimensions& shape : {Dimensions{0, many, many, 32}, Dimensions{many, 0}}) {
        const KernelInfo info{{{"format", q4_0}, {"shape", {shape}}}, tensor({0})};
        KernelOwner owner;
        check(text_of(op().create_kernel(&op(), api, &info, &owner.kernel)).empty(), "empty outputs");
    }
}

void test_wrong_payloads() {
    const Attributes attributes{{"format", q4_0}, {"shape", {Dimensions{3, 32}}}};
    const std::string length = "gguf:q4_0 [3, 32] has the wrong length; expected 54 bytes, found ";
    const auto created = [&](std::optional<TypeInfo> type) {
        const KernelInfo info{attributes, std::move(type)};
        KernelOwner owner;
        return text_of(op().create_kernel(&op(), api, &info, &owner.kernel));
    };
    check(contains(created(tensor({53})), length + "53"), "known length");
    check(contains(created(tensor({0})), length + "0"), "known length of nothing");
    check(contains(created(tensor({54, 1})), "expected uint8 [n], found uint8 [54, 1]"), "known rank");
    for (const auto& type : {tensor({54}), tensor({-1}), tensor({}), TypeInfo{}}) {
        check(created(type).empty(), "unknown length");
    }
    check(created(std::nullopt).empty(), "unknown type");

    const KernelInfo info{attributes, std::nullopt};
    KernelOwner owner;
    check(text_of(op().create_kernel(&op(), api, &info, &owner.kernel)).empty(), "creation");
    for (const Dimensions& wrong : {Dimensions{}, Dimensions{0}, Dimensions{55}, Dimensions{6, 9}}) {
        const Value x{wrong, nullptr};
        KernelContext context{&x};
        const std::string text = text_of(op().compute(owner.kernel, &context));
        check(contains(text, wrong.size() == 1 ? length : "x is not a vector of bytes"), "said: " + text);
    }
    KernelContext nothing{nullptr};
    check(contains(text_of(op().compute(owner.kernel, &nothing)), "no x"), "no input");
    const Value x{{54}, std::unique_ptr<std::uint8_t[]>(new std::uint8_t[54]())};
    KernelContext unused{&x, false};
    check(text_of(op().compute(owner.kernel, &unused)).empty(), "an output that nobody wants");
}

/// Every call of the runtime fails once: nothing leaks, and what cannot be done without is reported.
void test_failing_runtime() {
    const std::size_t bytes = 144 * 1024;
    const KernelInfo info{{{"format", {std::string("gguf:q4_k")}}, {"shape", {Dimensions{1024, 256}}}},
                          tensor({static_cast<std::int64_t>(bytes)})};
    const Value x{{static_cast<std::int64_t>(bytes)}, std::unique_ptr<std::uint8_t[]>(new std::uint8_t[bytes]())};
    int reported = 0;
    for (failing_call = 0;; ++failing_call) {
        calls = 0;
        KernelOwner owner;
        std::string text = text_of(op().create_kernel(&op(), api, &info, &owner.kernel));
        if (text.empty()) {
            KernelContext context{&x};
            context.y_bytes = 1024 * 256 * sizeof(float);
            text = text_of(op().compute(owner.kernel, &context));
        }
        reported += text.empty() ? 0 : 1;
        if (calls <= failing_call) break;
    }
    check(reported > 10, "failures of the runtime");
    for (failing_call = 0;; ++failing_call) {
        calls = 0;
        InferContext inferring{info.attributes, std::nullopt};
        check(op().infer(&op(), &inferring) == nullptr, "inference in a failing runtime");
        if (calls <= failing_call) break;
    }
    failing_call = -1;
}

}  // namespace

int main() {
    fill();
    std::mt19937 random(1);
    test_registration();
    test_values(random);
    test_wrong_attributes();
    test_wrong_payloads();
    test_failing_runtime();
    check(live == 0, "objects that nobody released");
    if (failures == 0) std::printf("tested: the operator for onnxruntime\n");
    return failures == 0 ? 0 : 1;
}
