// Products of a few tokens with sparse and with packed dense matrices.
#pragma once

#include "columns.hpp"

namespace tidal {
namespace {

// Entries times the columns of x: the sums of every output go to sums[output][vectors * kLanes].
template <int vectors>
void sparse_product(const Sparse& matrix, const float* x, float* sums) {
    constexpr int width = vectors * kLanes;
    for (std::uint32_t slice = 0; slice < matrix.slices; ++slice) {
        const std::size_t begin = matrix.starts[slice], end = matrix.starts[slice + 1];
        for (int half = 0; half < kSlice; half += kRows) {
            Vector total[kRows][vectors] = {};
            const float* values = matrix.values + begin * kSlice + half;
            const std::uint16_t* columns = matrix.columns + begin * kSlice + half;
            for (std::size_t entry = begin; entry < end; ++entry, values += kSlice, columns += kSlice) {
#pragma GCC unroll 8
                for (int row = 0; row < kRows; ++row) {
                    const float* column = x + static_cast<std::size_t>(columns[row]) * width;
#pragma GCC unroll 8
                    for (int v = 0; v < vectors; ++v) total[row][v] += values[row] * load(column + v * kLanes);
                }
            }
            const std::uint32_t* rows = matrix.rows + static_cast<std::size_t>(slice) * kSlice + half;
            for (int row = 0; row < kRows; ++row)
                for (int v = 0; v < vectors; ++v)
                    store(sums + static_cast<std::size_t>(rows[row]) * width + v * kLanes, total[row][v]);
        }
    }
}

// A tile of x [tokens, inner] times w [inner, vectors * kLanes], columns of w `column_step` apart from vector to vector.
template <int tokens, int vectors>
inline void tile(const float* x, int x_stride, int inner, const float* w, int w_stride, std::size_t column_step,
                 float* out, int out_stride) {
    Vector total[tokens][vectors] = {};
    for (int k = 0; k < inner; ++k) {
        Vector weight[vectors];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) weight[v] = load(w + static_cast<std::size_t>(k) * w_stride + v * column_step);
#pragma GCC unroll 8
        for (int t = 0; t < tokens; ++t)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) total[t][v] += x[t * x_stride + k] * weight[v];
    }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; ++t)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) store(out + t * out_stride + v * kLanes, total[t][v]);
}

template <int vectors>
inline void tiles(int tokens, const float* x, int x_stride, int inner, const float* w, int w_stride,
                  std::size_t column_step, float* out, int out_stride) {
    int t = 0;
    for (; t + kTileTokens <= tokens; t += kTileTokens)
        tile<kTileTokens, vectors>(x + t * x_stride, x_stride, inner, w, w_stride, column_step, out + t * out_stride,
                                   out_stride);
    if constexpr (kTileTokens == 8)
        for (; t + 4 <= tokens; t += 4)
            tile<4, vectors>(x + t * x_stride, x_stride, inner, w, w_stride, column_step, out + t * out_stride,
                             out_stride);
    for (; t < tokens; ++t)
        tile<1, vectors>(x + t * x_stride, x_stride, inner, w, w_stride, column_step, out + t * out_stride, out_stride);
}

// x [tokens, inner] times w, `columns` of them, a multiple of the panel. Column c of w begins at
// w + c / kPanel * panel_step + c % kPanel and goes on every `w_stride` floats.
void product(int tokens, const float* x, int x_stride, int inner, const float* w, int w_stride, std::size_t panel_step,
             int columns, float* out, int out_stride) {
    constexpr int each = kPanel / kLanes;
    int column = 0;
    if constexpr (each == 1) {
        for (; column + 2 * kPanel <= columns; column += 2 * kPanel)
            tiles<2>(tokens, x, x_stride, inner, w + column / kPanel * panel_step, w_stride, panel_step, out + column,
                     out_stride);
        for (; column < columns; column += kPanel)
            tiles<1>(tokens, x, x_stride, inner, w + column / kPanel * panel_step, w_stride, panel_step, out + column,
                     out_stride);
    } else {
        for (; column < columns; column += 2 * kLanes)
            tiles<2>(tokens, x, x_stride, inner, w + column / kPanel * panel_step + column % kPanel, w_stride, kLanes,
                     out + column, out_stride);
    }
}

void product(int tokens, const float* x, int x_stride, const Dense& w, float* out) {
    const int columns = static_cast<int>(padded(w.outputs));
    product(tokens, x, x_stride, static_cast<int>(w.inputs), w.panels, kPanel,
            static_cast<std::size_t>(w.inputs) * kPanel, columns, out, columns);
}

// y += addend (+ bias), a row of `count`.
inline void add(float* y, const float* addend, const float* bias, int count) {
    int i = 0;
    if (bias) {
        for (; i + kLanes <= count; i += kLanes) store(y + i, load(y + i) + load(addend + i) + load(bias + i));
        for (; i < count; ++i) y[i] += addend[i] + bias[i];
    } else {
        for (; i + kLanes <= count; i += kLanes) store(y + i, load(y + i) + load(addend + i));
        for (; i < count; ++i) y[i] += addend[i];
    }
}

}  // namespace
}  // namespace tidal
