// The kernels of a decoder, and one table of them per level of vector instructions.
//
// kernels.cpp is compiled once per level. It includes only these headers and uses no inline functions of the standard
// library: the linker must never keep a copy compiled for a newer processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activation.hpp"

namespace tidal {

// The bits of a bfloat16.
using Half = std::uint16_t;

// Outputs in a panel of a packed matrix; the last panel is padded with zeros.
constexpr int kPanel = 48;

// Contiguous inputs per output in a panel: those that one instruction multiplies and sums in bfloat16.
template <class Weight>
constexpr int kDepth = sizeof(Weight) == sizeof(Half) ? 2 : 1;

// A matrix [outputs, inputs] is packed as [panels][steps][kPanel][kDepth], in the order in which it is read.
template <class Weight>
constexpr int steps_of(int inputs) {
    return (inputs + kDepth<Weight> - 1) / kDepth<Weight>;
}
constexpr int panels_of(int outputs) { return (outputs + kPanel - 1) / kPanel; }

// Few rows times a packed matrix: activation(rows * weight + bias) + added.
template <class Weight>
struct Product {
    int rows;
    int steps;
    int outputs;
    const Weight* input;   // [rows, steps * kDepth]
    const Weight* panels;  // packed
    const float* bias;     // [panels * kPanel] or null
    const float* added;    // [rows, outputs] or null
    float* output;         // [rows, outputs]
    Activation activation;
};

// Attention: each row writes its key and value into a slot, and attends to all positions up to its own.
template <class Held>
struct Attention {
    int rows;
    int heads;
    int kv_heads;
    int size;  // of a head
    std::int64_t length;            // tokens of a slot
    const float* made;              // [rows, heads + 2 * kv_heads, size]: queries, keys, values
    Held* held;                     // [slots, 2 * kv_heads, length, size]: keys, values
    const std::int64_t* slots;      // [rows]
    const std::int64_t* positions;  // [rows], of each row in its slot
    float* output;                  // [rows, heads, size]
};

// Low-rank updates: each row uses its own range of the ranks of two shared factors.
struct LowRank {
    int inputs;
    int outputs;
    const float* input;          // [rows, inputs]
    const std::int64_t* begins;  // [rows], first rank of each row
    const std::int64_t* ends;    // [rows], rank behind the last
    const float* down;           // [ranks, inputs]
    const float* up;             // [ranks, outputs]
    const float* added;          // [rows, outputs] or null
    float* output;               // [rows, outputs]
};

// Normalisation of the last axis of rows: layer norm (centred) or RMS norm.
struct Norm {
    int width;
    bool centred;
    float epsilon;
    const float* input;   // [rows, width]
    const float* weight;  // [width]
    const float* bias;    // [width] or null
    float* output;        // [rows, width], perhaps the input
};

// Rotary positions: rotation of heads by the position of their row.
struct Turn {
    int heads;        // number of rotated heads of a row
    int all_heads;    // number of heads of a row
    int size;         // of a head
    int turned;       // number of rotated components of a head, the first ones
    const float* cosines;             // [positions, turned]
    const float* sines;               // [positions, turned], those of the first half negative
    const std::int64_t* positions;    // [rows]
    float* made;                      // [rows, all_heads, size]
};

template <class Number>
struct KernelsOf {
    // Outputs of some panels of a linear layer.
    void (*product)(const Product<Number>&, int first_panel, int last_panel);
    // Write one row's key and value to its slot.
    void (*keep)(const Attention<Number>&, int row);
    // All queries of one row that share a key head; `scores` has room for the tokens of the slot plus 16.
    void (*attend)(const Attention<Number>&, int row, int kv_head, float* scores);
};

struct Kernels {
    const char* name;
    KernelsOf<float> full;
    KernelsOf<Half> half;
    // The update of one row plus `added`.
    void (*low_rank)(const LowRank&, int row);
    void (*normalise)(const Norm&, int row);
    void (*turn)(const Turn&, int row);
    // One row [2 * width] of gates and gated values, to [width].
    void (*gate)(Activation, int width, const float* from, float* to);
    // To the nearest bfloat16, ties to even.
    void (*round)(const float* from, Half* to, std::size_t count);
};

// The levels, best first.
extern const Kernels kernels_avx512bf16, kernels_avx512, kernels_avx2, kernels_plain;

// The best level of this processor, or the selected one.
const Kernels& kernels();

// Select a level by name, or the best by "auto"; false if the processor does not support it.
bool choose_kernels(const char* name);

}  // namespace tidal
