// What this processor can do, told once at run time. Knows nothing of Python.
#pragma once

#include <string>
#include <vector>

namespace quantform {

/// The instruction sets that a kernel may be chosen by, in the order of preference from last to first.
inline std::vector<std::string> cpu_features() {
    std::vector<std::string> features;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2")) features.emplace_back("sse4.2");
    if (__builtin_cpu_supports("avx2")) features.emplace_back("avx2");
    if (__builtin_cpu_supports("avx512f")) features.emplace_back("avx512f");
    if (__builtin_cpu_supports("avx512bw")) features.emplace_back("avx512bw");
    if (__builtin_cpu_supports("avx512vbmi")) features.emplace_back("avx512vbmi");
#elif defined(__aarch64__)
    features.emplace_back("neon");
#endif
    return features;
}

}  // namespace quantform
