// Attention of successive rows of one slot, in tiles of queries and keys with an online softmax (FlashAttention): keys
// and values are read once for all queries of a tile, and scores stay in the cache.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "bf16_vectors.hpp"
#include "byte_vectors.hpp"
#include "kernels.hpp"

namespace tidal {
namespace {

// Sums that stay in registers: rows times vectors.
constexpr int kProductVectors = kLanes == 16 ? 4 : 2;
constexpr int kProductRows = 6;

// Rows of `a` times a matrix, for some of its columns: c [rows, vectors * kLanes] += a [rows, depth] * b [depth, ...].
template <int rows, int vectors>
inline void multiply_block(const float* a, int a_stride, const float* b, int b_stride, int depth, float* c,
                           int c_stride) {
    Vector sums[rows][vectors];
#pragma GCC unroll 6
    for (int row = 0; row < rows; ++row)
        for (int v = 0; v < vectors; ++v) sums[row][v] = load(c + row * c_stride + v * kLanes);
    for (int step = 0; step < depth; ++step) {
        Vector right[vectors];
        for (int v = 0; v < vectors; ++v) right[v] = load(b + static_cast<std::size_t>(step) * b_stride + v * kLanes);
#pragma GCC unroll 6
        for (int row = 0; row < rows; ++row) {
            const Vector left = all(a[row * a_stride + step]);
            for (int v = 0; v < vectors; ++v) sums[row][v] += left * right[v];
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < rows; ++row)
        for (int v = 0; v < vectors; ++v) store(c + row * c_stride + v * kLanes, sums[row][v]);
}

template <int vectors, int most>
inline void multiply_rows(int rows, const float* a, int a_stride, const float* b, int b_stride, int depth, float* c,
                          int c_stride) {
    if constexpr (most > 1)
        if (rows < most) return multiply_rows<vectors, most - 1>(rows, a, a_stride, b, b_stride, depth, c, c_stride);
    multiply_block<most, vectors>(a, a_stride, b, b_stride, depth, c, c_stride);
}

// c [rows, columns] += a [rows, depth] * b [depth, columns]; `columns` is a multiple of the vectors' lanes.
inline void multiply_add(int rows, int columns, const float* a, int a_stride, const float* b, int b_stride, int depth,
                         float* c, int c_stride) {
    for (int row = 0; row < rows; row += kProductRows) {
        const int count = rows - row < kProductRows ? rows - row : kProductRows;
        const float* left = a + row * a_stride;
        float* to = c + row * c_stride;
        int column = 0;
        for (; column + kProductVectors * kLanes <= columns; column += kProductVectors * kLanes)
            multiply_rows<kProductVectors, kProductRows>(count, left, a_stride, b + column, b_stride, depth,
                                                         to + column, c_stride);
        for (; column < columns; column += kLanes)
            multiply_rows<1, kProductRows>(count, left, a_stride, b + column, b_stride, depth, to + column, c_stride);
    }
}

// Rows of a square of lanes become its columns.
template <int step = kLanes / 2>
inline void transpose(Vector (&x)[kLanes]) {
    Integers lower, upper;
    for (int lane = 0; lane < kLanes; ++lane) {
        lower[lane] = lane & step ? kLanes + lane - step : lane;
        upper[lane] = lane & step ? kLanes + lane : lane + step;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
        if (!(i & step)) {
            const Vector first = x[i], second = x[i + step];
            x[i] = __builtin_shuffle(first, second, lower);
            x[i + step] = __builtin_shuffle(first, second, upper);
        }
    if constexpr (step > 1) transpose<step / 2>(x);
}

// Keys [count, size] as [size, kTileKeys], zero beyond `count`.
template <class Held>
inline void transpose_keys(const Held* keys, int count, int size, float* to) {
    for (int begin = 0; begin < kTileKeys; begin += kLanes) {
        const int left = count - begin;
        int part = 0;
        for (; part + kLanes <= size; part += kLanes) {
            Vector block[kLanes];
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i)
                block[i] = i < left ? load(keys + static_cast<std::size_t>(begin + i) * size + part) : Vector{};
            transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) store(to + (part + i) * kTileKeys + begin, block[i]);
        }
        for (; part < size; ++part)
            for (int i = 0; i < kLanes; ++i)
                to[part * kTileKeys + begin + i] =
                    i < left ? load_one(keys + static_cast<std::size_t>(begin + i) * size + part) : 0.0f;
    }
}

// Values [count, size], integers with scales [count], as float32 [count, padded], zero beyond `size`.
template <class Held>
inline void widen_values(const Held* values, const float* scales, int count, int size, int padded, float* to) {
    for (int row = 0; row < count; ++row, values += size, to += padded) {
        const float scale = kScaled<Held> ? scales[row] : 1.0f;
        int part = 0;
        for (; part + kLanes <= size; part += kLanes) store(to + part, load(values + part) * scale);
        for (; part < padded; ++part) to[part] = part < size ? load_one(values + part) * scale : 0.0f;
    }
}

// Scale a query's sums and total so far to a new maximum of its scores.
inline void scale_to_maximum(float next, float& most, float& total, float* sums, int padded) {
    if (next == most) return;
    const Vector factor = exponential(all(most - next));
    for (int i = 0; i < padded; i += kLanes) store(sums + i, load(sums + i) * factor);
    total *= factor[0];
    most = next;
}

// `count` numbers x become cap * tanh(x * scale / cap); what is behind them stays.
inline void soft_cap(float* x, std::int64_t count, float scale, float cap) {
    const float inner = scale / cap;
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(x + i, hyperbolic_tangent(load(x + i) * inner) * cap);
    for (; i < count; ++i) x[i] = hyperbolic_tangent(all(x[i] * inner))[0] * cap;
}

// One query's scores of a tile of keys, of which it sees `hidden` to `visible` - 1, become weights; its sums so far are
// scaled to the new maximum.
inline void update_softmax(float* scores, int hidden, int visible, float& most, float& total, float* sums, int padded) {
    for (int i = 0; i < hidden; ++i) scores[i] = -__builtin_huge_valf();
    for (int i = visible; i < kTileKeys; ++i) scores[i] = -__builtin_huge_valf();
    Vector largest = all(most);
    for (int i = 0; i < kTileKeys; i += kLanes) {
        const Vector found = load(scores + i);
        largest = select(found > largest, found, largest);
    }
    const float next = highest(largest);
    Vector added{};
    for (int i = 0; i < kTileKeys; i += kLanes) {
        const Vector weight = exponential(load(scores + i) - next);
        store(scores + i, weight);
        added += weight;
    }
    scale_to_maximum(next, most, total, sums, padded);
    total += sum(added);
}

// The outputs of a tile's queries: their sums [queries, padded] over the totals of their weights.
template <class Held>
inline void store_means(const Attention<Held>& task, int first, int rows, int kv_head, const float* sums, int padded,
                        const float* total) {
    const int group = task.heads / task.kv_heads;
    for (int i = 0; i < rows * group; ++i) {
        const float factor = 1.0f / total[i];
        const std::size_t row = first + i / group, head = row * task.heads + kv_head * group + i % group;
        float* const to = task.output + head * task.size;
        for (int part = 0; part < task.size; ++part) to[part] = sums[i * padded + part] * factor;
    }
}

template <class Held>
void attend_rows(const Attention<Held>& task, int first, int rows, int kv_head, float* scratch) {
    const int size = task.size, group = task.heads / task.kv_heads, queries = rows * group;
    const int padded = (size + kLanes - 1) / kLanes * kLanes, both = 2 * task.kv_heads;
    float* const query = scratch;                       // [queries, size], scaled
    float* const keys = query + queries * size;         // [size, kTileKeys]
    float* const values = keys + size * kTileKeys;      // [kTileKeys, padded]
    float* const scores = values + kTileKeys * padded;  // [queries, kTileKeys]
    float* const sums = scores + queries * kTileKeys;   // [queries, padded]
    float* const most = sums + queries * padded;        // [queries]
    float* const total = most + queries;                // [queries]
    for (int i = 0; i < queries; ++i) {
        const std::size_t row = first + i / group, head = row * (task.heads + both) + kv_head * group + i % group;
        for (int part = 0; part < size; ++part) query[i * size + part] = task.made[head * size + part] * task.scale;
        most[i] = -__builtin_huge_valf();
        total[i] = 0.0f;
    }
    for (int i = 0; i < queries * padded; ++i) sums[i] = 0.0f;
    const Held* const all_keys = task.held + (task.slots[first] * both + kv_head) * task.length * size;
    const Held* const all_values = all_keys + static_cast<std::int64_t>(task.kv_heads) * task.length * size;
    const float* const key_scales = task.scales_of(task.slots[first], kv_head);
    const float* const value_scales = task.scales_of(task.slots[first], task.kv_heads + kv_head);
    const std::int64_t position = task.positions[first], end = position + rows;
    for (std::int64_t begin = task.first_seen(position); begin < end; begin += kTileKeys) {
        const int count = end - begin < kTileKeys ? static_cast<int>(end - begin) : kTileKeys;
        transpose_keys(all_keys + begin * size, count, size, keys);
        widen_values(all_values + begin * size, kScaled<Held> ? value_scales + begin : nullptr, count, size, padded, values);
        // Queries before the tile see none of its keys.
        const int from = begin > position ? static_cast<int>(begin - position) * group : 0;
        // Nor do those whose window begins behind it.
        const std::int64_t left = begin + count + task.window - 1 - position;
        const int to = task.window > 0 && left < rows ? static_cast<int>(left) * group : queries;
        float* const own = scores + from * kTileKeys;
        for (int i = 0; i < (to - from) * kTileKeys; ++i) own[i] = 0.0f;
        multiply_add(to - from, kTileKeys, query + from * size, size, keys, kTileKeys, size, own, kTileKeys);
        for (int i = from; i < to; ++i) {
            const std::int64_t seen = position + i / group + 1 - begin;
            const std::int64_t hidden = task.first_seen(position + i / group) - begin;
            float* const score = scores + i * kTileKeys;
            if constexpr (kScaled<Held>) multiply_by(score, key_scales + begin, count);
            if (task.cap > 0) soft_cap(score, kTileKeys, 1.0f, task.cap);
            update_softmax(score, hidden > 0 ? static_cast<int>(hidden) : 0,
                           seen < count ? static_cast<int>(seen) : count, most[i], total[i], sums + i * padded, padded);
        }
        multiply_add(to - from, padded, own, kTileKeys, values, padded, count, sums + from * padded, padded);
    }
    store_means(task, first, rows, kv_head, sums, padded, total);
}

}  // namespace
}  // namespace tidal
