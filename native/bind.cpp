// The module, and the kernels it shows to Python. Only files named bind*.cpp know both.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind_encode.hpp"
#include "bind_layouts.hpp"
#include "bind_packed.hpp"
#include "cpu.hpp"
#include "decode.hpp"

namespace nb = nanobind;
using quantform::KernelSet;

namespace {

using In = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
using Out = nb::ndarray<nb::device::cpu, nb::c_contig>;  // of any type: it is filled with bytes

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const KernelSet* set : quantform::usable_sets()) names.emplace_back(set->name);
    return names;
}

void use_instruction_set(const std::string& name) {
    if (!quantform::use_set(name)) throw nb::value_error("no such instruction set here");
}

void decode_packed(int ggml_type, const In& blocks, int output, const Out& out, std::size_t threads, int stores) {
    const KernelSet& set = *quantform::active_set().load();
    if (ggml_type < 0 || ggml_type >= quantform::packed_types || output < 0 || output >= quantform::outputs) {
        throw nb::value_error("no such type");
    }
    const quantform::PackedKernel& kernel = set.packed[ggml_type];
    if (kernel.values == 0) throw nb::value_error("no such type");
    const auto type = static_cast<quantform::Output>(output);
    const std::size_t bytes = static_cast<std::size_t>(kernel.bytes), count = blocks.size() / bytes;
    const std::size_t block = static_cast<std::size_t>(kernel.values) * quantform::output_bytes(type);
    if (blocks.size() % bytes != 0 || out.nbytes() % block != 0 || out.nbytes() / block != count) {
        throw nb::value_error("the sizes of blocks and out do not fit each other");
    }
    const nb::gil_scoped_release released;
    quantform::decode(set, {&kernel, blocks.data(), count, type, static_cast<std::uint8_t*>(out.data())},
                      static_cast<quantform::Stores>(stores), threads);
}

}  // namespace

NB_MODULE(_kernels, m) {
    m.doc() = "quantform's compiled kernels; use quantform._native, which picks them or the NumPy path.";
    m.attr("version") = QUANTFORM_VERSION;
    m.def("cpu_features", &quantform::cpu_features, "Names of the instruction sets this processor has.");
    m.def("instruction_sets", &instruction_sets, "Names of the compiled sets this processor runs, the best last.");
    m.def(
        "instruction_set", [] { return std::string(quantform::active_set().load()->name); },
        "Name of the set that is in use.");
    m.def("use_instruction_set", &use_instruction_set, nb::arg("name"), "Uses the named set from now on.");
    m.def("decode_packed", &decode_packed, nb::arg("ggml_type"), nb::arg("blocks").noconvert(), nb::arg("output"),
          nb::arg("out").noconvert(), nb::arg("threads"), nb::arg("stores") = 0,
          "Decode whole blocks to the bytes of `out`; `output` is the place of its type in `OUTPUTS`.");
    register_packed(m);
    register_encode(m);
    register_layouts(m);
}
