// Products of rows of bytes in tiles with a packed matrix of 8 or 4 bits, by AMX: the sums of a group are those of
// integer_products.hpp, which are exact, and so are the floats that they become.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "integer_products.hpp"
#include "tile_registers.hpp"

#if defined(__AMX_INT8__)

namespace tidal {
namespace {

constexpr int kUnitBytes = kUnit * 4;
// Bytes of a group of 4-bit weights of 16 outputs as bytes.
constexpr int kGroupBytes = kMostGroup / 4 * kUnitBytes;

// Weights of 4 bits [group / 8][16][4] of a panel as bytes [group / 4][16][4].
inline void widen_group(const char* from, int panel, int group, std::uint8_t* to) {
    for (int i = 0; i < group; i += 8, from += panel * 4, to += 2 * kUnitBytes) {
        const Integers both = *reinterpret_cast<const UnalignedIntegers*>(from);
        *reinterpret_cast<Integers*>(to) = both & 0x0f0f0f0f;
        *reinterpret_cast<Integers*>(to + kUnitBytes) = (both >> 4) & 0x0f0f0f0f;
    }
    finish_stores();
}

// Sums of a group of 16 outputs, of the high and the low bytes of one or two tiles of rows.
template <int bytes>
inline void sum_group(const std::int8_t* high, const std::int8_t* low, std::size_t second, int tiles, int tile_inputs,
                      const void* weights, std::ptrdiff_t stride, bool two, std::int32_t* sums) {
    const std::size_t tile_bytes = static_cast<std::size_t>(kTileRows) * tile_inputs;
    const char* weight = static_cast<const char*>(weights);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int tile = 0; tile < tiles; ++tile, weight += tile_inputs / 4 * stride) {
        const std::size_t place = tile * tile_bytes;
        _tile_loadd(6, weight, stride);
        _tile_loadd(4, high + place, tile_inputs);
        _tile_dpbsud(0, 4, 6);
        if (two) {
            _tile_loadd(5, high + place + second, tile_inputs);
            _tile_dpbsud(1, 5, 6);
        }
        if constexpr (bytes == 2) {
            _tile_loadd(4, low + place, tile_inputs);
            _tile_dpbsud(2, 4, 6);
            if (two) {
                _tile_loadd(5, low + place + second, tile_inputs);
                _tile_dpbsud(3, 5, 6);
            }
        }
    }
    constexpr int tile = kTileRows * kUnit, all = kMostBlockRows * kUnit;
    _tile_stored(0, sums, kUnitBytes);
    if (two) _tile_stored(1, sums + tile, kUnitBytes);
    if constexpr (bytes == 2) {
        _tile_stored(2, sums + all, kUnitBytes);
        if (two) _tile_stored(3, sums + all + tile, kUnitBytes);
    }
}

template <int bits, int bytes>
void integer_matrix_tile_product_of(const IntegerProduct& task, int first_panel, int last_panel) {
    static_assert(kLanes == kUnit, "a row of sums is a vector");
    const Matrix& matrix = task.matrix;
    const int groups = matrix.groups(), group = matrix.group, width = matrix.panel(), units = matrix.tiling.vectors;
    const int tile_inputs = matrix.integer_tile(), tiles = group / tile_inputs, steps = group * bits / 32;
    const std::size_t group_bytes = static_cast<std::size_t>(width) * group * bits / 8;
    const std::size_t group_stride = group_bytes + (bits == 4 ? width * 4 : 0);
    const std::size_t second = static_cast<std::size_t>(kTileRows) * groups * group;
    alignas(64) std::uint8_t widened[kGroupBytes];
    alignas(64) std::int32_t found[2 * kMostBlockRows * kUnit];
    int shaped = 0;
    for_blocks<kTileRows>(
        matrix, task.rows, kMostBlockRows, groups * steps, first_panel, last_panel, task.output,
        [&](int first_row, int count, const char* panel, Fetch fetch, float* products) {
            if (count != shaped) shape_tiles(shaped = count, tile_inputs, tile_inputs / 4);
            const std::size_t row_place = static_cast<std::size_t>(first_row) * groups * group;
            const float* const scales = task.input.scales + static_cast<std::size_t>(first_row) * groups;
            const std::int32_t* const row_sums = task.input.sums + static_cast<std::size_t>(first_row) * groups;
            for (int i = 0; i < count * width; i += kLanes) store(products + i, Vector{});
            for (int g = 0; g < groups; ++g) {
                const char* const weights = panel + g * group_stride;
                const std::size_t place = row_place + static_cast<std::size_t>(g) * tiles * kTileRows * tile_inputs;
                for (int unit = 0; unit < units; ++unit) {
                    prefetch(fetch, unit ? steps / units : steps - (units - 1) * (steps / units));
                    const char* weight = weights + unit * kUnitBytes;
                    if constexpr (bits == 4) widen_group(weight, width, group, widened);
                    sum_group<bytes>(task.input.high + place, bytes == 2 ? task.input.low + place : nullptr, second, tiles,
                                     tile_inputs, bits == 4 ? static_cast<const void*>(widened) : weight,
                                     bits == 4 ? kUnitBytes : width * 4, count > kTileRows, found);
                    Vector factor{}, minimum{};
                    if constexpr (bits == 4) read_scales(weights + group_bytes + unit * kUnitBytes, factor, minimum);
                    for (int row = 0; row < count; ++row) {
                        const float scale = scales[static_cast<std::size_t>(row) * groups + g];
                        const std::int32_t row_sum = row_sums[static_cast<std::size_t>(row) * groups + g];
                        const auto* const sums = reinterpret_cast<const Integers*>(found) + row;
                        Integers total = sums[0];
                        if constexpr (bytes == 2) total = total * 256 + sums[kMostBlockRows];
                        float* const to = products + row * width + unit * kUnit;
                        if constexpr (bits == 8)
                            store(to, load(to) + floats(total - 128 * row_sum) * scale);
                        else
                            store(to, load(to) + (floats(total) * factor + minimum * static_cast<float>(row_sum)) * scale);
                    }
                }
            }
            if constexpr (bits == 8) {
                const float* const factors = reinterpret_cast<const float*>(panel + groups * group_stride);
                for (int row = 0; row < count; ++row)
                    for (int i = 0; i < width; i += kLanes)
                        store(products + row * width + i, load(products + row * width + i) * load(factors + i));
            }
        });
    _tile_release();
}

void integer_matrix_tile_product(const IntegerProduct& task, int first_panel, int last_panel) {
    if (task.matrix.format == Format::int8)
        (task.input.low ? integer_matrix_tile_product_of<8, 2>
                        : integer_matrix_tile_product_of<8, 1>)(task, first_panel, last_panel);
    else
        (task.input.low ? integer_matrix_tile_product_of<4, 2>
                        : integer_matrix_tile_product_of<4, 1>)(task, first_panel, last_panel);
}

}  // namespace
}  // namespace tidal

#endif

namespace tidal {
namespace {

void integer_product(const IntegerProduct& task, int first_panel, int last_panel) {
#if defined(__AMX_INT8__)
    if (task.input.in_tiles) return integer_matrix_tile_product(task, first_panel, last_panel);
#endif
    if (task.matrix.format == Format::int8)
        (task.input.low ? integer_product_in<8, 2> : integer_product_in<8, 1>)(task, first_panel, last_panel);
    else
        (task.input.low ? integer_product_in<4, 2> : integer_product_in<4, 1>)(task, first_panel, last_panel);
}

}  // namespace
}  // namespace tidal
