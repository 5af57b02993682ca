// Work split over threads. Threads live for one call: nothing is shared between calls, survives a fork or needs a lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace quantform {

/// CPUs that this process may use, at least one.
inline std::size_t usable_cpus() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<std::size_t>(std::max(1, CPU_COUNT(&set)));
#endif
    return std::max(1U, std::thread::hardware_concurrency());
}

/// The default floating-point environment while it lives: rounds to nearest, keeps subnormals, whatever the caller's
/// thread was set to. The caller's own comes back, flags included.
class DefaultArithmetic {
   public:
    DefaultArithmetic(const DefaultArithmetic&) = delete;
    DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;
#if defined(__SSE__)
    // The part of the environment that vector code obeys; to save the rest takes longer than to decode a small tensor.
    DefaultArithmetic() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
    ~DefaultArithmetic() { _mm_setcsr(saved_); }

   private:
    unsigned saved_;
#else
    DefaultArithmetic() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultArithmetic() { std::fesetenv(&saved_); }

   private:
    std::fenv_t saved_;
#endif
};

/// Calls `work(first, end)` for pieces of `[0, count)` of at most `piece`, on `threads` threads or fewer; returns when
/// all are done. `work` must not throw, and its result must not depend on the pieces.
template <class Work>
void split(std::size_t count, std::size_t piece, std::size_t threads, const Work& work) {
    std::atomic<std::size_t> next{0};
    const auto run = [&] {
        const DefaultArithmetic arithmetic;
        for (;;) {
            const std::size_t first = next.fetch_add(piece, std::memory_order_relaxed);
            if (first >= count) return;
            work(first, std::min(first + piece, count));
        }
    };
    std::vector<std::thread> others;
    const std::size_t pieces = (count + piece - 1) / piece;
    try {
        for (std::size_t i = 1; i < std::min(threads, pieces); ++i) others.emplace_back(run);
    } catch (const std::exception&) {
        // The system gives no more threads: those that run, and this one, do the work.
    }
    run();
    for (std::thread& other : others) other.join();
}

}  // namespace quantform
