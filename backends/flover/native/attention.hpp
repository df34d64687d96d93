// Attention of the rows of a pass, spread over threads: in tiles where rows of one slot follow each other, else row by row.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.hpp"
#include "workers.hpp"

namespace tidal {
namespace {

template <class Number>
const KernelsOf<Number>& kernels_of();
template <>
const KernelsOf<float>& kernels_of<float>() {
    return kernels().full;
}
template <>
const KernelsOf<Half>& kernels_of<Half>() {
    return kernels().half;
}
template <>
const KernelsOf<std::int8_t>& kernels_of<std::int8_t>() {
    return kernels().bytes;
}

// Heads in a part of attention by rows, and the fewest rows of a tile.
constexpr int kHeads = 4;
constexpr int kLeastTile = 4;
// Fewest rows whose keys and values are written by one thread.
constexpr int kKeptRows = 8;

// Memory that begins a line of the cache: a row of a tile is read in one access.
template <class Number>
Number* scratch(std::vector<Number>& held, std::size_t count) {
    constexpr std::size_t line = 64;
    if (held.size() < count + line / sizeof(Number)) held.resize(count + line / sizeof(Number));
    return reinterpret_cast<Number*>((reinterpret_cast<std::uintptr_t>(held.data()) + line - 1) / line * line);
}

// Successive rows of one slot at successive positions.
struct Tile {
    int first, rows;
};

// Divide rows into tiles, those of one slot into tiles of equal size, and rows that are too few for one.
template <class Held>
void divide(const Attention<Held>& task, std::vector<Tile>& tiles, std::vector<int>& others) {
    const int most = tile_rows(task, kernels().multiplies_tiles && task.cap <= 0 && task.window <= 0);
    tiles.clear();
    others.clear();
    for (int first = 0, end; first < task.rows; first = end) {
        for (end = first + 1; end < task.rows && task.slots[end] == task.slots[first] &&
                              task.positions[end] == task.positions[end - 1] + 1;)
            ++end;
        const int rows = end - first, count = (rows + most - 1) / most;
        if (rows / count >= kLeastTile)
            for (int tile = 0; tile < count; ++tile) {
                const int begin = first + static_cast<int>(std::int64_t{rows} * tile / count);
                tiles.push_back({begin, first + static_cast<int>(std::int64_t{rows} * (tile + 1) / count) - begin});
            }
        else
            for (int row = first; row < end; ++row) others.push_back(row);
    }
}

template <class Held>
void attention(int threads, const Attention<Held>& task) {
    thread_local std::vector<Tile> tiles;
    thread_local std::vector<int> others;
    const auto& run = kernels_of<Held>();
    // The first tokens of a slot have the operating system clear its memory, which takes longer than all else here.
    for_ranges(threads, task.rows, task.rows / kKeptRows, [&](int begin, int end) {
        for (int row = begin; row < end; ++row) run.keep(task, row);
    });
    divide(task, tiles, others);
    // Each head for all tiles, or for all rows: those of one slot read the same keys. Late tiles have most keys.
    const int tile_count = static_cast<int>(tiles.size()), row_count = static_cast<int>(others.size());
    const Tile* const all_tiles = tiles.data();
    const int* const all_rows = others.data();
    for_ranges(threads, tile_count * task.kv_heads, tile_count * task.kv_heads, [&](int begin, int end) {
        thread_local std::vector<float> held;
        for (int number = begin; number < end; ++number) {
            const Tile tile = all_tiles[tile_count - 1 - number % tile_count];
            float* const space = scratch(held, tile_floats(task, tile.rows));
            run.attend_rows(task, tile.first, tile.rows, number / tile_count, space);
        }
    });
    const int tasks = row_count * task.kv_heads;
    for_ranges(threads, tasks, (tasks + kHeads - 1) / kHeads, [&](int begin, int end) {
        thread_local std::vector<float> scores;
        for (int number = begin; number < end; ++number)
            run.attend(task, all_rows[number % row_count], number / row_count, scratch(scores, task.length + 16));
    });
}

}  // namespace
}  // namespace tidal
