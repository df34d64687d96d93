// Vectors of as many floats as the level of vector instructions has, and functions of them.
//
// Included by a library's kernels, which are compiled once for each level (see tidal/compiling.py). Everything is local
// to that compilation, and nothing of the standard library is inlined: a copy compiled for a newer processor must never
// be the one that the linker keeps.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "activation.hpp"

#ifndef TIDAL_LEVEL
#error "TIDAL_LEVEL names the level that is compiled: amx, avx512bf16, avx512vnni, avx512, avx2 or plain"
#endif

// Names of a level's table of kernels: `const Kernels TIDAL_TABLE(TIDAL_LEVEL) = {TIDAL_NAME(TIDAL_LEVEL), ...};`
#define TIDAL_JOINED(name, level) name##level
#define TIDAL_TABLE(level) TIDAL_JOINED(kernels_, level)
#define TIDAL_TEXT(level) #level
#define TIDAL_NAME(level) TIDAL_TEXT(level)

namespace tidal {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vector __attribute__((vector_size(kLanes * 4), may_alias));
typedef float UnalignedVector __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef std::int32_t Integers __attribute__((vector_size(kLanes * 4), may_alias));

inline Vector load(const float* from) { return *reinterpret_cast<const UnalignedVector*>(from); }
inline void store(float* to, Vector x) { *reinterpret_cast<UnalignedVector*>(to) = x; }

// The compiler drops a subtraction of zero, but keeps an addition of zero: it would change a negative zero.
inline Vector all(float value) { return value - Vector{}; }
inline Vector select(Integers where, Vector yes, Vector no) { return where ? yes : no; }
inline Vector absolute(Vector x) { return reinterpret_cast<Vector>(reinterpret_cast<Integers>(x) & 0x7fffffff); }

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

inline Vector activated(Activation kind, Vector x) {
    switch (kind) {
        case Activation::relu: return select(x > 0.0f, x, Vector{});
        case Activation::gelu: return 0.5f * x * (error_function(x * 0.70710678f) + 1.0f);
        case Activation::gelu_tanh:
            return 0.5f * x * (hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)) + 1.0f);
        case Activation::silu: return x / (exponential(-x) + 1.0f);
        case Activation::tanh: return hyperbolic_tangent(x);
        default: return x;
    }
}

}  // namespace
}  // namespace tidal
