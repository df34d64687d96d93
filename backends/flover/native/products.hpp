// Products of rows with a packed matrix of float32 or bfloat16.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "matrix_tiles.hpp"
#include "tiles.hpp"

namespace tidal {
namespace {

template <class Weight>
constexpr int kDepth = sizeof(Weight) == sizeof(Half) ? 2 : 1;

template <int vectors>
inline void accumulate(Vector (&sums)[vectors], const float* input, const Vector (&weights)[vectors]) {
    const Vector x = all(*input);
    for (int v = 0; v < vectors; ++v) sums[v] += weights[v] * x;
}

template <int vectors>
inline void accumulate(Vector (&sums)[vectors], const Half* input, const Bits (&weights)[vectors]) {
    std::uint32_t pair;
    __builtin_memcpy(&pair, input, 4);
    const Bits x = Bits{} + pair;
#if defined(__AVX512BF16__)
    for (int v = 0; v < vectors; ++v)
        sums[v] = reinterpret_cast<Vector>(_mm512_dpbf16_ps(
            reinterpret_cast<__m512>(sums[v]), reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(weights[v])));
#else
    const Vector first = reinterpret_cast<Vector>(x << 16), second = reinterpret_cast<Vector>(x & 0xffff0000u);
    for (int v = 0; v < vectors; ++v) {
        sums[v] += reinterpret_cast<Vector>(weights[v] << 16) * first;
        sums[v] += reinterpret_cast<Vector>(weights[v] & 0xffff0000u) * second;
    }
#endif
}

template <class Weight>
struct Read;
template <>
struct Read<float> {
    typedef Vector Type;
    static inline Type of(const float* from) { return load(from); }
};
template <>
struct Read<Half> {
    typedef Bits Type;
    static inline Type of(const Half* from) { return *reinterpret_cast<const UnalignedBits*>(from); }
};

// Products of `rows` rows with a panel.
template <class Weight, int vectors, int rows>
void tile(const Product<Weight>& task, int first_row, const Weight* panel, Fetch fetch, float* products) {
    constexpr int width = vectors * kUnit;
    const int steps = task.matrix.steps();
    const std::size_t stride = static_cast<std::size_t>(steps) * kDepth<Weight>;
    const Weight* input = task.input + static_cast<std::size_t>(first_row) * stride;
    for (int column = 0; column < width; column += vectors * kLanes) {
        Vector sums[rows][vectors] = {};
        const Weight* weight = panel + column * kDepth<Weight>;
        for (int step = 0; step < steps; ++step) {
            fetch.next();
            typename Read<Weight>::Type weights[vectors];
            for (int v = 0; v < vectors; ++v) weights[v] = Read<Weight>::of(weight + v * kLanes * kDepth<Weight>);
            weight += width * kDepth<Weight>;
#pragma GCC unroll 12
            for (int row = 0; row < rows; ++row)
                accumulate(sums[row], input + row * stride + step * kDepth<Weight>, weights);
        }
        for (int row = 0; row < rows; ++row)
            for (int v = 0; v < vectors; ++v) store(products + row * width + column + v * kLanes, sums[row][v]);
    }
}

template <class Weight, int vectors, int rows>
void tile_of(int wanted, const Product<Weight>& task, int first_row, const Weight* panel, Fetch fetch, float* products) {
    if constexpr (rows > 1)
        if (wanted != rows) return tile_of<Weight, vectors, rows - 1>(wanted, task, first_row, panel, fetch, products);
    tile<Weight, vectors, rows>(task, first_row, panel, fetch, products);
}

template <class Weight, int vectors>
void product_of(const Product<Weight>& task, int first_panel, int last_panel) {
    constexpr int most = kSums / vectors;
    const int wanted = task.matrix.tiling.rows, rows = wanted < most ? wanted : most;
    for_blocks(task.matrix, task.rows, rows, task.matrix.steps(), first_panel, last_panel, task.output,
               [&](int first_row, int count, const char* panel, Fetch fetch, float* products) {
                   tile_of<Weight, vectors, most>(count, task, first_row, reinterpret_cast<const Weight*>(panel), fetch,
                                                  products);
               });
}

template <class Weight>
void product(const Product<Weight>& task, int first_panel, int last_panel) {
#if defined(__AMX_BF16__)
    if constexpr (sizeof(Weight) == sizeof(Half))
        if (task.in_tiles) return matrix_tile_product(task, first_panel, last_panel);
#endif
    switch (task.matrix.tiling.vectors) {
        case 2: return product_of<Weight, 2>(task, first_panel, last_panel);
        case 3: return product_of<Weight, 3>(task, first_panel, last_panel);
        default: return product_of<Weight, 4>(task, first_panel, last_panel);
    }
}

}  // namespace
}  // namespace tidal
