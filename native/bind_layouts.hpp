// What bind.cpp shows of the kernels for rows and layouts.
#pragma once

#include <nanobind/nanobind.h>

void register_layouts(nanobind::module_& module);
