// What bind_encode.cpp adds to the module.
#pragma once

#include <nanobind/nanobind.h>

void register_encode(nanobind::module_& m);
