// Spreading work over threads.
//
// Work is cut into parts that whoever is there takes one after the other, the calling thread too, and it is done when all
// parts are: a helper whose core is taken by server or clients holds up nobody as long as it has no part in hand. With
// OpenMP all threads have to meet behind each piece of work, of which a pass has some hundred.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tidal {

using RunPart = void (*)(const void* work, int part);

// Run all parts with at most so many threads, of which this is one, and return when all are done. From several threads
// at once: one of them gets the helpers, the others do without.
void share_out(int threads, int parts, RunPart run, const void* work);

constexpr int kMostParts = 1 << 20;

// Call work(begin, end) for ranges that cover 0 to count, at most `parts` of them.
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
