// Arrays in terms of vectors: sums, activations, and transposing tokens to columns and back.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "kernels.hpp"
#include "vectors.hpp"

namespace tidal {
namespace {

constexpr int kTileTokens = kLanes == 16 ? 8 : 4;
// Rows of a slice whose sums are in registers at the same time: enough to hide the latency of the additions.
constexpr int kRows = kLanes == 16 ? kSlice : 4;

// The sum of a vector's lanes, added in their order.
inline float sum(Vector x) {
    float total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total += x[lane];
    return total;
}

template <Activation kind>
void activate_as(float* x, int count) {
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) store(x + i, activated(kind, load(x + i)));
    if (i == count) return;
    float last[kLanes] = {};
    for (int j = i; j < count; ++j) last[j - i] = x[j];
    store(last, activated(kind, load(last)));
    for (int j = i; j < count; ++j) x[j] = last[j - i];
}

void activate(Activation kind, float* x, int count) {
    switch (kind) {
        case Activation::relu: return activate_as<Activation::relu>(x, count);
        case Activation::gelu: return activate_as<Activation::gelu>(x, count);
        case Activation::silu: return activate_as<Activation::silu>(x, count);
        case Activation::gelu_tanh: return activate_as<Activation::gelu_tanh>(x, count);
        case Activation::tanh: return activate_as<Activation::tanh>(x, count);
        default: return;
    }
}

template <int step, bool upper>
inline Integers exchange() {
    Integers mask;
    for (int lane = 0; lane < kLanes; ++lane) {
        const bool high = lane & step;
        mask[lane] = upper ? (high ? kLanes + lane - step : lane) : (high ? kLanes + lane : lane + step);
    }
    return mask;
}

template <int step>
inline void transpose_by(Vector (&block)[kLanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
        if (i & step) continue;
        const Vector low = block[i], high = block[i | step];
        block[i] = __builtin_shuffle(low, high, exchange<step, true>());
        block[i | step] = __builtin_shuffle(low, high, exchange<step, false>());
    }
}

inline void transpose(Vector (&block)[kLanes]) {
    transpose_by<1>(block);
    transpose_by<2>(block);
    if constexpr (kLanes >= 8) transpose_by<4 % kLanes>(block);
    if constexpr (kLanes >= 16) transpose_by<8 % kLanes>(block);
}

// [tokens, columns] to [columns][width], where `width` is a multiple of the lanes; absent tokens are zeros.
void to_columns(const float* x, int stride, int tokens, int columns, int width, float* target) {
    for (int first = 0; first < width; first += kLanes) {
        const int present = tokens - first < kLanes ? (tokens > first ? tokens - first : 0) : kLanes;
        const float* source = x + static_cast<std::size_t>(first) * stride;
        int column = 0;
        for (; column + kLanes <= columns; column += kLanes) {
            Vector block[kLanes];
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) block[i] = i < present ? load(source + i * stride + column) : Vector{};
            transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) store(target + (column + i) * width + first, block[i]);
        }
        for (; column < columns; ++column)
            for (int i = 0; i < kLanes; ++i)
                target[column * width + first + i] = i < present ? source[i * stride + column] : 0.0f;
    }
}

// Add [columns][width] to [tokens, columns].
void add_columns(const float* source, int width, int tokens, int columns, float* y, int stride) {
    for (int first = 0; first < tokens; first += kLanes) {
        const int present = tokens - first < kLanes ? tokens - first : kLanes;
        float* target = y + static_cast<std::size_t>(first) * stride;
        int column = 0;
        for (; column + kLanes <= columns; column += kLanes) {
            Vector block[kLanes];
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i) block[i] = load(source + (column + i) * width + first);
            transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; ++i)
                if (i < present) {
                    float* row = target + i * stride + column;
                    store(row, load(row) + block[i]);
                }
        }
        for (; column < columns; ++column)
            for (int i = 0; i < present; ++i) target[i * stride + column] += source[column * width + first + i];
    }
}

}  // namespace
}  // namespace tidal
