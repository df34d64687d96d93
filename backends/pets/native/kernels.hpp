// What the kernels compute, and one table of them for each level of vector instructions.
//
// The kernels' file is compiled once for each level. It includes nothing but this header and uses no inline functions
// of the standard library: a copy compiled for a newer processor must never be the one that the linker keeps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activation.hpp"

namespace tidal {

// Tokens of one row that a kernel takes at a time, at most.
constexpr int kBlock = 32;
// Outputs in a panel of a packed dense matrix; panels are padded with zeros.
constexpr int kPanel = 16;
// Rows of a sparse matrix that are computed side by side.
constexpr int kSlice = 8;

constexpr std::size_t padded(std::size_t count) { return (count + kPanel - 1) / kPanel * kPanel; }

// A matrix [outputs, inputs] whose rows are sorted by their number of entries, longest first, and cut into slices of
// `kSlice` rows. A slice is as long as its longest row (zeros follow in the others); entries are interleaved:
// entry k of a slice's row r is at (starts[slice] + k) * kSlice + r.
struct Sparse {
    std::uint32_t slices = 0;
    const std::uint32_t* starts = nullptr;   // [slices + 1]
    const std::uint32_t* rows = nullptr;     // [slices * kSlice] the output that a row is; `outputs` if there is none
    const std::uint16_t* columns = nullptr;  // [starts[slices] * kSlice]
    const float* values = nullptr;           // [starts[slices] * kSlice]
};

// A matrix [outputs, inputs] packed in panels [padded(outputs) / kPanel][inputs][kPanel].
struct Dense {
    std::uint32_t outputs = 0;
    std::uint32_t inputs = 0;
    const float* panels = nullptr;
};

// What a task adds at a linear layer. Pointers are null if it adds nothing.
struct LinearSite {
    const float* bias = nullptr;  // [outputs]
    Sparse sparse;                // used if it has slices
    Dense low_down, low_up;       // used where `low_down` has panels; the scale is in `low_up`
    Dense bottleneck_down, bottleneck_up;
    const float* bottleneck_down_bias = nullptr;  // [padded(width)]
    const float* bottleneck_up_bias = nullptr;    // [outputs]
    bool after_norm = false;                      // the bottleneck reads the normalised residual sum
    Activation activation = Activation::none;

    bool transposes() const { return sparse.slices != 0; }
};

// What a task's normalisation has instead of the shared weight and bias, [width] each.
struct NormSite {
    const float* weight = nullptr;
    const float* bias = nullptr;
};

// Consecutive tokens of one row at some linear layers that read the same input, side by side in the output.
struct LinearBlock {
    int tokens;
    int inputs;
    int layers;
    const int* outputs;               // [layers]
    const LinearSite* const* sites;   // [layers], null if the row's task adds nothing
    const float* shared;              // [tokens, sum(outputs)] what the shared layers computed
    const float* input;               // [tokens, inputs]
    float* output;                    // [tokens, sum(outputs)]
    Activation activation;
};

// Consecutive tokens whose bottleneck reads other vectors than the ones that it changes.
struct BottleneckBlock {
    int tokens;
    int outputs;
    const LinearSite* site;
    const float* source;  // [tokens, outputs]
    float* output;        // [tokens, outputs]
};

// Consecutive tokens to normalise: (output + residual), in place.
struct NormBlock {
    int tokens;
    int width;
    float epsilon;
    const float* source;    // [tokens, width]
    const float* residual;  // [tokens, width] or null
    const float* weight;
    const float* bias;
    float* output;
};

// One head of one row.
struct AttentionHead {
    int queries;
    int keys;
    int size;           // of a head
    const float* query;  // [queries, size], rows `query_stride` apart
    const float* key;    // [keys, size], rows `key_stride` apart
    const float* value;
    float* output;
    int query_stride;
    int key_stride;
    int output_stride;
    float* received;  // [keys] gets the attention that all queries pay to each, added; null if not requested
};

struct Kernels {
    const char* name;
    // Number of floats of scratch memory that the kernels need.
    std::size_t (*linear_scratch)(int inputs, int outputs, int widest_dense);
    std::size_t (*attention_scratch)(int keys, int size);
    void (*linear)(const LinearBlock&, float* scratch);
    void (*bottleneck)(const BottleneckBlock&, float* scratch);
    void (*norm)(const NormBlock&);
    void (*attention)(const AttentionHead&, float* scratch);
};

// The tables of all levels, best first.
extern const Kernels kernels_avx512, kernels_avx2, kernels_plain;

// The best level that this processor runs, or the one that was chosen.
const Kernels& kernels();

// Choose a level by name, or the best one by "auto"; false if this processor does not run it.
bool choose_kernels(const char* name);

}  // namespace tidal
