// How values reach an output: stored as usual, or past the caches by whole cache lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu.hpp"
#include "kernel_set.hpp"
#include "threads.hpp"

namespace quantform {

/// Where the values go on their way: `automatic` decides by the output's size.
enum class Stores : int { automatic, cached, streamed };

/// Output bytes decoded before they are streamed: whole units of every kernel, and a part of any first-level cache.
/// Measured: twice as many are slower, for some types much; half as many are slower for grid types and 16-bit outputs.
constexpr std::size_t stage_bytes = std::size_t{8} << 10;

/// A run of output that is stored past the caches: whole cache lines, and the parts of lines at both ends as usual.
class Stage {
   public:
    Stage(const KernelSet& set, std::uint8_t* out) : set_(set), out_(out) {
        head_ = (line - reinterpret_cast<std::uintptr_t>(out) % line) % line;
    }
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;
    ~Stage() {
        flush();
        std::memcpy(out_, begin_, pending());
        set_.fence();
    }

    /// Where the next values belong, with room for `bytes`, not more than `stage_bytes`.
    std::uint8_t* room(std::size_t bytes) {
        if (bytes > static_cast<std::size_t>(bytes_ + sizeof bytes_ - end_)) flush();
        return end_;
    }
    /// So many bytes from there on are values.
    void add(std::size_t bytes) { end_ += bytes; }

   private:
    static constexpr std::size_t line = 64;

    std::size_t pending() const { return static_cast<std::size_t>(end_ - begin_); }

    /// What is left of a line goes before the stage's first whole line, so that kernels always store to whole lines: a
    /// store across two costs far more than the load across two with which an output that is not aligned is paid for.
    void flush() {
        const std::size_t part = std::min(head_, pending());
        std::memcpy(out_, begin_, part);
        head_ -= part, out_ += part, begin_ += part;
        const std::size_t whole = pending() / line * line, rest = pending() - whole;
        set_.stream(begin_, whole, out_);
        out_ += whole;
        end_ = bytes_ + line;
        std::memmove(end_ - rest, begin_ + whole, rest);
        begin_ = end_ - rest;
    }

    const KernelSet& set_;
    std::uint8_t* out_;
    std::size_t head_;
    alignas(line) std::uint8_t bytes_[line + stage_bytes];
    std::uint8_t* begin_ = bytes_ + line;
    std::uint8_t* end_ = begin_;
};

/// Output bytes for which it pays to start another thread (measured: a start costs as much as some MiB in the caches).
constexpr std::size_t thread_bytes = std::size_t{8} << 20;
/// Output bytes that a thread takes at a time.
constexpr std::size_t piece_bytes = std::size_t{1} << 20;

/// Not more threads than `bytes` are worth; 0 asks for one on each usable CPU.
inline std::size_t useful_threads(std::size_t threads, std::size_t bytes) {
    const std::size_t useful = std::max<std::size_t>(1, bytes / thread_bytes);
    if (useful > 1 && threads == 0) threads = usable_cpus();
    return std::min(threads, useful);
}

/// Whether an output of so many bytes goes past the caches.
inline bool past_caches(Stores stores, std::size_t bytes) {
    return stores == Stores::streamed || (stores == Stores::automatic && bytes > last_level_cache() / 4 * 3);
}

}  // namespace quantform
