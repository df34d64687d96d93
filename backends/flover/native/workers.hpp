// Spreading work over threads.
//
// A task is divided into parts, which the calling thread and all available helpers take one by one, and is done when all
// parts are. A helper whose core is used by the server or a client delays the task only if it is running a part. With
// OpenMP, all threads synchronise after each task, of which a pass has some hundred.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tidal {

using RunPart = void (*)(const void* work, int part);

// Run all parts with at most `threads` threads, including the calling one, and return when all are done. If several
// threads call this at the same time, one of them gets the helpers and the others run alone.
void share_out(int threads, int parts, RunPart run, const void* work);

constexpr int kMostParts = 1 << 20;

// Call work(begin, end) for at most `parts` ranges that cover 0 to count.
template <class Work>
void for_ranges(int threads, int count, int parts, const Work& work) {
    parts = std::min({count, parts, kMostParts});
    if (threads <= 1 || parts <= 1) {
        if (count > 0) work(0, count);
        return;
    }
    const auto part_of = [&](int part) {
        work(static_cast<int>(static_cast<std::int64_t>(count) * part / parts),
             static_cast<int>(static_cast<std::int64_t>(count) * (part + 1) / parts));
    };
    using PartOf = decltype(part_of);
    share_out(threads, parts, [](const void* given, int part) { (*static_cast<const PartOf*>(given))(part); }, &part_of);
}

}  // namespace tidal
