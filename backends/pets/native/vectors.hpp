// Vectors of as many floats as the level has, functions of them, and transposing with them.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "kernels.hpp"

#ifndef TIDAL_LEVEL
#error "TIDAL_LEVEL names the level that is compiled: avx512, avx2 or plain"
#endif

namespace tidal {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kTileTokens = 8;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kTileTokens = 4;
#else
constexpr int kLanes = 4;
constexpr int kTileTokens = 4;
#endif
// Rows of a slice that have their sums in registers at the same time: enough to hide the latency of the additions.
constexpr int kRows = kLanes == 16 ? kSlice : 4;

typedef float Vector __attribute__((vector_size(kLanes * 4), may_alias));
typedef std::int32_t Integers __attribute__((vector_size(kLanes * 4), may_alias));
typedef float Unaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vector vector) { *reinterpret_cast<Unaligned*>(to) = vector; }
inline Vector all(float value) { return Vector{} + value; }
inline Vector select(Integers where, Vector yes, Vector no) { return where ? yes : no; }
inline Vector absolute(Vector x) { return reinterpret_cast<Vector>(reinterpret_cast<Integers>(x) & 0x7fffffff); }

inline float sum(Vector x) {
    float total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total += x[lane];
    return total;
}

// e to the power of x, to about one unit in the last place; 0 below the smallest normal number.
inline Vector exponential(Vector x) {
    x = select(x > 88.0f, all(88.0f), x);
    const Integers vanishes = x < -87.0f;
    x = select(vanishes, all(-87.0f), x);
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest whole number.
    const Vector whole = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const Vector rest = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;
    Vector power = all(1.0f / 5040);
    power = power * rest + 1.0f / 720;
    power = power * rest + 1.0f / 120;
    power = power * rest + 1.0f / 24;
    power = power * rest + 1.0f / 6;
    power = power * rest + 0.5f;
    power = power * rest + 1.0f;
    power = power * rest + 1.0f;
    const Integers exponent = (__builtin_convertvector(whole, Integers) + 127) << 23;
    return select(vanishes, Vector{}, power * reinterpret_cast<Vector>(exponent));
}

// The error function by Abramowitz and Stegun 7.1.26, to 1.5e-7.
inline Vector error_function(Vector x) {
    const Vector size = absolute(x);
    const Vector t = 1.0f / (size * 0.3275911f + 1.0f);
    Vector polynomial = all(1.061405429f);
    polynomial = polynomial * t - 1.453152027f;
    polynomial = polynomial * t + 1.421413741f;
    polynomial = polynomial * t - 0.284496736f;
    polynomial = polynomial * t + 0.254829592f;
    const Vector positive = 1.0f - polynomial * t * exponential(-size * size);
    return select(x < 0.0f, -positive, positive);
}

inline Vector hyperbolic_tangent(Vector x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }

template <Activation kind>
inline Vector activated(Vector x) {
    switch (kind) {
        case Activation::relu: return select(x > 0.0f, x, Vector{});
        case Activation::gelu: return 0.5f * x * (error_function(x * 0.70710678f) + 1.0f);
        case Activation::silu: return x / (exponential(-x) + 1.0f);
        case Activation::gelu_tanh:
            return 0.5f * x * (hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)) + 1.0f);
        case Activation::tanh: return hyperbolic_tangent(x);
        default: return x;
    }
}

template <Activation kind>
void activate_as(float* x, int count) {
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) store(x + i, activated<kind>(load(x + i)));
    if (i == count) return;
    float last[kLanes] = {};
    for (int j = i; j < count; ++j) last[j - i] = x[j];
    store(last, activated<kind>(load(last)));
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
