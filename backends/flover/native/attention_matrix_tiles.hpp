// Attention of successive rows of one slot by AMX, for keys and values of bfloat16; see attention_tiles.hpp.
//
// Queries and weights are float32. Each is the sum of three numbers of bfloat16, whose products with keys and values are
// exact and summed in float32: the result is as precise as that of vectors.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "attention_tiles.hpp"
#include "tile_registers.hpp"

#if defined(__AMX_BF16__)

namespace tidal {
namespace {

static_assert(kLanes == kTileRows, "a row of a tile is a vector");

// Numbers as sums of numbers of bfloat16, which are `apart` from each other.
inline void store_split(Half* to, std::size_t apart, Vector x) {
    for (int part = 0; part < kSplit; ++part, to += apart) {
        const __m256bh rounded = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(x));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(rounded));
        x -= reinterpret_cast<Vector>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(rounded)), 16));
    }
}

// `count` numbers and zeros behind them.
template <class Number, int length>
inline void copy_padded(const Number* from, int count, Number (&to)[length]) {
    for (int i = 0; i < length; ++i) to[i] = i < count ? from[i] : Number{};
}

// Keys [count, size] as pairs of components [size / 2][kMatrixKeys][2], zero beyond both.
inline void pair_keys(const Half* keys, int count, int size, Half* to) {
    for (int begin = 0; begin < kMatrixKeys; begin += kTileRows)
        for (int part = 0; part < size; part += kTileInputs) {
            Vector block[kLanes];
            for (int i = 0; i < kLanes; ++i) {
                const Half* from = keys + static_cast<std::size_t>(begin + i) * size + part;
                alignas(64) Half padded[kTileInputs];
                if (begin + i >= count) {
                    block[i] = Vector{};
                } else if (size - part >= kTileInputs) {
                    block[i] = reinterpret_cast<Vector>(*reinterpret_cast<const UnalignedBits*>(from));
                } else {
                    copy_padded(from, size - part, padded);
                    block[i] = reinterpret_cast<Vector>(*reinterpret_cast<const Bits*>(padded));
                }
            }
            transpose(block);
            float* const pairs = reinterpret_cast<float*>(to) + static_cast<std::size_t>(part) / 2 * kMatrixKeys + begin;
            for (int i = 0; i < kLanes; ++i) store(pairs + i * kMatrixKeys, block[i]);
        }
}

// Values [count, size] as pairs of tokens [kMatrixKeys / 2][width][2], zero beyond both.
inline void pair_values(const Half* values, int count, int size, int width, Half* to) {
    const auto read = [&](int row, int part) {
        const Half* from = values + static_cast<std::size_t>(row) * size + part;
        alignas(64) Half padded[kLanes];
        if (row >= count) return Bits{};
        if (size - part >= kLanes) return widened(from);
        copy_padded(from, size - part, padded);
        return widened(padded);
    };
    for (int row = 0; row < kMatrixKeys; row += 2)
        for (int part = 0; part < width; part += kLanes)
            *reinterpret_cast<Bits*>(to + row * width + 2 * part) = read(row, part) | read(row + 1, part) << 16;
}

// Scores [32, 32] of two tiles of queries [kSplit][..., depth] and 32 of the keys [depth / 2][kMatrixKeys][2].
inline void score_block(const Half* queries, std::size_t apart, int depth, const Half* keys, float* scores) {
    const std::ptrdiff_t query_bytes = depth * sizeof(Half), key_bytes = kMatrixKeys * 2 * sizeof(Half);
    finish_stores();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int part = 0; part < depth; part += kTileInputs) {
        const Half* const pairs = keys + static_cast<std::size_t>(part) * kMatrixKeys;
        _tile_loadd(6, pairs, key_bytes);
        _tile_loadd(7, pairs + 2 * kTileRows, key_bytes);
        for (int split = 0; split < kSplit; ++split) {
            const Half* const query = queries + split * apart + part;
            _tile_loadd(4, query, query_bytes);
            _tile_loadd(5, query + kTileRows * depth, query_bytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    constexpr std::ptrdiff_t row_bytes = kMatrixKeys * sizeof(float);
    float* const second = scores + kTileRows * kMatrixKeys;
    _tile_stored(0, scores, row_bytes);
    _tile_stored(1, second, row_bytes);
    _tile_stored(2, scores + kTileRows, row_bytes);
    _tile_stored(3, second + kTileRows, row_bytes);
}

// Add to the sums [32, width] of two tiles of queries, for 16 components or 32: weights [kSplit][..., kMatrixKeys] times values.
template <bool two>
inline void mix_block(const Half* weights, std::size_t apart, int count, const Half* values, int width, float* sums) {
    constexpr std::ptrdiff_t weight_bytes = kMatrixKeys * sizeof(Half);
    const std::ptrdiff_t row_bytes = width * sizeof(float);
    float* const second = sums + kTileRows * width;
    finish_stores();
    _tile_loadd(0, sums, row_bytes);
    _tile_loadd(1, second, row_bytes);
    if constexpr (two) {
        _tile_loadd(2, sums + kTileRows, row_bytes);
        _tile_loadd(3, second + kTileRows, row_bytes);
    }
    for (int row = 0; row < count; row += kTileInputs) {
        const Half* const pairs = values + row * width;
        _tile_loadd(6, pairs, row_bytes);
        if constexpr (two) _tile_loadd(7, pairs + 2 * kTileRows, row_bytes);
        for (int split = 0; split < kSplit; ++split) {
            const Half* const weight = weights + split * apart + row;
            _tile_loadd(4, weight, weight_bytes);
            _tile_loadd(5, weight + kTileRows * kMatrixKeys, weight_bytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            if constexpr (two) {
                _tile_dpbf16ps(2, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    _tile_stored(0, sums, row_bytes);
    _tile_stored(1, second, row_bytes);
    if constexpr (two) {
        _tile_stored(2, sums + kTileRows, row_bytes);
        _tile_stored(3, second + kTileRows, row_bytes);
    }
}

// One query's scores of a tile of keys become weights; its sums so far are scaled to the new maximum.
inline void update_weights(const float* scores, float scale, int visible, float& most, float& total, float* sums, int width,
                           Half* weights, std::size_t apart) {
    constexpr int parts = kMatrixKeys / kLanes;
    Vector found[parts], largest = all(most), added{};
    Integers lanes;
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
    for (int part = 0; part < parts; ++part) {
        const Vector x = load(scores + part * kLanes) * scale;
        found[part] = select(lanes + part * kLanes < visible, x, all(-__builtin_huge_valf()));
        largest = select(found[part] > largest, found[part], largest);
    }
    const float next = highest(largest);
    for (int part = 0; part < parts; ++part) {
        const Vector weight = exponential(found[part] - next);
        store_split(weights + part * kLanes, apart, weight);
        added += weight;
    }
    scale_to_maximum(next, most, total, sums, width);
    total += sum(added);
}

void attend_rows_by_matrices(const Attention<Half>& task, int first, int rows, int kv_head, float* scores) {
    const int size = task.size, group = task.heads / task.kv_heads, queries = rows * group, both = 2 * task.kv_heads;
    // With fewer queries or keys, what AMX needs costs more than it saves; caps and windows are left to vectors.
    if (queries < kTileQueries || task.positions[first] + rows < kMatrixKeys || task.cap > 0 ||
        task.first_seen(task.positions[first] + rows - 1) > 0)
        return attend_rows<Half>(task, first, rows, kv_head, scores);
    const int width = (size + kTileRows - 1) / kTileRows * kTileRows;
    const int depth = (size + kTileInputs - 1) / kTileInputs * kTileInputs;
    const int padded = (queries + kMostBlockRows - 1) / kMostBlockRows * kMostBlockRows;
    const std::size_t query_apart = static_cast<std::size_t>(padded) * depth;
    const std::size_t weight_apart = static_cast<std::size_t>(padded) * kMatrixKeys;
    float* const sums = scores + padded * kMatrixKeys;                           // [padded, width]
    Half* const query = reinterpret_cast<Half*>(sums + padded * width);          // [kSplit, padded, depth]
    Half* const weights = query + kSplit * query_apart;                          // [kSplit, padded, kMatrixKeys]
    Half* const keys = weights + kSplit * weight_apart;                          // [depth / 2][kMatrixKeys][2]
    Half* const values = keys + depth * kMatrixKeys;                             // [kMatrixKeys / 2][width][2]
    float* const most = reinterpret_cast<float*>(values + kMatrixKeys * width);  // [padded]
    float* const total = most + padded;                                          // [padded]
    for (int i = 0; i < padded * width; ++i) sums[i] = 0.0f;
    for (std::size_t i = 0; i < kSplit * (query_apart + weight_apart); ++i) query[i] = 0;
    for (int i = 0; i < queries; ++i) {
        const std::size_t row = first + i / group, head = row * (task.heads + both) + kv_head * group + i % group;
        const float* const from = task.made + head * size;
        for (int part = 0; part < size; part += kLanes) {
            alignas(64) float held[kLanes];
            copy_padded(from + part, size - part, held);
            store_split(query + static_cast<std::size_t>(i) * depth + part, query_apart, load(held));
        }
        most[i] = -__builtin_huge_valf();
        total[i] = 0.0f;
    }
    const Half* const all_keys = task.held + (task.slots[first] * both + kv_head) * task.length * size;
    const Half* const all_values = all_keys + static_cast<std::int64_t>(task.kv_heads) * task.length * size;
    const std::int64_t position = task.positions[first], end = position + rows;
    shape_tiles(kMostBlockRows, kTileInputs * sizeof(Half), kTileInputs / 2);
    for (std::int64_t begin = 0; begin < end; begin += kMatrixKeys) {
        const int count = end - begin < kMatrixKeys ? static_cast<int>(end - begin) : kMatrixKeys;
        pair_keys(all_keys + begin * size, count, size, keys);
        pair_values(all_values + begin * size, count, size, width, values);
        // Queries before the tile see none of its keys.
        const int from = begin > position ? static_cast<int>(begin - position) * group : 0;
        const int whole = from / kMostBlockRows * kMostBlockRows;
        for (int i = whole; i < padded; i += kMostBlockRows)
            for (int key = 0; key < count; key += kMostBlockRows)
                score_block(query + static_cast<std::size_t>(i) * depth, query_apart, depth, keys + 2 * key,
                            scores + i * kMatrixKeys + key);
        for (int i = whole; i < queries; ++i) {
            Half* const own = weights + i * kMatrixKeys;
            const std::int64_t seen = position + i / group + 1 - begin;
            if (i >= from)
                update_weights(scores + i * kMatrixKeys, task.scale, seen < count ? static_cast<int>(seen) : count, most[i],
                               total[i], sums + i * width, width, own, weight_apart);
            else
                for (int key = 0; key < kMatrixKeys; key += kLanes) store_split(own + key, weight_apart, Vector{});
        }
        for (int i = whole; i < padded; i += kMostBlockRows) {
            const Half* const weight = weights + i * kMatrixKeys;
            int part = 0;
            for (; part + 2 * kTileRows <= width; part += 2 * kTileRows)
                mix_block<true>(weight, weight_apart, count, values + 2 * part, width, sums + i * width + part);
            if (part < width)
                mix_block<false>(weight, weight_apart, count, values + 2 * part, width, sums + i * width + part);
        }
    }
    _tile_release();
    store_means(task, first, rows, kv_head, sums, width, total);
}

}  // namespace
}  // namespace tidal

#endif
