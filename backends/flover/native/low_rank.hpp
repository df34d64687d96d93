// Low-rank updates of rows.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "bf16_vectors.hpp"

namespace tidal {
namespace {

inline float dot(const float* x, const float* y, int count) {
    Vector parts[4] = {};
    int i = 0;
    for (; i + 4 * kLanes <= count; i += 4 * kLanes)
        for (int v = 0; v < 4; ++v) parts[v] += load(x + i + v * kLanes) * load(y + i + v * kLanes);
    for (; i + kLanes <= count; i += kLanes) parts[0] += load(x + i) * load(y + i);
    float found = sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
    for (; i < count; ++i) found += x[i] * y[i];
    return found;
}

// Adds several ranks of a row's low-rank update: sums are read and written once for all of them.
template <int ranks>
void add_ranks(const LowRank& task, const float* input, std::int64_t first, float* output) {
    float between[ranks];
    for (int rank = 0; rank < ranks; ++rank)
        between[rank] = dot(input, task.down + (first + rank) * task.inputs, task.inputs);
    const float* up = task.up + first * task.outputs;
    int i = 0;
    for (; i + kLanes <= task.outputs; i += kLanes) {
        Vector found = load(output + i);
        for (int rank = 0; rank < ranks; ++rank)
            found += load(up + static_cast<std::size_t>(rank) * task.outputs + i) * between[rank];
        store(output + i, found);
    }
    for (; i < task.outputs; ++i)
        for (int rank = 0; rank < ranks; ++rank)
            output[i] += up[static_cast<std::size_t>(rank) * task.outputs + i] * between[rank];
}

void low_rank(const LowRank& task, int row) {
    const float* input = task.input + static_cast<std::size_t>(row) * task.inputs;
    const std::size_t place = static_cast<std::size_t>(row) * task.outputs;
    float* output = task.output + place;
    for (int i = 0; i < task.outputs; ++i) output[i] = task.added ? task.added[place + i] : 0.0f;
    constexpr int some = 4;
    std::int64_t rank = task.begins[row];
    for (; rank + some <= task.ends[row]; rank += some) add_ranks<some>(task, input, rank, output);
    for (; rank < task.ends[row]; ++rank) add_ranks<1>(task, input, rank, output);
}

}  // namespace
}  // namespace tidal
