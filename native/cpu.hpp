// What this processor can do, and which of the compiled kernel sets it runs. Knows nothing of Python.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "kernel_set.hpp"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace quantform {

#define QUANTFORM_DECLARE(set) \
    namespace set {            \
    extern const KernelSet kernels; \
    }
QUANTFORM_DECLARE(portable)
#if defined(QUANTFORM_X86_SETS)
QUANTFORM_DECLARE(x86_64_v3)
QUANTFORM_DECLARE(x86_64_v4)
QUANTFORM_DECLARE(x86_64_v4_bf16)
#endif
#undef QUANTFORM_DECLARE

/// The instruction sets that a kernel may be chosen by, in the order of preference from last to first.
inline std::vector<std::string> cpu_features() {
    std::vector<std::string> features;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2")) features.emplace_back("sse4.2");
    if (__builtin_cpu_supports("avx2")) features.emplace_back("avx2");
    if (__builtin_cpu_supports("avx512f")) features.emplace_back("avx512f");
    if (__builtin_cpu_supports("avx512bw")) features.emplace_back("avx512bw");
#elif defined(__aarch64__)
    features.emplace_back("neon");
#endif
    return features;
}

#if defined(QUANTFORM_X86_SETS)
/// Everything that x86-64-v3 promises; not every compiler's `__builtin_cpu_supports` knows all of the names.
inline bool has_x86_64_v3() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned fma = 1U << 12, movbe = 1U << 22, f16c = 1U << 29, lzcnt = 1U << 5;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & fma) == 0 || (c & movbe) == 0 || (c & f16c) == 0) return false;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d) == 0 || (c & lzcnt) == 0) return false;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

inline bool has_x86_64_v4() {
    return has_x86_64_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

inline bool has_bf16() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned bf16 = 1U << 5;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & bf16) != 0;
}
#endif

/// The compiled sets that this processor runs, the preferred one last.
inline std::vector<const KernelSet*> usable_sets() {
    std::vector<const KernelSet*> sets{&portable::kernels};
#if defined(QUANTFORM_X86_SETS)
    if (has_x86_64_v3()) sets.push_back(&x86_64_v3::kernels);
    if (has_x86_64_v4()) sets.push_back(&x86_64_v4::kernels);
    if (has_x86_64_v4() && has_bf16()) sets.push_back(&x86_64_v4_bf16::kernels);
#endif
    return sets;
}

inline std::atomic<const KernelSet*>& active_set() {
    static std::atomic<const KernelSet*> set{usable_sets().back()};
    return set;
}

/// Uses the named set from now on; false where it is not compiled in or the processor lacks it.
inline bool use_set(std::string_view name) {
    for (const KernelSet* set : usable_sets()) {
        if (name == set->name) {
            active_set().store(set);
            return true;
        }
    }
    return false;
}

/// Bytes of the largest cache, or a small guess where the system does not tell. Linux's own files are asked: what
/// sysconf says of the third level can be ten times too much on virtual machines.
inline std::size_t last_level_cache() {
    static const std::size_t bytes = [] {
        std::size_t largest = 0;
        for (int index = 0; index < 8; ++index) {
            std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
            std::size_t kibibytes = 0;
            if (file >> kibibytes) largest = std::max(largest, kibibytes << 10);
        }
        return largest != 0 ? largest : std::size_t{8} << 20;
    }();
    return bytes;
}

}  // namespace quantform
