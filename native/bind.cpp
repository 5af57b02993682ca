// The module, and the kernels it shows to Python. Only files named bind*.cpp know both.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "bind_encode.hpp"
#include "bind_layouts.hpp"
#include "bind_packed.hpp"
#include "cpu.hpp"
#include "decode.hpp"

#include <unistd.h>

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

// The pages of a mapped file go away when it becomes shorter, and touching one is a signal that nothing can go on from.
// A program that runs alone can at least say so: this one writes what it was given, and ends with code 1.
char lost_pages_text[512];
std::size_t lost_pages_size = 0;

void lost_pages(int number, siginfo_t* info, void*) {
    if (info->si_code == BUS_ADRERR) {
        const char* text = lost_pages_text;
        for (std::size_t left = lost_pages_size; left > 0;) {
            const ssize_t count = write(STDERR_FILENO, text, left);
            if (count <= 0) break;
            text += count;
            left -= static_cast<std::size_t>(count);
        }
        _exit(1);
    }
    std::signal(number, SIG_DFL);  // something else: the instruction is tried again, and ends the process
}

void exit_on_lost_pages(const std::string& text) {
    if (text.size() > sizeof lost_pages_text) throw nb::value_error("the text is too long");
    std::memcpy(lost_pages_text, text.data(), text.size());
    lost_pages_size = text.size();
    struct sigaction action {};
    action.sa_sigaction = &lost_pages;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
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
    m.def("exit_on_lost_pages", &exit_on_lost_pages, nb::arg("text"),
          "From now on, write `text` to standard error and end the process with code 1 when a page of a mapped file is gone.");
    register_packed(m);
    register_encode(m);
    register_layouts(m);
}
