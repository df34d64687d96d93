// Attention of successive rows of one slot by AMX, for keys and values of bfloat16; see attention_tiles.hpp.
//
// Queries and weights are float32. Each is replaced by the sum of two numbers of bfloat16, which is off by at most 2^-18 of
// it: their products with keys and values are exact and summed in float32.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "attention_tiles.hpp"
#include "tile_registers.hpp"

#if defined(__AMX_BF16__)

namespace tidal {
namespace {

static_assert(kLanes == kTileRows, "a row of a tile is a vector");

// Score of a key that a query does not see: below all others, but finite, so that differences are no NaN.
constexpr float kUnseen = -1e30f;
// Fewest queries of a tile.
constexpr int kLeastMatrixQueries = 8;

// Numbers as sums of numbers of bfloat16, which are `apart` from each other.
inline void store_split(Half* to, std::size_t apart, Vector x) {
#pragma GCC unroll 2
    for (int part = 0; part < kSplit; ++part, to += apart) {
        const __m256bh rounded = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(x));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(rounded));
        x -= reinterpret_cast<Vector>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(rounded)), 16));
    }
}

// The larger of two numbers, `y` where either is NaN.
inline Vector larger(Vector x, Vector y) {
    return reinterpret_cast<Vector>(_mm512_max_ps(reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(y)));
}

// 2 to the power of x, to about one unit in the last place; 0 below all numbers.
inline Vector power_of_two(Vector x) {
    const Vector whole =
        reinterpret_cast<Vector>(_mm512_roundscale_ps(reinterpret_cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    const Vector rest = x - whole;  // at most 0.5, where the series is that of e^(rest * ln 2)
    Vector power = all(1.5252734e-5f);
    power = power * rest + 1.5403530e-4f;
    power = power * rest + 1.3333558e-3f;
    power = power * rest + 9.6181291e-3f;
    power = power * rest + 5.5504109e-2f;
    power = power * rest + 0.24022651f;
    power = power * rest + 0.69314718f;
    power = power * rest + 1.0f;
    return reinterpret_cast<Vector>(_mm512_scalef_ps(reinterpret_cast<__m512>(power), reinterpret_cast<__m512>(whole)));
}

// `count` numbers and zeros behind them.
template <class Number, int length>
inline void copy_padded(const Number* from, int count, Number (&to)[length]) {
    for (int i = 0; i < length; ++i) to[i] = i < count ? from[i] : Number{};
}

// Keys [count, size] as pairs of components [size / 2][kMatrixKeys][2], zero beyond both, for `padded` keys.
inline void pair_keys(const Half* keys, int count, int padded, int size, Half* to) {
    for (int begin = 0; begin < padded; begin += kTileRows)
        for (int part = 0; part < size; part += kTileInputs) {
            Vector block[kLanes];
            for (int i = 0; i < kLanes; ++i) {
                const Half* from = keys + static_cast<std::size_t>(begin + i) * size + part;
                alignas(64) Half rest[kTileInputs];
                __builtin_prefetch(from + kMatrixKeys * size, 0, 2);  // the next tile, while this one is multiplied
                if (begin + i >= count) {
                    block[i] = Vector{};
                } else if (size - part >= kTileInputs) {
                    block[i] = reinterpret_cast<Vector>(*reinterpret_cast<const UnalignedBits*>(from));
                } else {
                    copy_padded(from, size - part, rest);
                    block[i] = reinterpret_cast<Vector>(*reinterpret_cast<const Bits*>(rest));
                }
            }
            transpose(block);
            float* const pairs = reinterpret_cast<float*>(to) + static_cast<std::size_t>(part) / 2 * kMatrixKeys + begin;
            for (int i = 0; i < kLanes; ++i) store(pairs + i * kMatrixKeys, block[i]);
        }
}

// Values [count, size] as pairs of tokens [kMatrixKeys / 2][width][2], zero beyond both, for `padded` values.
inline void pair_values(const Half* values, int count, int padded, int size, int width, Half* to) {
    const auto read = [&](int row, int part) {
        const Half* from = values + static_cast<std::size_t>(row) * size + part;
        alignas(64) Half rest[kLanes];
        if (part % kTileInputs == 0) __builtin_prefetch(from + kMatrixKeys * size, 0, 2);
        if (row >= count) return Bits{};
        if (size - part >= kLanes) return widened(from);
        copy_padded(from, size - part, rest);
        return widened(rest);
    };
    for (int row = 0; row < padded; row += 2)
        for (int part = 0; part < width; part += kLanes)
            *reinterpret_cast<Bits*>(to + row * width + 2 * part) = read(row, part) | read(row + 1, part) << 16;
}

// Scores [16 or 32, 32] of one or two tiles of queries [kSplit][..., depth] and 32 of the keys [depth / 2][kMatrixKeys][2].
template <bool two_tiles>
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
            if constexpr (two_tiles) _tile_loadd(5, query + kTileRows * depth, query_bytes);
            _tile_dpbf16ps(0, 4, 6);
            if constexpr (two_tiles) _tile_dpbf16ps(1, 5, 6);
            _tile_dpbf16ps(2, 4, 7);
            if constexpr (two_tiles) _tile_dpbf16ps(3, 5, 7);
        }
    }
    constexpr std::ptrdiff_t row_bytes = kMatrixKeys * sizeof(float);
    float* const second = scores + kTileRows * kMatrixKeys;
    _tile_stored(0, scores, row_bytes);
    _tile_stored(2, scores + kTileRows, row_bytes);
    if constexpr (two_tiles) {
        _tile_stored(1, second, row_bytes);
        _tile_stored(3, second + kTileRows, row_bytes);
    }
}

// Add to the sums [16 or 32, width] of one or two tiles of queries, for 16 components or 32: weights
// [kSplit][..., kMatrixKeys] times values.
template <bool two_tiles, bool two>
inline void mix_block(const Half* weights, std::size_t apart, int count, const Half* values, int width, float* sums) {
    constexpr std::ptrdiff_t weight_bytes = kMatrixKeys * sizeof(Half);
    const std::ptrdiff_t row_bytes = width * sizeof(float);
    float* const second = sums + kTileRows * width;
    finish_stores();
    _tile_loadd(0, sums, row_bytes);
    if constexpr (two_tiles) _tile_loadd(1, second, row_bytes);
    if constexpr (two) _tile_loadd(2, sums + kTileRows, row_bytes);
    if constexpr (two && two_tiles) _tile_loadd(3, second + kTileRows, row_bytes);
    for (int row = 0; row < count; row += kTileInputs) {
        const Half* const pairs = values + row * width;
        _tile_loadd(6, pairs, row_bytes);
        if constexpr (two) _tile_loadd(7, pairs + 2 * kTileRows, row_bytes);
        for (int split = 0; split < kSplit; ++split) {
            const Half* const weight = weights + split * apart + row;
            _tile_loadd(4, weight, weight_bytes);
            if constexpr (two_tiles) _tile_loadd(5, weight + kTileRows * kMatrixKeys, weight_bytes);
            _tile_dpbf16ps(0, 4, 6);
            if constexpr (two_tiles) _tile_dpbf16ps(1, 5, 6);
            if constexpr (two) _tile_dpbf16ps(2, 4, 7);
            if constexpr (two && two_tiles) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, row_bytes);
    if constexpr (two_tiles) _tile_stored(1, second, row_bytes);
    if constexpr (two) _tile_stored(2, sums + kTileRows, row_bytes);
    if constexpr (two && two_tiles) _tile_stored(3, second + kTileRows, row_bytes);
}

// The same for all components.
template <bool two_tiles>
inline void mix_values(const Half* weights, std::size_t apart, int count, const Half* values, int width, float* sums) {
    int part = 0;
    for (; part + 2 * kTileRows <= width; part += 2 * kTileRows)
        mix_block<two_tiles, true>(weights, apart, count, values + 2 * part, width, sums + part);
    if (part < width) mix_block<two_tiles, false>(weights, apart, count, values + 2 * part, width, sums + part);
}

// One query's scores of a tile of keys, in units of ln 2, become weights; its sums so far are scaled to the new maximum.
// The query sees the first `visible` of `padded` keys.
inline void update_weights(const float* scores, int visible, int padded, float& most, float& total, float* sums, int width,
                           Half* weights, std::size_t apart) {
    Integers lanes;
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
    const int whole = visible / kLanes * kLanes;
    const auto last = [&] { return select(lanes < visible - whole, load(scores + whole), all(kUnseen)); };
    Vector largest = all(most), added{};
    for (int key = 0; key < whole; key += kLanes) largest = larger(load(scores + key), largest);
    if (whole < visible) largest = larger(last(), largest);
    const float next = highest(largest);
    int key = 0;
    for (; key < whole; key += kLanes) {
        const Vector weight = power_of_two(load(scores + key) - next);
        store_split(weights + key, apart, weight);
        added += weight;
    }
    if (key < visible) {
        const Vector weight = power_of_two(last() - next);
        store_split(weights + key, apart, weight);
        added += weight;
        key += kLanes;
    }
    for (; key < padded; key += kLanes) store_split(weights + key, apart, Vector{});
    if (next != most) {
        const Vector factor = power_of_two(all(most - next));
        for (int i = 0; i < width; i += kLanes) store(sums + i, load(sums + i) * factor);
        total *= factor[0];
        most = next;
    }
    total += sum(added);
}

void attend_rows_by_matrices(const Attention<Half>& task, int first, int rows, int kv_head, float* scores) {
    const int size = task.size, group = task.heads / task.kv_heads, queries = rows * group, both = 2 * task.kv_heads;
    // With few queries, what AMX needs costs more than it saves; caps and windows are left to vectors.
    if (queries < kLeastMatrixQueries || task.cap > 0 || task.first_seen(task.positions[first] + rows - 1) > 0)
        return attend_rows<Half>(task, first, rows, kv_head, scores);
    const int width = (size + kTileRows - 1) / kTileRows * kTileRows;
    const int depth = (size + kTileInputs - 1) / kTileInputs * kTileInputs;
    const int padded = (queries + kMostBlockRows - 1) / kMostBlockRows * kMostBlockRows;
    const std::size_t query_apart = static_cast<std::size_t>(padded) * depth;
    constexpr std::size_t weight_apart = kMostBlockRows * kMatrixKeys;
    float* const sums = scores + weight_apart;                                   // [padded, width]
    Half* const query = reinterpret_cast<Half*>(sums + padded * width);          // [kSplit, padded, depth]
    Half* const weights = query + kSplit * query_apart;                          // [kSplit, 32, kMatrixKeys]
    Half* const keys = weights + kSplit * weight_apart;                          // [depth / 2][kMatrixKeys][2]
    Half* const values = keys + depth * kMatrixKeys;                             // [kMatrixKeys / 2][width][2]
    float* const most = reinterpret_cast<float*>(values + kMatrixKeys * width);  // [padded]
    float* const total = most + padded;                                          // [padded]
    constexpr float base = 1.44269504f;  // 1 / ln 2
    for (int i = 0; i < padded * width; ++i) sums[i] = 0.0f;
    for (std::size_t i = 0; i < kSplit * query_apart; ++i) query[i] = 0;
    for (int i = 0; i < queries; ++i) {
        const std::size_t row = first + i / group, head = row * (task.heads + both) + kv_head * group + i % group;
        const float* const from = task.made + head * size;
        for (int part = 0; part < size; part += kLanes) {
            alignas(64) float held[kLanes];
            copy_padded(from + part, size - part, held);
            store_split(query + static_cast<std::size_t>(i) * depth + part, query_apart, load(held) * (task.scale * base));
        }
        most[i] = kUnseen;
        total[i] = 0.0f;
    }
    const Half* const all_keys = task.held + (task.slots[first] * both + kv_head) * task.length * size;
    const Half* const all_values = all_keys + static_cast<std::int64_t>(task.kv_heads) * task.length * size;
    const std::int64_t position = task.positions[first], end = position + rows;
    shape_tiles(kMostBlockRows, kTileInputs * sizeof(Half), kTileInputs / 2);
    for (std::int64_t begin = 0; begin < end; begin += kMatrixKeys) {
        const int count = end - begin < kMatrixKeys ? static_cast<int>(end - begin) : kMatrixKeys;
        const int padded_keys = (count + kMostBlockRows - 1) / kMostBlockRows * kMostBlockRows;
        pair_keys(all_keys + begin * size, count, padded_keys, size, keys);
        pair_values(all_values + begin * size, count, padded_keys, size, width, values);
        // Queries before the tile see none of its keys.
        const int from = begin > position ? static_cast<int>(begin - position) * group : 0;
        // A block's scores and weights stay in the first level of caches.
        for (int block = from / kMostBlockRows * kMostBlockRows; block < padded; block += kMostBlockRows) {
            const bool two = queries - block > kTileRows;
            const auto score = two ? score_block<true> : score_block<false>;
            // Keys that its last query sees, in whole tiles.
            const int last = (block + kMostBlockRows < queries ? block + kMostBlockRows : queries) - 1;
            const std::int64_t most_seen = (position + last / group - begin) / kMostBlockRows * kMostBlockRows + kMostBlockRows;
            const int block_keys = most_seen < padded_keys ? static_cast<int>(most_seen) : padded_keys;
            for (int key = 0; key < block_keys; key += kMostBlockRows)
                score(query + static_cast<std::size_t>(block) * depth, query_apart, depth, keys + 2 * key, scores + key);
            for (int i = block; i < block + kMostBlockRows && i < queries; ++i) {
                Half* const own = weights + (i - block) * kMatrixKeys;
                const std::int64_t seen = position + i / group + 1 - begin;
                if (i >= from)
                    update_weights(scores + (i - block) * kMatrixKeys, seen < count ? static_cast<int>(seen) : count,
                                   block_keys, most[i], total[i], sums + i * width, width, own, weight_apart);
                else
                    for (int key = 0; key < block_keys; key += kLanes) store_split(own + key, weight_apart, Vector{});
            }
            const auto mix = two ? mix_values<true> : mix_values<false>;
            mix(weights, weight_apart, block_keys, values, width, sums + block * width);
        }
    }
    _tile_release();
    store_means(task, first, rows, kv_head, sums, width, total);
}

}  // namespace
}  // namespace tidal

#endif
