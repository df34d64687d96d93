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

void matrix_tile_product(const Product<Half>& task, int first_panel, int last_panel) {
    switch (task.matrix.tiling.vectors) {
        case 2: return matrix_tile_product_of<2>(task, first_panel, last_panel);
        case 3: return matrix_tile_product_of<3>(task, first_panel, last_panel);
        default: return matrix_tile_product_of<4>(task, first_panel, last_panel);
    }
}

}  // namespace
}  // namespace tidal

#endif
