// The operations of a pass, spread over threads.
#pragma once

#include <cstring>

#include "attention.hpp"
#include "experts.hpp"
#include "kernels.hpp"
#include "linear.hpp"
#include "workers.hpp"

namespace tidal {
namespace {

// One operation of a pass; must match `Operation` in models/operations.py.
enum class Kind : std::int32_t { embed, norm, linear, head_norm, turn, attend, gate, cap, experts };

struct Operation {
    Kind kind;
    Format format;  // of embeddings, or of keys and values
    std::int32_t from, to, added;  // buffers; -1: none
    std::int32_t turned;  // components of a head that are rotated
    std::int32_t outputs;
    std::int32_t heads, kv_heads, size;
    std::int32_t activation;
    std::int32_t centred;
    std::int32_t last;  // whether from here on only the rows with logits are computed
    std::int32_t wide;  // norm of heads: whether all heads of queries, and all of keys, are normalised together
    std::int32_t window;  // attention: see `Attention`
    std::int32_t joined;  // linear: whether the next operation is a linear layer that alone reads its outputs
    float epsilon;
    float scale;  // of embeddings, or of scores
    float cap;    // of scores, or of logits; 0: none
    std::int64_t length;  // tokens of a slot
    const void* weights;  // of a linear layer: its `Matrix`; of experts: their `Mixture`
    const void* more;     // bias of a norm, positions' embeddings or sines
    void* held;           // keys and values
    void* scales;         // their scales, if they are integers
};

struct Rows {
    int count;
    const std::int64_t *ids, *slots, *positions;
};

template <class Weight>
void embed(const Operation& each, int threads, const Rows& rows, float* to) {
    const auto* tokens = static_cast<const Weight*>(each.weights);
    const auto* places = static_cast<const Weight*>(each.more);
    const std::size_t width = each.outputs;
    const auto widened = [](Weight from) {
        if constexpr (sizeof(Weight) == sizeof(float)) {
            return from;
        } else {
            const std::uint32_t bits = static_cast<std::uint32_t>(from) << 16;
            float found;
            std::memcpy(&found, &bits, sizeof found);
            return found;
        }
    };
    for_rows(threads, rows.count, [&](std::size_t row) {
        for (std::size_t i = 0; i < width; ++i)
            to[row * width + i] = widened(tokens[rows.ids[row] * width + i]) * each.scale +
                                  (places ? widened(places[rows.positions[row] * width + i]) : 0.0f);
    });
}

// Normalise the heads of queries and keys of one row, each or all of them together.
void norm_heads(const Operation& each, const float* weights, float* made) {
    const auto run = [&](int heads) {
        const int width = heads * each.size;
        kernels().normalise(Norm{width, false, each.epsilon, made, weights, nullptr, nullptr, made}, 0);
        made += width;
        weights += width;
    };
    if (each.wide) {
        run(each.heads);
        return run(each.kv_heads);
    }
    for (int head = 0; head < each.heads + each.kv_heads; ++head) run(1);
}

template <class Held>
void attend(const Operation& each, int threads, const Rows& rows, const float* made, float* output) {
    attention(threads, Attention<Held>{rows.count, each.heads, each.kv_heads, each.size, each.length, each.scale, each.cap,
                                       each.window, made, static_cast<Held*>(each.held),
                                       static_cast<float*>(each.scales), rows.slots, rows.positions, output});
}

void attend(const Operation& each, int threads, const Rows& rows, const float* made, float* output) {
    switch (each.format) {
        case Format::full: return attend<float>(each, threads, rows, made, output);
        case Format::half: return attend<Half>(each, threads, rows, made, output);
        default: return attend<std::int8_t>(each, threads, rows, made, output);
    }
}

void carry_out(const Operation& each, int threads, const Rows& rows, float* const* buffers) {
    float *from = each.from < 0 ? nullptr : buffers[each.from], *to = buffers[each.to];
    const float* added = each.added < 0 ? nullptr : buffers[each.added];
    const auto *weights = static_cast<const float*>(each.weights), *more = static_cast<const float*>(each.more);
    switch (each.kind) {
        case Kind::embed:
            (each.format == Format::half ? embed<Half> : embed<float>)(each, threads, rows, to);
            break;
        case Kind::norm: {
            const Norm task{each.outputs, each.centred != 0, each.epsilon, from, weights, more, added, to};
            for_rows(threads, rows.count, [&](int row) { kernels().normalise(task, row); });
            break;
        }
        case Kind::linear:
            linear(*static_cast<const Matrix*>(each.weights), threads, rows.count, from, added, each.activation, to);
            break;
        case Kind::head_norm:
            for_rows(threads, rows.count, [&](int row) {
                norm_heads(each, weights,
                           from + static_cast<std::size_t>(row) * (each.heads + 2 * each.kv_heads) * each.size);
            });
            break;
        case Kind::turn: {
            const Turn task{each.heads + each.kv_heads, each.heads + 2 * each.kv_heads, each.size, each.turned,
                            weights, more, rows.positions, from};
            for_rows(threads, rows.count, [&](int row) { kernels().turn(task, row); });
            break;
        }
        case Kind::attend:
            attend(each, threads, rows, from, to);
            break;
        case Kind::gate:
            for_rows(threads, rows.count, [&](int row) {
                const std::size_t width = each.outputs;
                kernels().gate(static_cast<Activation>(each.activation), each.outputs, from + 2 * row * width,
                               to + row * width);
            });
            break;
        case Kind::cap:
            for_rows(threads, rows.count, [&](std::size_t row) {
                kernels().soft_cap(to + row * each.outputs, each.outputs, 1.0f, each.cap);
            });
            break;
        case Kind::experts:
            apply_experts(*static_cast<const Mixture*>(each.weights), threads, rows.count,
                          static_cast<Activation>(each.activation), from, added, to);
            break;
    }
}

// Two linear layers of which the second one alone reads the outputs of the first.
bool joins(const Operation& each, const Operation& next, int rows) {
    return joins(*static_cast<const Matrix*>(each.weights), *static_cast<const Matrix*>(next.weights), rows);
}

void carry_out_joined(const Operation& each, const Operation& next, int threads, const Rows& rows, float* const* buffers) {
    joined(*static_cast<const Matrix*>(each.weights), *static_cast<const Matrix*>(next.weights), threads, rows.count,
           buffers[each.from], each.activation, next.added < 0 ? nullptr : buffers[next.added], buffers[next.to]);
}

}  // namespace
}  // namespace tidal
