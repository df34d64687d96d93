// Shapes of the tile registers of AMX, and prefetch between their instructions.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "tiles.hpp"

#if defined(__AMX_TILE__)

namespace tidal {
namespace {

// What a processor reads to set the shapes of its tile registers.
struct TileShapes {
    std::uint8_t palette, start_row, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
};

// The intrinsics that read memory do not tell the compiler so: what was stored before them must not come after.
inline void finish_stores() { asm volatile("" : : : "memory"); }

// Registers 0 to 3 have sums, 4 and 5 rows, 6 and 7 weights; 1, 3 and 5 belong to the second tile of rows, if there is one.
// A row of a tile has `row_bytes` bytes, and a tile of weights `weight_rows` rows of 16 outputs.
inline void shape_tiles(int rows, int row_bytes, int weight_rows) {
    TileShapes shapes{};
    shapes.palette = 1;
    const int first = rows < kTileRows ? rows : kTileRows, second = rows > kTileRows ? rows - kTileRows : first;
    for (int tile = 0; tile < 8; ++tile) {
        const bool of_rows = tile == 4 || tile == 5;
        shapes.row_bytes[tile] = static_cast<std::uint16_t>(of_rows ? row_bytes : kUnit * 4);
        shapes.rows[tile] = static_cast<std::uint8_t>(tile > 5 ? weight_rows : tile % 2 ? second : first);
    }
    finish_stores();
    _tile_loadconfig(&shapes);
}

inline void prefetch(Fetch& fetch, int steps) {
    for (int step = 0; step < steps; ++step) fetch.next();
}

}  // namespace
}  // namespace tidal

#endif
