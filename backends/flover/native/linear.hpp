// Linear layers spread over threads: rows are rounded to what the kernels multiply, in tiles where the level has them.
#pragma once

#include <algorithm>
#include <vector>

#include "attention.hpp"
#include "kernels.hpp"
#include "workers.hpp"

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
    for_rows(threads, task.rows,
             [&](std::size_t row) { round(input + row * inputs, rounded + place(row), inputs, next_tile); });
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
        work(first, std::min(most, rows - first), output.behind(static_cast<std::size_t>(first) * matrix.outputs));
    }
}

// Products of rows of floats or, in tiles, of rows that are rounded already.
template <class Weight>
void multiply(const Matrix& matrix, int threads, int rows, const float* input, const Half* rounded, const Output& output) {
    const auto& run = kernels_of<Weight>().product;
    const bool tiles = in_tiles(matrix, rows, Weight{});
    const std::size_t inputs = matrix.inputs;
    for_parts(matrix, rows, inputs * sizeof(Weight), tiles, output, [&](int first, int count, const Output& to) {
        Product<Weight> task{matrix, count, nullptr, to, tiles};
        if constexpr (sizeof(Weight) == sizeof(Half))
            if (rounded) task.input = rounded + static_cast<std::size_t>(first) * matrix.tiles() * kTileInputs;
        if (!task.input) task.input = input_of(task, threads, input + first * inputs);
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
        case Format::full: return multiply<float>(matrix, threads, rows, input, nullptr, output);
        case Format::half: return multiply<Half>(matrix, threads, rows, input, nullptr, output);
        default: return multiply_integers(matrix, threads, rows, input, output);
    }
}

// Whether the outputs of a layer can be written as the input of the next one: rounded, in whole tiles.
bool joins(const Matrix& first, const Matrix& second, int rows) {
    return first.format == Format::half && second.format == Format::half && first.outputs == second.inputs &&
           second.inputs % kTileInputs == 0 && in_tiles(first, rows, Half{}) && in_tiles(second, rows, Half{});
}

// A layer with an activation and the next one, to [rows, outputs] plus `added`; what is between them is not written as floats.
void joined(const Matrix& first, const Matrix& second, int threads, int rows, const float* input, std::int32_t activation,
            const float* added, float* to) {
    thread_local std::vector<Half> held;
    const std::size_t held_rows = (rows + kTileRows - 1) / kTileRows * kTileRows;
    Half* const between = scratch(held, held_rows * second.inputs);
    multiply<Half>(first, threads, rows, input, nullptr, {nullptr, nullptr, static_cast<Activation>(activation), between});
    multiply<Half>(second, threads, rows, nullptr, between, {added, to, Activation::none});
}

}  // namespace
}  // namespace tidal
