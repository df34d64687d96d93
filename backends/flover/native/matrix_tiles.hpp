// Products of rows in tiles with a packed matrix of bfloat16, by AMX: one instruction multiplies 16 rows of 32 inputs with
// these inputs of 16 outputs, and adds the products to 16 x 16 sums. A panel has its weights in the order that it reads.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "tile_registers.hpp"

#if defined(__AMX_BF16__)

namespace tidal {
namespace {

// Products of one or two tiles of rows with up to 4 or 2 units of outputs.
template <bool two, int units>
inline void multiply_tiles(const Product<Half>& task, const Half* rows, const char* weights, Fetch& fetch,
                           float* products) {
    static_assert(units <= (two ? 2 : 4), "there are 4 registers for sums");
    constexpr int steps = kTileInputs / 2 / units, unit_bytes = kUnit * 2 * sizeof(Half);
    const int tiles = task.matrix.tiles(), width = task.matrix.panel();
    const Half* const second = rows + static_cast<std::size_t>(tiles) * kTileHalves;
    const std::ptrdiff_t stride = width * 2 * sizeof(Half), row_bytes = kTileInputs * sizeof(Half);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int tile = 0; tile < tiles; ++tile, weights += kTileRows * stride) {
        const std::size_t place = static_cast<std::size_t>(tile) * kTileHalves;
        prefetch(fetch, kTileInputs / 2 - (units - 1) * steps);
        _tile_loadd(4, rows + place, row_bytes);
        if constexpr (two) _tile_loadd(5, second + place, row_bytes);
        _tile_loadd(6, weights, stride);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (two) _tile_dpbf16ps(1, 5, 6);
        if constexpr (units > 1) {
            prefetch(fetch, steps);
            _tile_loadd(7, weights + unit_bytes, stride);
            _tile_dpbf16ps(2, 4, 7);
            if constexpr (two) _tile_dpbf16ps(3, 5, 7);
        }
        if constexpr (units > 2) {
            prefetch(fetch, steps);
            _tile_loadd(6, weights + 2 * unit_bytes, stride);
            _tile_dpbf16ps(1, 4, 6);
        }
        if constexpr (units > 3) {
            prefetch(fetch, steps);
            _tile_loadd(7, weights + 3 * unit_bytes, stride);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    const std::ptrdiff_t to_stride = width * sizeof(float);
    _tile_stored(0, products, to_stride);
    if constexpr (units > 1) _tile_stored(2, products + kUnit, to_stride);
    if constexpr (two) {
        _tile_stored(1, products + kTileRows * width, to_stride);
        if constexpr (units > 1) _tile_stored(3, products + kTileRows * width + kUnit, to_stride);
    } else {
        if constexpr (units > 2) _tile_stored(1, products + 2 * kUnit, to_stride);
        if constexpr (units > 3) _tile_stored(3, products + 3 * kUnit, to_stride);
    }
}

// Tiles of inputs that many rows are multiplied with before the next ones: a slab of weights of 32 outputs and the rows'
// tiles stay in the first level of caches, which two threads may share.
constexpr int kSlabTiles = 8;
// Most rows whose sums are held meanwhile.
constexpr int kSlabRows = 8 * kMostBlockRows;

// Add products of two tiles of rows with one or two units of outputs, for some tiles of inputs, to their sums.
template <int units>
inline void add_tiles(const Half* rows, std::size_t second, int tiles, const char* weights, std::ptrdiff_t stride,
                      Fetch fetch, bool begins, float* sums, int width) {
    const std::ptrdiff_t row_bytes = kTileInputs * sizeof(Half), sum_bytes = width * sizeof(float);
    float* const below = sums + kTileRows * width;
    if (begins) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums, sum_bytes);
        _tile_loadd(1, below, sum_bytes);
        if constexpr (units > 1) _tile_loadd(2, sums + kUnit, sum_bytes);
        if constexpr (units > 1) _tile_loadd(3, below + kUnit, sum_bytes);
    }
    for (int tile = 0; tile < tiles; ++tile, weights += kTileRows * stride, rows += kTileHalves) {
        prefetch(fetch, kTileInputs / 2);
        _tile_loadd(6, weights, stride);
        _tile_loadd(4, rows, row_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, rows + second, row_bytes);
        _tile_dpbf16ps(1, 5, 6);
        if constexpr (units > 1) {
            _tile_loadd(7, weights + kUnit * 2 * sizeof(Half), stride);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, sum_bytes);
    _tile_stored(1, below, sum_bytes);
    if constexpr (units > 1) _tile_stored(2, sums + kUnit, sum_bytes);
    if constexpr (units > 1) _tile_stored(3, below + kUnit, sum_bytes);
}

// Products of `rows` rows, a multiple of kMostBlockRows, with some panels, slab by slab.
template <int units>
void matrix_slab_product_of(const Product<Half>& task, int rows, int first_panel, int last_panel) {
    const Matrix& matrix = task.matrix;
    const int tiles = matrix.tiles(), width = matrix.panel(), blocks = rows / kMostBlockRows;
    const int lines = (units + blocks - 1) / blocks;
    const std::size_t panel_bytes = matrix.panel_bytes(), second = static_cast<std::size_t>(tiles) * kTileHalves;
    const std::ptrdiff_t stride = width * 2 * sizeof(Half);
    alignas(64) float sums[kSlabRows * kMostPanel];
    shape_tiles(kMostBlockRows, kTileInputs * sizeof(Half), kTileInputs / 2);
    for (int number = first_panel; number < last_panel; ++number) {
        const char* const panel = static_cast<const char*>(matrix.panels) + number * panel_bytes;
        for (int group = 0; group < rows; group += kSlabRows) {
            const int count = rows - group < kSlabRows ? rows - group : kSlabRows;
            for (int tile = 0; tile < tiles; tile += kSlabTiles) {
                const int slab = tiles - tile < kSlabTiles ? tiles - tile : kSlabTiles;
                for (int unit = 0; unit < units; unit += 2) {
                    const char* const weights = panel + tile * kTileRows * stride + unit * kUnit * 2 * sizeof(Half);
                    const auto add = unit + 1 < units ? add_tiles<2> : add_tiles<1>;
                    for (int row = 0; row < count; row += kMostBlockRows) {
                        const std::size_t first_row = group + row, block = first_row / kMostBlockRows;
                        const Half* const from = task.input + (first_row * tiles + tile * kTileRows) * kTileInputs;
                        // The first blocks prefetch parts of the next panel.
                        const char* const next = panel + panel_bytes + (block * tiles + tile) * kTileRows * lines * kLine;
                        const bool fetches = unit == 0 && static_cast<int>(block) * lines < units;
                        add(from, second, slab, weights, stride, {next, lines, fetches ? Prefetch::t1 : Prefetch::none},
                            tile == 0, sums + row * width + unit * kUnit, width);
                    }
                }
            }
            finish(matrix, task.output, group, count, number, sums);
        }
    }
    _tile_release();
}

template <int units>
void matrix_tile_product_of(const Product<Half>& task, int first_panel, int last_panel) {
    int shaped = 0;
    for_blocks<kTileRows>(
        task.matrix, task.rows, kMostBlockRows, task.matrix.steps(), first_panel, last_panel, task.output,
        [&](int first_row, int count, const char* panel, Fetch fetch, float* products) {
            if (count != shaped) shape_tiles(shaped = count, kTileInputs * sizeof(Half), kTileInputs / 2);
            const Half* const rows = task.input + static_cast<std::size_t>(first_row) * task.matrix.tiles() * kTileInputs;
            if (count <= kTileRows) return multiply_tiles<false, units>(task, rows, panel, fetch, products);
            multiply_tiles<true, 2>(task, rows, panel, fetch, products);
            Fetch none{nullptr, 0, Prefetch::none};
            constexpr int rest = units - 2;
            if constexpr (rest > 0)
                multiply_tiles<true, rest>(task, rows, panel + 2 * kUnit * 2 * sizeof(Half), none, products + 2 * kUnit);
        });
    _tile_release();
}

template <int units>
void matrix_tile_product_in(const Product<Half>& task, int first_panel, int last_panel) {
    const int whole = task.rows / kMostBlockRows * kMostBlockRows;
    if (whole < 2 * kMostBlockRows) return matrix_tile_product_of<units>(task, first_panel, last_panel);
    matrix_slab_product_of<units>(task, whole, first_panel, last_panel);
    if (whole == task.rows) return;
    Product<Half> rest = task;
    const std::size_t place = static_cast<std::size_t>(whole) * task.matrix.outputs;
    rest.rows -= whole;
    rest.input += static_cast<std::size_t>(whole) * task.matrix.tiles() * kTileInputs;
    rest.output = rest.output.behind(place);
    matrix_tile_product_of<units>(rest, first_panel, last_panel);
}

void matrix_tile_product(const Product<Half>& task, int first_panel, int last_panel) {
    switch (task.matrix.tiling.vectors) {
        case 2: return matrix_tile_product_in<2>(task, first_panel, last_panel);
        case 3: return matrix_tile_product_in<3>(task, first_panel, last_panel);
        default: return matrix_tile_product_in<4>(task, first_panel, last_panel);
    }
}

}  // namespace
}  // namespace tidal

#endif
