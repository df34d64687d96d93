// The C interface: packing of matrices, linear layers, attention and whole passes, spread over threads.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention.hpp"
#include "kernels.hpp"
#include "packing.hpp"
#include "workers.hpp"

#define TIDAL_EXPORT extern "C" __attribute__((visibility("default")))

namespace tidal {
namespace {

// Parts of a product per thread: when the server or a client takes the core of a thread, the others continue.
constexpr int kParts = 8;
// Fewest rows that are spread over threads.
constexpr int kRows = 32;

template <class Work>
void for_rows(int threads, int rows, const Work& work) {
    for_ranges(threads, rows, rows / kRows, [&](int begin, int end) {
        for (int row = begin; row < end; ++row) work(row);
    });
}

// Bytes of rows in tiles that one call multiplies: with a panel they have to fit into the second level of caches.
constexpr int kTileBytes = 1 << 20;

// Whether a product takes its rows in tiles.
bool in_tiles(const Matrix&, int, float) { return false; }
bool in_tiles(const Matrix& matrix, int rows, Half) {
    return kernels().multiplies_tiles && rows >= matrix.tiling.matrix_rows;
}
bool in_integer_tiles(const Matrix& matrix, int rows) {
    return kernels().multiplies_tiles && rows >= matrix.tiling.integer_matrix_rows && matrix.integer_tile() > 0;
}

// Rows in the kernels' format: floats unchanged or rounded to bfloat16, and padded to whole tiles.
const float* input_of(const Product<float>&, int, const float* input) { return input; }
const Half* input_of(const Product<Half>& task, int threads, const float* input) {
    thread_local std::vector<Half> held;
    const std::size_t inputs = task.matrix.inputs, tiles = task.matrix.tiles(), stride = tiles * kTileInputs;
    const std::size_t held_rows = (task.rows + kTileRows - 1) / kTileRows * kTileRows;
    // Distances between a row's tiles and between rows.
    const std::size_t next_tile = task.in_tiles ? kTileHalves : kTileInputs;
    const auto place = [&](std::size_t row) {
        return task.in_tiles ? row / kTileRows * kTileRows * stride + row % kTileRows * kTileInputs : row * stride;
    };
    Half* const rounded = scratch(held, held_rows * stride);
    const auto& round = kernels().round;
    for_rows(threads, task.rows, [&](std::size_t row) {
        const float* const from = input + row * inputs;
        Half* to = rounded + place(row);
        if (!task.in_tiles && stride == inputs) return round(from, to, inputs);
        for (std::size_t tile = 0; tile < tiles; ++tile, to += next_tile) {
            const std::size_t begin = tile * kTileInputs, count = std::min<std::size_t>(kTileInputs, inputs - begin);
            round(from + begin, to, count);
            std::fill(to + count, to + kTileInputs, Half{});
        }
    });
    return rounded;
}

// Rows rounded to integers of 16 bits if `wide`, else of 8.
IntegerRows integers_of(const Matrix& matrix, int threads, const float* input, int rows, bool wide, bool tiles) {
    thread_local std::vector<std::int8_t> held_bytes;
    thread_local std::vector<float> held_scales;
    thread_local std::vector<std::int32_t> held_sums;
    const std::size_t groups = matrix.groups(), stride = groups * matrix.group;
    const std::size_t count = (rows + kTileRows - 1) / kTileRows * kTileRows * stride;
    const int part = tiles ? matrix.integer_tile() : static_cast<int>(stride);
    std::int8_t* const high = scratch(held_bytes, 2 * count);
    std::int8_t* const low = wide ? high + count : nullptr;
    float* const scales = scratch(held_scales, rows * groups);
    std::int32_t* const sums = scratch(held_sums, rows * groups);
    for_rows(threads, rows, [&](std::size_t row) {
        const std::size_t place =
            tiles ? row / kTileRows * kTileRows * stride + row % kTileRows * part : row * stride;
        kernels().round_to_integers({matrix.inputs, matrix.group, input + row * matrix.inputs, high + place,
                                     low ? low + place : nullptr, scales + row * groups, sums + row * groups, part,
                                     static_cast<std::size_t>(part) * kTileRows});
    });
    return {high, low, scales, sums, tiles};
}

// Call work(first, count, output) for parts of the rows: all of them, or as many in tiles as fit into the cache.
template <class Work>
void for_parts(const Matrix& matrix, int rows, std::size_t row_bytes, bool tiles, const Output& output, const Work& work) {
    const int parts = tiles ? static_cast<int>((rows * row_bytes - 1) / kTileBytes) + 1 : 1;
    const int most = parts > 1 ? ((rows - 1) / parts / kMostBlockRows + 1) * kMostBlockRows : rows;
    for (int first = 0; first < rows; first += most) {
        const std::size_t place = static_cast<std::size_t>(first) * matrix.outputs;
        work(first, std::min(most, rows - first),
             Output{output.added ? output.added + place : nullptr, output.output + place, output.activation});
    }
}

template <class Weight>
void multiply(const Matrix& matrix, int threads, int rows, const float* input, const Output& output) {
    const auto& run = kernels_of<Weight>().product;
    const bool tiles = in_tiles(matrix, rows, Weight{});
    const std::size_t inputs = matrix.inputs;
    for_parts(matrix, rows, inputs * sizeof(Weight), tiles, output, [&](int first, int count, const Output& to) {
        Product<Weight> task{matrix, count, nullptr, to, tiles};
        task.input = input_of(task, threads, input + first * inputs);
        for_ranges(threads, matrix.panels_count(), kParts * threads, [&](int begin, int end) { run(task, begin, end); });
    });
}

void multiply_integers(const Matrix& matrix, int threads, int rows, const float* input, const Output& output) {
    const auto& run = kernels().integer_product;
    const bool tiles = in_integer_tiles(matrix, rows);
    const std::size_t inputs = matrix.inputs;
    for_parts(matrix, rows, 2 * inputs, tiles, output, [&](int first, int count, const Output& to) {
        const auto rounded = integers_of(matrix, threads, input + first * inputs, count, rows < matrix.tiling.byte_rows, tiles);
        const IntegerProduct task{matrix, count, rounded, to};
        for_ranges(threads, matrix.panels_count(), kParts * threads, [&](int begin, int end) { run(task, begin, end); });
    });
}

void linear(const Matrix& matrix, int threads, int rows, const float* input, const float* added,
            std::int32_t activation, float* to) {
    const Output output{added, to, static_cast<Activation>(activation)};
    switch (matrix.format) {
        case Format::full: return multiply<float>(matrix, threads, rows, input, output);
        case Format::half: return multiply<Half>(matrix, threads, rows, input, output);
        default: return multiply_integers(matrix, threads, rows, input, output);
    }
}

// One operation of a pass; must match `_Operation` in models/passes.py.
enum class Kind : std::int32_t { embed, norm, linear, head_norm, turn, attend, gate };

struct Operation {
    Kind kind;
    std::int32_t half;  // whether embeddings, or keys and values, are bfloat16
    std::int32_t from, to, added;  // buffers; -1: none
    std::int32_t turned;  // components of a head that are rotated
    std::int32_t outputs;
    std::int32_t heads, kv_heads, size;
    std::int32_t activation;
    std::int32_t centred;
    std::int32_t last;  // whether from here on only the rows with logits are computed
    float epsilon;
    std::int64_t length;  // tokens of a slot
    const void* weights;  // of a linear layer: its `Matrix`
    const void* more;     // bias of a norm, positions' embeddings or sines
    void* held;        // keys and values
};

struct Rows {
    int count;
    const std::int64_t *ids, *slots, *positions;
};

template <class Weight>
void embed(const Operation& each, const Rows& rows, float* to) {
    const auto* tokens = static_cast<const Weight*>(each.weights);
    const auto* places = static_cast<const Weight*>(each.more);
    const std::size_t width = each.outputs;
    const auto widened = [](Weight from) {
        if constexpr (sizeof(Weight) == sizeof(float)) {
            return from;
        } else {
            const std::uint32_t bits = static_cast<std::uint32_t>(from) << 16;
            float found;
            std::memcpy(&found, &bits, sizeof found);
            return found;
        }
    };
    for (int row = 0; row < rows.count; ++row)
        for (std::size_t i = 0; i < width; ++i)
            to[row * width + i] = widened(tokens[rows.ids[row] * width + i]) +
                                  (places ? widened(places[rows.positions[row] * width + i]) : 0.0f);
}

void carry_out(const Operation& each, int threads, const Rows& rows, float* const* buffers) {
    float *from = each.from < 0 ? nullptr : buffers[each.from], *to = buffers[each.to];
    const float* added = each.added < 0 ? nullptr : buffers[each.added];
    const auto *weights = static_cast<const float*>(each.weights), *more = static_cast<const float*>(each.more);
    switch (each.kind) {
        case Kind::embed:
            (each.half ? embed<Half> : embed<float>)(each, rows, to);
            break;
        case Kind::norm: {
            const Norm task{each.outputs, each.centred != 0, each.epsilon, from, weights, more, to};
            for_rows(threads, rows.count, [&](int row) { kernels().normalise(task, row); });
            break;
        }
        case Kind::linear:
            linear(*static_cast<const Matrix*>(each.weights), threads, rows.count, from, added, each.activation, to);
            break;
        case Kind::head_norm:
            for_rows(threads, rows.count, [&](int row) {
                float* made = from + static_cast<std::size_t>(row) * (each.heads + 2 * each.kv_heads) * each.size;
                for (int head = 0; head < each.heads + each.kv_heads; ++head, made += each.size)
                    kernels().normalise(
                        Norm{each.size, false, each.epsilon, made, weights + head * each.size, nullptr, made}, 0);
            });
            break;
        case Kind::turn: {
            const Turn task{each.heads + each.kv_heads, each.heads + 2 * each.kv_heads, each.size, each.turned,
                            weights, more, rows.positions, from};
            for_rows(threads, rows.count, [&](int row) { kernels().turn(task, row); });
            break;
        }
        case Kind::attend:
            if (each.half)
                attention(threads, Attention<Half>{rows.count, each.heads, each.kv_heads, each.size, each.length, from,
                                                   static_cast<Half*>(each.held), rows.slots, rows.positions, to});
            else
                attention(threads, Attention<float>{rows.count, each.heads, each.kv_heads, each.size, each.length, from,
                                                    static_cast<float*>(each.held), rows.slots, rows.positions, to});
            break;
        case Kind::gate:
            for_rows(threads, rows.count, [&](int row) {
                const std::size_t width = each.outputs;
                kernels().gate(static_cast<Activation>(each.activation), each.outputs, from + 2 * row * width,
                               to + row * width);
            });
            break;
    }
}

}  // namespace
}  // namespace tidal

using namespace tidal;

// A whole pass in one call, over rows of any slots in any order: prefill, decode, or both. `widths` [buffers] are the
// widths of a row. Operations with `last` process only the rows `wanted`, in ascending order and contiguous; all rows if
// it is null.
TIDAL_EXPORT void tidal_pass(std::int32_t threads, std::int32_t count, const Operation* operations, std::int32_t rows,
                             const std::int64_t* ids, const std::int64_t* slots, const std::int64_t* positions,
                             float* const* buffers, const std::int32_t* widths, const std::int32_t* wanted,
                             std::int32_t wanted_rows) {
    Rows all{rows, ids, slots, positions};
    bool cut = false;
    for (std::int32_t number = 0; number < count; ++number) {
        const Operation& each = operations[number];
        if (each.last && wanted && !cut) {
            cut = true;
            const std::size_t width = widths[each.from];
            float* const kept = buffers[each.from];
            for (std::int32_t row = 0; row < wanted_rows; ++row)
                if (wanted[row] != row) std::memcpy(kept + row * width, kept + wanted[row] * width, width * sizeof *kept);
            all.count = wanted_rows;
        }
        carry_out(each, threads, all, buffers);
    }
}

TIDAL_EXPORT const char* tidal_kernels() { return kernels().name; }

TIDAL_EXPORT bool tidal_choose_kernels(const char* name) { return choose_kernels(name); }

// Size of a packed matrix in bytes.
TIDAL_EXPORT std::int64_t tidal_packed_bytes(const Matrix* matrix) {
    return static_cast<std::int64_t>(matrix->panel_bytes() * matrix->panels_count());
}

// Pack a matrix into its `panels`. `weights` [outputs, inputs] is float32 or bfloat16, or has one byte per weight, [outputs,
// groups * group]; `scales` is float32 [outputs] for int8, and pairs of scale and minimum, bfloat16 [outputs, groups, 2], for
// int4.
TIDAL_EXPORT void tidal_pack(const Matrix* matrix, std::int32_t threads, const void* weights, const void* scales) {
    pack(*matrix, threads, weights, scales);
}

// Request large pages for memory that was not written yet.
TIDAL_EXPORT void tidal_large_pages(void* from, std::size_t bytes) {
    const std::uintptr_t page = std::uintptr_t{1} << 21, begin = reinterpret_cast<std::uintptr_t>(from);
    const std::uintptr_t first = (begin + page - 1) & ~(page - 1), last = (begin + bytes) & ~(page - 1);
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

TIDAL_EXPORT void tidal_linear(const Matrix* matrix, std::int32_t threads, std::int32_t rows, const float* input,
                               const float* added, std::int32_t activation, float* output) {
    linear(*matrix, threads, rows, input, added, activation, output);
}

TIDAL_EXPORT void tidal_attention(bool half, std::int32_t threads, std::int32_t rows, std::int32_t heads,
                                  std::int32_t kv_heads, std::int32_t size, std::int64_t length, const float* made,
                                  void* held, const std::int64_t* slots, const std::int64_t* positions, float* output) {
    if (half)
        attention(threads, Attention<Half>{rows, heads, kv_heads, size, length, made, static_cast<Half*>(held), slots,
                                           positions, output});
    else
        attention(threads, Attention<float>{rows, heads, kv_heads, size, length, made, static_cast<float*>(held), slots,
                                            positions, output});
}

TIDAL_EXPORT void tidal_low_rank(std::int32_t threads, std::int32_t rows, std::int32_t inputs, std::int32_t outputs,
                                 const float* input, const std::int64_t* begins, const std::int64_t* ends,
                                 const float* down, const float* up, const float* added, float* output) {
    const LowRank task{inputs, outputs, input, begins, ends, down, up, added, output};
    const auto& run = kernels().low_rank;
    for_ranges(threads, rows, rows, [&](int begin, int end) {
        for (int row = begin; row < end; ++row) run(task, row);
    });
}
