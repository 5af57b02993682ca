// The plain calls of `dequantize_packed`, of which a look at the arguments in Python would take several times as long as
// the work itself. Nothing is refused here: a call in which anything is unusual or wrong is left to Python.
//
// This is the plain C API, as far as it is stable: to cast to a `nb::ndarray` takes longer than to decode 4 KiB.
#include "bind_packed.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "cpu.hpp"
#include "decode.hpp"

namespace nb = nanobind;

namespace {

constexpr std::size_t most_dimensions = 64;  // NumPy's
constexpr Py_ssize_t most_threads = 1024;
/// Bytes of output that are decoded sooner than the interpreter is let go and got back.
constexpr std::size_t held_bytes = std::size_t{1} << 15;
/// Kernels store whole cache lines where an output begins at one; in smaller outputs that saves less than it costs to
/// find the beginning.
constexpr std::size_t line = 64, aligned_bytes = std::size_t{1} << 17;

struct NumPy {
    nb::object module = nb::module_::import_("numpy");
    nb::object array = module.attr("ndarray"), empty = module.attr("empty"), byte = module.attr("dtype")("uint8");
};

/// What arguments are compared with.
struct Known {
    NumPy numpy;
    nb::dict profiles;  // identifiers: ggml's numbers
    nb::dict outputs;   // names of the output types: their places in `types`
    std::array<nb::object, quantform::outputs> types;
    nb::object dtype = nb::steal(PyUnicode_InternFromString("dtype"));
};

/// An object's bytes. While it lives, a bytearray cannot be resized.
class View {
   public:
    View() = default;
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    ~View() { PyBuffer_Release(&buffer_); }

    bool open(PyObject* object, int flags) { return PyObject_GetBuffer(object, &buffer_, flags) == 0; }
    const Py_buffer* operator->() const { return &buffer_; }
    std::uint8_t* data() const { return static_cast<std::uint8_t*>(buffer_.buf); }
    std::size_t size() const { return static_cast<std::size_t>(buffer_.len); }
    bool overlaps(const View& other) const {
        const auto begin = reinterpret_cast<std::uintptr_t>(data());
        const auto other_begin = reinterpret_cast<std::uintptr_t>(other.data());
        return begin < other_begin + other.size() && other_begin < begin + size();
    }

   private:
    Py_buffer buffer_{};
};

/// As `numpy.empty`, of `bytes` bytes; a large array begins at a cache line. Invalid where Python raised an error.
nb::object empty(const NumPy& numpy, PyObject* shape, PyObject* type, std::size_t bytes) {
    if (bytes < aligned_bytes) return nb::steal(PyObject_CallFunctionObjArgs(numpy.empty.ptr(), shape, type, nullptr));
    const nb::object size = nb::steal(PyLong_FromSize_t(bytes + line - 1));
    if (!size.is_valid()) return {};
    const nb::object memory =
        nb::steal(PyObject_CallFunctionObjArgs(numpy.empty.ptr(), size.ptr(), numpy.byte.ptr(), nullptr));
    View view;
    if (!memory.is_valid() || !view.open(memory.ptr(), PyBUF_SIMPLE)) return {};
    const nb::object first = nb::steal(PyLong_FromSize_t(-reinterpret_cast<std::uintptr_t>(view.data()) % line));
    if (!first.is_valid()) return {};
    return nb::steal(
        PyObject_CallFunctionObjArgs(numpy.array.ptr(), shape, type, memory.ptr(), first.ptr(), nullptr));
}

/// Positive dimensions.
struct Shape {
    std::array<Py_ssize_t, most_dimensions> dimensions;
    std::size_t rank;
};

// Each of these says no, with or without a Python error, where Python has to look.

/// A positive number, of type `int` exactly.
bool get_positive(PyObject* object, Py_ssize_t most, Py_ssize_t& number) {
    if (!PyLong_CheckExact(object)) return false;
    number = PyLong_AsSsize_t(object);
    return number > 0 && number <= most;
}

/// What a table has for a text.
bool get_number(const nb::dict& table, PyObject* text, int& number) {
    if (!PyUnicode_CheckExact(text)) return false;
    PyObject* found = PyDict_GetItemWithError(table.ptr(), text);
    if (found == nullptr) return false;
    number = static_cast<int>(PyLong_AsLong(found));
    return true;
}

/// The place of an output type that is given by name or as NumPy's own object.
bool get_output(const Known& known, PyObject* type, int& place) {
    const auto found = std::find_if(known.types.begin(), known.types.end(), [&](auto& one) { return one.is(type); });
    place = static_cast<int>(found - known.types.begin());
    return found != known.types.end() || get_number(known.outputs, type, place);
}

/// A tuple's or list's dimensions.
bool get_shape(PyObject* object, Shape& shape) {
    // A list is copied: without a lock on the interpreter, another thread may change it meanwhile.
    const nb::object tuple = nb::steal(PyList_CheckExact(object) ? PyList_AsTuple(object) : Py_NewRef(object));
    if (!tuple.is_valid() || !PyTuple_CheckExact(tuple.ptr())) return false;
    shape.rank = static_cast<std::size_t>(PyTuple_Size(tuple.ptr()));
    if (shape.rank == 0 || shape.rank > most_dimensions) return false;
    for (std::size_t axis = 0; axis < shape.rank; ++axis) {
        PyObject* dimension = PyTuple_GetItem(tuple.ptr(), static_cast<Py_ssize_t>(axis));
        if (!get_positive(dimension, PY_SSIZE_T_MAX, shape.dimensions[axis])) return false;
    }
    return true;
}

/// How many blocks a shape has, whose payload and values are no more than memory can hold.
bool count_blocks(const Shape& shape, const quantform::PackedKernel& kernel, std::size_t item, std::size_t& blocks) {
    if (shape.dimensions[shape.rank - 1] % kernel.values != 0) return false;
    Py_ssize_t values = 1, bytes = 0;
    for (std::size_t axis = 0; axis < shape.rank; ++axis) {
        if (__builtin_mul_overflow(values, shape.dimensions[axis], &values)) return false;
    }
    blocks = static_cast<std::size_t>(values / kernel.values);
    return !__builtin_mul_overflow(values, item, &bytes) && !__builtin_mul_overflow(blocks, kernel.bytes, &bytes);
}

/// The threads of a call: 0 for as many as are useful.
bool get_threads(PyObject* object, Py_ssize_t& threads) {
    threads = 0;
    if (object != Py_None) return get_positive(object, most_threads, threads);
#if defined(Py_GIL_DISABLED)
    return false;  // another thread may change the environment meanwhile, which only Python reads safely
#else
    return std::getenv("QUANTFORM_THREADS") == nullptr;
#endif
}

/// An array, and no subclass, of a type.
bool is_array(const Known& known, PyObject* object, const nb::object& type) {
    return reinterpret_cast<PyObject*>(Py_TYPE(object)) == known.numpy.array.ptr() &&
           nb::steal(PyObject_GetAttr(object, known.dtype.ptr())).is(type);
}

bool open_payload(const Known& known, PyObject* x, View& view) {
    if (PyBytes_CheckExact(x) || PyByteArray_CheckExact(x) || PyMemoryView_Check(x)) return view.open(x, PyBUF_SIMPLE);
    return is_array(known, x, known.numpy.byte) && view.open(x, PyBUF_ND) && view->ndim == 1;
}

bool open_output(const Known& known, PyObject* out, const nb::object& type, const Shape& shape, View& view) {
    // `PyBUF_ND` without strides admits C-contiguous memory only.
    return is_array(known, out, type) && view.open(out, PyBUF_ND | PyBUF_WRITABLE) &&
           static_cast<std::size_t>(view->ndim) == shape.rank &&
           std::equal(view->shape, view->shape + view->ndim, shape.dimensions.begin());
}

/// The values of a plain call, else nothing.
nb::object decode_plain(const Known& known, PyObject* x, PyObject* format, PyObject* given_shape, PyObject* given_type,
                        PyObject* given_out, PyObject* given_threads) {
    int ggml_type = 0, place = 0;
    Py_ssize_t threads = 0;
    Shape shape;
    if (!get_number(known.profiles, format, ggml_type) || !get_output(known, given_type, place) ||
        !get_shape(given_shape, shape) || !get_threads(given_threads, threads)) {
        return {};
    }
    const quantform::KernelSet& set = *quantform::active_set().load();
    const quantform::PackedKernel& kernel = set.packed[ggml_type];
    const auto output = static_cast<quantform::Output>(place);
    const nb::object& type = known.types[static_cast<std::size_t>(place)];
    const std::size_t item = quantform::output_bytes(output);
    std::size_t blocks = 0;
    View payload, values;
    if (!count_blocks(shape, kernel, item, blocks) || !open_payload(known, x, payload) ||
        payload.size() != blocks * static_cast<std::size_t>(kernel.bytes)) {
        return {};
    }
    nb::object out = nb::borrow(given_out);
    if (out.is_none()) {
        out = empty(known.numpy, given_shape, type.ptr(), blocks * static_cast<std::size_t>(kernel.values) * item);
        if (!out.is_valid()) return {};
    }
    if (!open_output(known, out.ptr(), type, shape, values) || values.overlaps(payload)) return {};
    const auto decode = [&] {
        const quantform::Decode job{&kernel, payload.data(), blocks, output, values.data()};
        quantform::decode(set, job, quantform::Stores::automatic, static_cast<std::size_t>(threads));
    };
    if (values.size() <= held_bytes) {
        decode();
    } else {
        const nb::gil_scoped_release released;
        decode();
    }
    return out;
}

PyObject* call(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
    const auto* known = static_cast<const Known*>(PyCapsule_GetPointer(self, nullptr));
    if (known == nullptr) return nullptr;
    if (count != 6) {
        PyErr_SetString(PyExc_TypeError, "six arguments are needed");
        return nullptr;
    }
    nb::object values =
        decode_plain(*known, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
    if (values.is_valid()) return values.release().ptr();
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

PyMethodDef method{"plain_decoder", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)), METH_FASTCALL,
                   "Decodes, or returns None where Python has to look at the arguments."};

nb::object plain_decoder(const nb::dict& profiles, const nb::dict& outputs) {
    auto known = std::make_unique<Known>();
    known->profiles = profiles;
    std::size_t place = 0;
    for (const auto [name, type] : outputs) {
        known->outputs[name] = place;
        known->types.at(place++) = nb::borrow(type);
    }
    const auto destroy = [](PyObject* capsule) { delete static_cast<Known*>(PyCapsule_GetPointer(capsule, nullptr)); };
    const nb::object capsule = nb::steal(PyCapsule_New(known.get(), nullptr, destroy));
    if (!capsule.is_valid()) throw nb::python_error();
    known.release();
    return nb::steal(PyCFunction_NewEx(&method, capsule.ptr(), nullptr));
}

}  // namespace

void register_packed(nb::module_& m) {
    m.def(
        "empty",
        [](nb::handle shape, nb::handle dtype, std::size_t bytes) {
            nb::object array = empty(NumPy{}, shape.ptr(), dtype.ptr(), bytes);
            if (!array.is_valid()) throw nb::python_error();
            return array;
        },
        nb::arg("shape"), nb::arg("dtype"), nb::arg("bytes"),
        "As `numpy.empty`, of `bytes` bytes; a large array begins at a cache line.");
    m.def("plain_decoder", &plain_decoder, nb::arg("profiles"), nb::arg("outputs"), "A function for the plain calls of `dequantize_packed`.");
}
