// The kernels, in terms of vectors of the level's width: compiled once per level.
#include "attention_matrix_tiles.hpp"
#include "attention_tiles.hpp"
#include "bf16_vectors.hpp"
#include "byte_vectors.hpp"
#include "integer_matrix_tiles.hpp"
#include "low_rank.hpp"
#include "products.hpp"

namespace tidal {
namespace {

#if defined(__AMX_BF16__)
constexpr bool kMultipliesTiles = true;
constexpr auto kAttendHalfRows = attend_rows_by_matrices;
#else
constexpr bool kMultipliesTiles = false;
constexpr auto kAttendHalfRows = attend_rows<Half>;
#endif

// Prefetch distance in blocks of keys, one position per lane.
constexpr int kBlocksAhead = 4;

void round(const float* from, Half* to, std::size_t count, std::size_t next) {
    std::size_t begin = 0;
    for (; begin + kTileInputs <= count; begin += kTileInputs, to += next)
        for (int i = 0; i < kTileInputs; i += kLanes) store_rounded(to + i, load(from + begin + i));
    if (begin == count) return;
    for (std::size_t i = 0; i < kTileInputs; ++i) store_one(to + i, begin + i < count ? from[begin + i] : 0.0f);
}

template <class Held>
void copy(const float* from, Held* to, int count) {
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
    for (; i < count; ++i) store_one(to + i, from[i]);
}

template <class Held>
void keep(const Attention<Held>& task, int row) {
    const int both = 2 * task.kv_heads;
    const float* made = task.made + (static_cast<std::size_t>(row) * (task.heads + both) + task.heads) * task.size;
    Held* held = task.held + (task.slots[row] * both * task.length + task.positions[row]) * task.size;
    for (int head = 0; head < both; ++head) {
        const float* from = made + static_cast<std::size_t>(head) * task.size;
        Held* to = held + head * task.length * task.size;
        if constexpr (kScaled<Held>)
            task.scales[(task.slots[row] * both + head) * task.length + task.positions[row]] =
                round_to_bytes(from, to, task.size);
        else
            copy(from, to, task.size);
    }
}

// Keys or values of one head in one slot, and those that are read after them. They are read block by block, one position
// per lane, while later blocks are prefetched.
template <class Held>
struct Run {
    const Held* first;  // [count, size]
    const Held* next;
    std::int64_t count;
    std::int64_t size;

    // Address to prefetch while the block at a position is read.
    const Held* ahead(std::int64_t position) const {
        const std::int64_t later = position + kBlocksAhead * kLanes;
        return later < count ? first + later * size : next + (later - count) * size;
    }
};

// Products of a query with as many keys as there are lanes.
template <class Held>
inline Vector products(const float* query, const Run<Held>& keys, std::int64_t position) {
    constexpr int in_line = kLine / sizeof(Held);
    const std::int64_t size = keys.size;
    const Held* const block = keys.first + position * size;
    const Held* const ahead = keys.ahead(position);
    Vector parts[kLanes] = {};
    std::int64_t part = 0;
    for (; part + kLanes <= size; part += kLanes) {
        const Vector x = load(query + part);
        const Held* key = block + part;
        // All parts together prefetch each line once, or more often if a part is smaller than a line.
        const Held* fetched = ahead + part / in_line * in_line;
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i, key += size, fetched += size) {
            __builtin_prefetch(fetched, 0, 3);
            parts[i] += x * load(key);
        }
    }
    Vector found = sums(parts);
    for (; part < size; ++part)
        for (int i = 0; i < kLanes; ++i) found[i] += query[part] * load_one(block + i * size + part);
    return found;
}

// Products of a query with all keys, padded to whole vectors with values whose softmax weight is 0.
template <class Held>
void score(const float* query, const Run<Held>& keys, float* scores) {
    std::int64_t at = 0;
    for (; at + kLanes <= keys.count; at += kLanes) store(scores + at, products(query, keys, at));
    if (at == keys.count) return;
    store(scores + at, all(-__builtin_huge_valf()));
    for (; at < keys.count; ++at) {
        const Held* key = keys.first + at * keys.size;
        Vector parts{};
        std::int64_t part = 0;
        for (; part + kLanes <= keys.size; part += kLanes) parts += load(query + part) * load(key + part);
        float found = sum(parts);
        for (; part < keys.size; ++part) found += query[part] * load_one(key + part);
        scores[at] = found;
    }
}

// Weighted sum of values, for some vectors of each from `part` on.
template <class Held, int vectors>
void mix(const float* weights, const Run<Held>& values, std::int64_t part, float factor, float* output) {
    constexpr int bytes = vectors * kLanes * sizeof(Held);
    Vector sums[2][vectors] = {};
    std::int64_t at = 0;
    while (at + 2 <= values.count) {
        const char* fetched = reinterpret_cast<const char*>(values.ahead(at) + part);
        const std::int64_t end = at + kLanes < values.count ? at + kLanes : values.count - 1;
        for (; at < end; at += 2) {
            for (int row = 0; row < 2; ++row, fetched += values.size * sizeof(Held))
                for (int byte = 0; byte < bytes; byte += kLine) __builtin_prefetch(fetched + byte, 0, 3);
            const Held* value = values.first + at * values.size + part;
            const Vector first = all(weights[at]), second = all(weights[at + 1]);
            for (int v = 0; v < vectors; ++v) sums[0][v] += first * load(value + v * kLanes);
            for (int v = 0; v < vectors; ++v) sums[1][v] += second * load(value + values.size + v * kLanes);
        }
    }
    if (at < values.count)
        for (int v = 0; v < vectors; ++v)
            sums[0][v] += weights[at] * load(values.first + at * values.size + part + v * kLanes);
    for (int v = 0; v < vectors; ++v) store(output + part + v * kLanes, (sums[0][v] + sums[1][v]) * factor);
}

template <class Held>
void attend(const Attention<Held>& task, int row, int kv_head, float* scores) {
    const std::int64_t size = task.size, both = 2 * task.kv_heads;
    const int group = task.heads / task.kv_heads;
    const auto keys_of = [&](int of) {
        const std::int64_t from = task.first_seen(task.positions[of]);
        return task.held + ((task.slots[of] * both + kv_head) * task.length + from) * size;
    };
    const std::int64_t count = task.positions[row] + 1 - task.first_seen(task.positions[row]);
    const std::int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
    const Held* const first_key = keys_of(row);
    const Held* const first_value = first_key + task.kv_heads * task.length * size;
    const Held* const next_key = row + 1 < task.rows ? keys_of(row + 1) : first_key;
    const std::int64_t slot = task.slots[row], first = task.first_seen(task.positions[row]);
    const float* const key_scales = task.scales_of(slot, kv_head);
    const float* const value_scales = task.scales_of(slot, task.kv_heads + kv_head);
    const float scale = task.cap > 0 ? 1.0f : task.scale;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const Run<Held> keys{first_key, first_value, count, size};
        const Run<Held> values{first_value, head + 1 < (kv_head + 1) * group ? first_key : next_key, count, size};
        const float* query = task.made + (static_cast<std::size_t>(row) * (task.heads + both) + head) * size;
        float* output = task.output + (static_cast<std::size_t>(row) * task.heads + head) * size;
        score(query, keys, scores);
        if constexpr (kScaled<Held>) multiply_by(scores, key_scales + first, count);
        if (task.cap > 0) soft_cap(scores, count, task.scale, task.cap);
        Vector most = load(scores);
        for (std::int64_t i = kLanes; i < padded; i += kLanes) {
            const Vector found = load(scores + i);
            most = select(found > most, found, most);
        }
        const float largest = highest(most);
        Vector total{};
        for (std::int64_t i = 0; i < padded; i += kLanes) {
            const Vector weight = exponential((load(scores + i) - largest) * scale);
            store(scores + i, weight);
            total += weight;
        }
        const float factor = 1.0f / sum(total);
        if constexpr (kScaled<Held>) multiply_by(scores, value_scales + first, count);
        std::int64_t part = 0;
        for (; part + 4 * kLanes <= size; part += 4 * kLanes) mix<Held, 4>(scores, values, part, factor, output);
        for (; part + kLanes <= size; part += kLanes) mix<Held, 1>(scores, values, part, factor, output);
        for (; part < size; ++part) {
            float found = 0;
            for (std::int64_t i = 0; i < count; ++i) found += scores[i] * load_one(first_value + i * size + part);
            output[part] = found * factor;
        }
    }
}

void normalise(const Norm& task, int row) {
    const std::size_t place = static_cast<std::size_t>(row) * task.width;
    const float* input = task.input + place;
    float* output = task.output + place;
    const float* added = task.added ? task.added + place : nullptr;
    const int whole = task.width / kLanes * kLanes;
    float mean = 0;
    if (task.centred) {
        Vector total{};
        for (int i = 0; i < whole; i += kLanes) total += load(input + i);
        mean = sum(total);
        for (int i = whole; i < task.width; ++i) mean += input[i];
        mean /= static_cast<float>(task.width);
    }
    Vector squares{};
    for (int i = 0; i < whole; i += kLanes) {
        const Vector off = load(input + i) - mean;
        squares += off * off;
    }
    float spread = sum(squares);
    for (int i = whole; i < task.width; ++i) spread += (input[i] - mean) * (input[i] - mean);
    const float factor = 1.0f / __builtin_sqrtf(spread / static_cast<float>(task.width) + task.epsilon);
    for (int i = 0; i < whole; i += kLanes) {
        Vector x = (load(input + i) - mean) * factor * load(task.weight + i);
        if (task.bias) x += load(task.bias + i);
        if (added) x += load(added + i);
        store(output + i, x);
    }
    for (int i = whole; i < task.width; ++i)
        output[i] = (input[i] - mean) * factor * task.weight[i] + (task.bias ? task.bias[i] : 0.0f) +
                    (added ? added[i] : 0.0f);
}

void turn(const Turn& task, int row) {
    const int half = task.turned / 2;
    const std::size_t place = static_cast<std::size_t>(task.positions[row]) * task.turned;
    const float *cosines = task.cosines + place, *sines = task.sines + place;
    float* head = task.made + static_cast<std::size_t>(row) * task.all_heads * task.size;
    for (int number = 0; number < task.heads; ++number, head += task.size) {
        float *first = head, *second = head + half;
        int i = 0;
        for (; i + kLanes <= half; i += kLanes) {
            const Vector x = load(first + i), y = load(second + i);
            store(first + i, x * load(cosines + i) + y * load(sines + i));
            store(second + i, y * load(cosines + half + i) + x * load(sines + half + i));
        }
        for (; i < half; ++i) {
            const float x = first[i], y = second[i];
            first[i] = x * cosines[i] + y * sines[i];
            second[i] = y * cosines[half + i] + x * sines[half + i];
        }
    }
}

void gate(Activation kind, int width, const float* from, float* to) {
    int i = 0;
    for (; i + kLanes <= width; i += kLanes) store(to + i, activated(kind, load(from + i)) * load(from + width + i));
    for (; i < width; ++i) to[i] = activated(kind, all(from[i]))[0] * from[width + i];
}

}  // namespace

extern const Kernels TIDAL_TABLE(TIDAL_LEVEL);
const Kernels TIDAL_TABLE(TIDAL_LEVEL) = {
    TIDAL_NAME(TIDAL_LEVEL),
    kMultipliesTiles,
    {product<float>, keep<float>, attend<float>, attend_rows<float>},
    {product<Half>, keep<Half>, attend<Half>, kAttendHalfRows},
    {nullptr, keep<std::int8_t>, attend<std::int8_t>, attend_rows<std::int8_t>},
    low_rank,
    normalise,
    turn,
    gate,
    soft_cap,
    round,
    round_to_integers,
    integer_product,
};

}  // namespace tidal
