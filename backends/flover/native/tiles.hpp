// What products of all formats share: blocks of rows, prefetch, and what follows a product.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "bf16_vectors.hpp"
#include "kernels.hpp"

namespace tidal {
namespace {

// Vectors of sums that stay in registers.
constexpr int kSums = kLanes == 16 ? 24 : 12;
constexpr int kLine = 64;
// Prefetch distance of a matrix that is read for a single block of rows.
constexpr int kAhead = 8192;

// What a tile prefetches in each step.
struct Fetch {
    const char* ahead;
    int lines;
    Prefetch how;

    inline void next() {
        switch (how) {
            case Prefetch::none: return;
            case Prefetch::non_temporal:
                for (int line = 0; line < lines; ++line) __builtin_prefetch(ahead + line * kLine, 0, 0);
                break;
            case Prefetch::t0:
                for (int line = 0; line < lines; ++line) __builtin_prefetch(ahead + line * kLine, 0, 3);
                break;
            case Prefetch::t1:
                for (int line = 0; line < lines; ++line) __builtin_prefetch(ahead + line * kLine, 0, 2);
                break;
        }
        ahead += lines * kLine;
    }
};

// Bias, activation and addition for the columns of a panel.
inline void finish(const Matrix& matrix, const Output& task, int first_row, int rows, int number, float* products) {
    const int width = matrix.panel(), first = number * width;
    const int left = matrix.outputs - first, columns = left < width ? left : width;
    for (int row = 0; row < rows; ++row) {
        float* from = products + row * width;
        for (int i = 0; i < width; i += kLanes) {
            Vector x = load(from + i);
            if (matrix.bias) x += load(matrix.bias + first + i);
            store(from + i, activated(task.activation, x));
        }
        if (task.tiles) {
            const std::size_t at = first_row + row;
            Half* const to = task.tiles + at / kTileRows * kTileRows * matrix.outputs + at % kTileRows * kTileInputs;
            for (int i = 0; i < columns; i += kLanes) {
                const std::size_t output = first + i;
                store_rounded(to + output / kTileInputs * kTileHalves + output % kTileInputs, load(from + i));
            }
            continue;
        }
        const std::size_t place = static_cast<std::size_t>(first_row + row) * matrix.outputs + first;
        float* to = task.output + place;
        const float* added = task.added ? task.added + place : nullptr;
        int i = 0;
        for (; i + kLanes <= columns; i += kLanes) store(to + i, added ? load(from + i) + load(added + i) : load(from + i));
        for (; i < columns; ++i) to[i] = added ? from[i] + added[i] : from[i];
    }
}

// Products of all rows with some panels, in blocks of at most `tile_rows` rows, a multiple of `rounded_to` but for the last.
// `tile(first_row, rows, panel, fetch, products)` computes those of a block with a panel, [rows, panel]; it calls
// `fetch.next()` `steps` times.
template <int rounded_to = 1, class Tile>
inline void for_blocks(const Matrix& matrix, int all_rows, int tile_rows, int steps, int first_panel, int last_panel,
                       const Output& output, const Tile& tile) {
    const std::size_t stride = matrix.panel_bytes();
    const int vectors = matrix.tiling.vectors;
    const int blocks = (all_rows + tile_rows - 1) / tile_rows;
    const int even = (all_rows + blocks - 1) / blocks, most = (even + rounded_to - 1) / rounded_to * rounded_to;
    const int lines = (vectors + blocks - 1) / blocks;
    alignas(64) float products[kMostBlockRows * kMostPanel];
    for (int number = first_panel; number < last_panel; ++number) {
        const char* panel = static_cast<const char*>(matrix.panels) + number * stride;
        // A panel stays in the cache for all blocks of rows; each block prefetches a part of the next panel.
        const char* next = panel + stride;
        for (int block = 0; block * most < all_rows; ++block) {
            const int first_row = block * most;
            const int rows = all_rows - first_row < most ? all_rows - first_row : most;
            Fetch fetch{next + static_cast<std::size_t>(block) * steps * lines * kLine, lines, Prefetch::t1};
            if (blocks == 1)
                fetch = Fetch{panel + kAhead, vectors, matrix.tiling.prefetch};
            else if (block * lines >= vectors)
                fetch.how = Prefetch::none;
            tile(first_row, rows, panel, fetch, products);
            finish(matrix, output, first_row, rows, number, products);
        }
    }
}

}  // namespace
}  // namespace tidal
