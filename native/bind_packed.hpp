// Registers what bind_packed.cpp binds.
#pragma once

#include <nanobind/nanobind.h>

void register_packed(nanobind::module_& m);
