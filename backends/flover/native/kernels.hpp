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

// Matrices, by the numbers that Python passes (tidal/flover/native/matrix.py).
enum class Format : std::int32_t { full, half, int8, int4 };

// Prefetch of a matrix that is read for a single block of rows.
enum class Prefetch : std::int32_t { none, non_temporal, t0, t1 };

// How products of a matrix are computed, chosen by measurement (tidal/flover/native/tuning.py).
struct Tiling {
    std::int32_t vectors;  // outputs of a panel in units of kUnit: 2, 3 or 4
    std::int32_t rows;     // largest number of rows of a tile
    Prefetch prefetch;
    std::int32_t byte_rows;  // integer matrices: number of rows from which on rows are rounded to 8 bits instead of 16
    std::int32_t matrix_rows;  // number of rows from which on a level with AMX uses it for a matrix of bfloat16
    std::int32_t integer_matrix_rows;  // the same for a matrix of integers
};

// Outputs of a panel: a multiple of this, the same at every level. The last panel is padded with zeros.
constexpr int kUnit = 16;
constexpr int kMostPanel = 4 * kUnit;

// Rows and inputs of a tile of bfloat16 rows, which AMX multiplies with as many inputs of 16 outputs.
constexpr int kTileRows = 16;
constexpr int kTileInputs = 32;
constexpr int kTileHalves = kTileRows * kTileInputs;
// Largest number of rows of a block that a panel is multiplied with.
constexpr int kMostBlockRows = 2 * kTileRows;
// Inputs of a tile of bytes; largest group of integers.
constexpr int kTileByteInputs = 64;
constexpr int kMostGroup = 128;

// A matrix [outputs, inputs], packed in the order in which it is read:
//   full, half  [panels][steps][panel][depth], where `depth` inputs are those that one instruction multiplies and sums
//   int8        [panels]{[groups][group / 4][panel][4], scales float [panel]}
//   int4        [panels][groups]{[group / 8][panel][4 bytes], (scale, minimum) bfloat16 [panel][2]}
// Integers are without sign. The weight of an int8 q is (q - 128) * scale, of an int4 q it is q * scale + minimum. The low
// halves of an int4 matrix's 4 bytes are 4 inputs, the high halves the next 4.
struct Matrix {
    Format format;
    std::int32_t inputs, outputs;
    std::int32_t group;  // integers: inputs that share a scale of rows, and of int4 weights; a multiple of 8, at most 128
    Tiling tiling;
    const void* panels;
    const float* bias;  // [panels * panel] or null

    int panel() const { return tiling.vectors * kUnit; }
    int panels_count() const { return (outputs + panel() - 1) / panel(); }
    int depth() const { return format == Format::half ? 2 : 1; }
    // Whole tiles of bfloat16 inputs; weights beyond the inputs are 0.
    int tiles() const { return (inputs + kTileInputs - 1) / kTileInputs; }
    int steps() const { return format == Format::half ? tiles() * (kTileInputs / 2) : inputs; }
    int groups() const { return (inputs + group - 1) / group; }
    // Inputs of a tile of bytes, of which a group has a whole number; 0: its inputs do not fill tiles.
    int integer_tile() const {
        if (group % kTileByteInputs == 0) return kTileByteInputs;
        return group == kTileByteInputs / 2 ? group : 0;
    }
    std::size_t panel_bytes() const {
        const std::size_t width = panel();
        switch (format) {
            case Format::int8: return width * groups() * group + width * sizeof(float);
            case Format::int4: return width * groups() * (group / 2 + 2 * sizeof(Half));
            default: return width * steps() * 4;
        }
    }
};

// What follows a product: activation(product + bias) + added.
struct Output {
    const float* added;  // [rows, outputs] or null
    float* output;       // [rows, outputs]
    Activation activation;
    Half* tiles = nullptr;  // not null: instead of `output`, rounded to bfloat16 in tiles as `Product` has its input

    // What follows the products of rows that begin `place` numbers behind the first, in whole tiles if there are some.
    Output behind(std::size_t place) const {
        return {added ? added + place : nullptr, output ? output + place : nullptr, activation,
                tiles ? tiles + place : nullptr};
    }
};

// Few rows times a packed matrix of floats.
template <class Weight>
struct Product {
    const Matrix& matrix;
    int rows;
    const Weight* input;  // [rows, steps * depth], or in tiles [ceil(rows / kTileRows), tiles, kTileRows, kTileInputs]
    Output output;
    bool in_tiles;  // bfloat16 at a level with AMX
};

// Rows as integers: scale * (256 * high + low), or scale * high.
struct IntegerRows {
    const std::int8_t* high;    // [rows, groups * group], or in tiles of kTileRows rows and the matrix's `integer_tile`
    const std::int8_t* low;     // the same, or null: rows have 8 bits
    const float* scales;        // [rows, groups]
    const std::int32_t* sums;   // [rows, groups], of the integers of a group
    bool in_tiles;              // at a level with AMX
};

// Few rows times a packed matrix of integers.
struct IntegerProduct {
    const Matrix& matrix;
    int rows;
    IntegerRows input;
    Output output;
};

// Rounding of one row to integers, each group to its own scale.
struct IntegerRounding {
    int inputs;
    int group;
    const float* input;  // [inputs]
    std::int8_t* high;   // [groups * group], of which each `part` begins `stride` bytes behind the one before
    std::int8_t* low;    // the same, or null: 8 bits
    float* scales;       // [groups]
    std::int32_t* sums;  // [groups]
    int part;
    std::size_t stride;
};

// Attention: each row writes its key and value into a slot, and attends to the positions up to its own.
template <class Held>
struct Attention {
    int rows;
    int heads;
    int kv_heads;
    int size;  // of a head
    std::int64_t length;            // tokens of a slot
    float scale;                    // of scores
    float cap;                      // scores become cap * tanh(score / cap); 0: they stay
    std::int64_t window;            // last positions that a row attends to, its own included; 0: all
    const float* made;              // [rows, heads + 2 * kv_heads, size]: queries, keys, values
    Held* held;                     // [slots, 2 * kv_heads, length, size]: keys, values
    float* scales;                  // [slots, 2 * kv_heads, length], of integers; else null
    const std::int64_t* slots;      // [rows]
    const std::int64_t* positions;  // [rows], of each row in its slot
    float* output;                  // [rows, heads, size]

    // The first position that a row at `position` attends to.
    std::int64_t first_seen(std::int64_t position) const {
        return window > 0 && position >= window ? position - window + 1 : 0;
    }
    // Scales of a slot's keys, or behind them of its values, of one head; null if they are no integers.
    const float* scales_of(std::int64_t slot, int head) const {
        return scales ? scales + (slot * 2 * kv_heads + head) * length : nullptr;
    }
};

// Queries and keys of a tile of attention, and of one by AMX.
constexpr int kTileQueries = 64;
constexpr int kTileKeys = 64;
constexpr int kMatrixQueries = 128;
constexpr int kMatrixKeys = 128;

// Number of successive rows of one slot whose attention is one tile; more queries only where more heads share keys.
template <class Held>
int tile_rows(const Attention<Held>& task, bool by_matrices) {
    const int group = task.heads / task.kv_heads;
    const int most = by_matrices && sizeof(Held) == sizeof(Half) ? kMatrixQueries : kTileQueries;
    return group < most ? most / group : 1;
}

// Numbers of bfloat16 that stand for one of float32 in attention by AMX.
constexpr int kSplit = 2;

// Floats that `attend_rows` needs for a tile of so many rows, at any level.
template <class Held>
std::size_t tile_floats(const Attention<Held>& task, int rows) {
    const std::size_t queries = static_cast<std::size_t>(rows) * (task.heads / task.kv_heads);
    const std::size_t padded = (queries + kMostBlockRows - 1) / kMostBlockRows * kMostBlockRows;
    const std::size_t size = (static_cast<std::size_t>(task.size) + kTileInputs - 1) / kTileInputs * kTileInputs;
    // Scores, sums, highest scores and totals; queries and weights; keys and values.
    const std::size_t of_queries = kMatrixKeys + size + 2 + (size + kMatrixKeys) * kSplit / 2;
    return padded * of_queries + kMatrixKeys * size;
}

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
    const float* added;   // [rows, width] or null
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
    // The same for at most `tile_rows` rows of one slot at successive positions; `scratch` has `tile_floats`, and
    // begins a line of the cache.
    void (*attend_rows)(const Attention<Number>&, int first, int rows, int kv_head, float* scratch);
};

struct Kernels {
    const char* name;
    bool multiplies_tiles;  // whether products take rows of bfloat16 and integers in tiles
    KernelsOf<float> full;
    KernelsOf<Half> half;
    KernelsOf<std::int8_t> bytes;  // of attention alone
    // The update of one row plus `added`.
    void (*low_rank)(const LowRank&, int row);
    void (*normalise)(const Norm&, int row);
    void (*turn)(const Turn&, int row);
    // One row [2 * width] of gates and gated values, to [width].
    void (*gate)(Activation, int width, const float* from, float* to);
    // `count` numbers x become cap * tanh(x * scale / cap).
    void (*soft_cap)(float* x, std::int64_t count, float scale, float cap);
    // A row of numbers to the nearest bfloat16, ties to even, in tiles that begin `next` numbers apart; the last one is padded
    // with zeros.
    void (*round)(const float* from, Half* to, std::size_t count, std::size_t next);
    void (*round_to_integers)(const IntegerRounding&);
    // Outputs of some panels of a linear layer with a matrix of integers.
    void (*integer_product)(const IntegerProduct&, int first_panel, int last_panel);
};

// The levels, best first.
extern const Kernels kernels_amx, kernels_avx512bf16, kernels_avx512vnni, kernels_avx512, kernels_avx2, kernels_plain;

// The best level of this processor, or the selected one.
const Kernels& kernels();

// Select a level by name, or the best by "auto"; false if the processor does not support it.
bool choose_kernels(const char* name);

}  // namespace tidal
