// Mixtures of experts: a router chooses the experts of each row, and each expert is multiplied with its rows alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels.hpp"
#include "linear.hpp"

namespace tidal {
namespace {

// The experts of a layer; must match `Mixture` in models/experts.py.
struct Mixture {
    std::int32_t count;       // experts that the router chooses from
    std::int32_t chosen;      // of these, for each row
    std::int32_t normalised;  // whether the probabilities of the chosen ones are divided by their sum
    std::int32_t shared;      // 1: the last expert is used by all rows, times the sigmoid of the last score; else 0
    const Matrix* router;     // to the scores of all experts
    const Matrix* const* up;  // of each expert, to gates and gated values
    const Matrix* const* down;

    int all() const { return count + shared; }
    int used() const { return chosen + shared; }
};

// An expert of a row, or a row of an expert, and the factor of its output.
struct Share {
    int number;
    float factor;
};

// Choose the experts of one row: those with the highest probabilities, the first ones of equals.
void choose(const Mixture& mixture, const float* scores, Share* to) {
    const int count = mixture.count, chosen = mixture.chosen;
    for (int i = 0; i < chosen; ++i) {
        int best = -1;
        for (int expert = 0; expert < count; ++expert) {
            const bool taken = std::any_of(to, to + i, [&](const Share& each) { return each.number == expert; });
            if (!taken && (best < 0 || scores[expert] > scores[best])) best = expert;
        }
        to[i] = {best, 0};
    }
    const float highest = scores[to[0].number];
    for (int i = 0; i < chosen; ++i) to[i].factor = std::exp(scores[to[i].number] - highest);
    float total = 0;
    if (mixture.normalised)
        for (int i = 0; i < chosen; ++i) total += to[i].factor;
    else
        for (int expert = 0; expert < count; ++expert) total += std::exp(scores[expert] - highest);
    for (int i = 0; i < chosen; ++i) to[i].factor /= total;
    if (mixture.shared) to[chosen] = {count, 1.0f / (1.0f + std::exp(-scores[count]))};
}

// Sort the rows by expert, ascending: those of an expert begin at `begins` of its number.
void sort_by_expert(const Mixture& mixture, int rows, const Share* chosen, int* begins, Share* sorted) {
    const int used = mixture.used();
    std::fill(begins, begins + mixture.all() + 1, 0);
    for (int i = 0; i < rows * used; ++i) ++begins[chosen[i].number + 1];
    for (int expert = 0; expert < mixture.all(); ++expert) begins[expert + 1] += begins[expert];
    for (int i = 0; i < rows * used; ++i) sorted[begins[chosen[i].number]++] = {i / used, chosen[i].factor};
    for (int expert = mixture.all(); expert > 0; --expert) begins[expert] = begins[expert - 1];
    begins[0] = 0;
}

// Add the outputs of one expert for some rows, ascending, to [rows, width].
void add_expert(const Matrix& up, const Matrix& down, int threads, const Share* shares, int count, Activation activation,
                const float* from, float* to) {
    thread_local std::vector<float> held_input, held_up, held_gated, held_output;
    const std::size_t width = up.inputs, inner = down.inputs;
    const float* input = from + shares[0].number * width;
    if (shares[count - 1].number - shares[0].number + 1 != count) {
        float* const gathered = scratch(held_input, count * width);
        for_rows(threads, count, [&](std::size_t i) {
            std::memcpy(gathered + i * width, from + shares[i].number * width, width * sizeof *from);
        });
        input = gathered;
    }
    float* const raised = scratch(held_up, 2 * count * inner);
    float* const gated = scratch(held_gated, count * inner);
    float* const output = scratch(held_output, count * width);
    linear(up, threads, count, input, nullptr, 0, raised);
    for_rows(threads, count, [&](std::size_t i) {
        kernels().gate(activation, static_cast<int>(inner), raised + 2 * i * inner, gated + i * inner);
    });
    linear(down, threads, count, gated, nullptr, 0, output);
    for_rows(threads, count, [&](std::size_t i) {
        float* const row = to + shares[i].number * width;
        for (std::size_t at = 0; at < width; ++at) row[at] += shares[i].factor * output[i * width + at];
    });
}

// The experts of all rows [rows, width], summed, plus `added`; reads only the experts that a row chose.
void apply_experts(const Mixture& mixture, int threads, int rows, Activation activation, const float* from,
                   const float* added, float* to) {
    thread_local std::vector<float> held_scores;
    thread_local std::vector<Share> held_chosen, held_sorted;
    thread_local std::vector<int> begins;
    const std::size_t width = mixture.router->inputs, used = mixture.used();
    float* const scores = scratch(held_scores, static_cast<std::size_t>(rows) * mixture.all());
    held_chosen.resize(rows * used);
    held_sorted.resize(rows * used);
    begins.resize(mixture.all() + 1);
    Share* const chosen = held_chosen.data();
    linear(*mixture.router, threads, rows, from, nullptr, 0, scores);
    for_rows(threads, rows, [&](std::size_t row) {
        choose(mixture, scores + row * mixture.all(), chosen + row * used);
    });
    sort_by_expert(mixture, rows, chosen, begins.data(), held_sorted.data());
    std::memcpy(to, added, rows * width * sizeof *to);
    for (int expert = 0; expert < mixture.all(); ++expert)
        if (const int count = begins[expert + 1] - begins[expert]; count > 0)
            add_expert(*mixture.up[expert], *mixture.down[expert], threads, held_sorted.data() + begins[expert], count,
                       activation, from, to);
}

}  // namespace
}  // namespace tidal
