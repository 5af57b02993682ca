// The only file that knows both Python and the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu.hpp"

namespace nb = nanobind;

NB_MODULE(_kernels, m) {
    m.doc() = "quantform's compiled kernels; use quantform._native, which picks them or the NumPy path.";
    m.attr("version") = QUANTFORM_VERSION;
    m.def("cpu_features", &quantform::cpu_features, "Names of the instruction sets this processor has.");
}
