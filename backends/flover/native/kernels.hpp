// What a decoder's kernels compute, and one table of them for each level of vector instructions.
//
// The kernels' file is compiled once for each level. It includes nothing but these headers and uses no inline functions
// of the standard library: a copy compiled for a newer processor must never be the one that the linker keeps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activation.hpp"

namespace tidal {

// The bits of a bfloat16.
using Half = std::uint16_t;

// Outputs in a panel of a packed matrix; the last panel is padded with zeros.
constexpr int kPanel = 48;

// Inputs that lie side by side for each output in a panel: what one instruction multiplies and adds up in bfloat16.
template <class Weight>
constexpr int kDepth = sizeof(Weight) == sizeof(Half) ? 2 : 1;

// A matrix [outputs, inputs] is packed as [panels][steps][kPanel][kDepth]: what is read one after the other lies so.
template <class Weight>
constexpr int steps_of(int inputs) {
    return (inputs + kDepth<Weight> - 1) / kDepth<Weight>;
}
constexpr int panels_of(int outputs) { return (outputs + kPanel - 1) / kPanel; }

// Few rows times a packed matrix: activation(rows * weight + bias), plus what is added.
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

// Rows that each write their key and value into a slot and attend to all that stands there up to their own.
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

// Rows that each add a low-rank difference of their own to what they share: some of the ranks of two factors.
struct LowRank {
    int inputs;
    int outputs;
    const float* input;          // [rows, inputs]
    const std::int64_t* begins;  // [rows], the first of a row's ranks
    const std::int64_t* ends;    // [rows], behind the last
    const float* down;           // [ranks, inputs]
    const float* up;             // [ranks, outputs]
    const float* added;          // [rows, outputs] or null
    float* output;               // [rows, outputs]
};

// Rows whose last axis is normalised: by its deviation from its mean, or by its size.
struct Norm {
    int width;
    bool centred;
    float epsilon;
    const float* input;   // [rows, width]
    const float* weight;  // [width]
    const float* bias;    // [width] or null
    float* output;        // [rows, width], perhaps the input
};

// Heads that are turned by the position of their row.
struct Turn {
    int heads;        // of a row that are turned
    int all_heads;    // of a row
    int size;         // of a head
    int turned;       // components of it, the first ones
    const float* cosines;             // [positions, turned]
    const float* sines;               // [positions, turned], those of the first half negative
    const std::int64_t* positions;    // [rows]
    float* made;                      // [rows, all_heads, size]
};

template <class Number>
struct KernelsOf {
    // The product's outputs of some panels.
    void (*product)(const Product<Number>&, int first_panel, int last_panel);
    // One row's key and value into its slot.
    void (*keep)(const Attention<Number>&, int row);
    // All queries of one row that share a key's head; `scores` has room for as many as the slot has tokens, and 16.
    void (*attend)(const Attention<Number>&, int row, int kv_head, float* scores);
};

struct Kernels {
    const char* name;
    KernelsOf<float> full;
    KernelsOf<Half> half;
    // What one row adds, on top of `added`.
    void (*low_rank)(const LowRank&, int row);
    void (*normalise)(const Norm&, int row);
    void (*turn)(const Turn&, int row);
    // One row [2 * width] of gates and of what they let through, to [width].
    void (*gate)(Activation, int width, const float* from, float* to);
    // To the nearest bfloat16, ties to even.
    void (*round)(const float* from, Half* to, std::size_t count);
};

// The levels, best first.
extern const Kernels kernels_avx512bf16, kernels_avx512, kernels_avx2, kernels_plain;

// The best level that this processor has, or the one that was forced.
const Kernels& kernels();

// Force a level by name, or undo that by "auto"; false where the processor lacks it.
bool choose_kernels(const char* name);

}  // namespace tidal
