// Vectors of as many floats as the level has, and functions of them.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels.hpp"

#ifndef TIDAL_LEVEL
#error "TIDAL_LEVEL names the level that is compiled: avx512bf16, avx512, avx2 or plain"
#endif

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
typedef std::uint32_t Bits __attribute__((vector_size(kLanes * 4), may_alias));
typedef std::uint32_t UnalignedBits __attribute__((vector_size(kLanes * 4), aligned(2), may_alias));
typedef Half Halves __attribute__((vector_size(kLanes * 2), may_alias));
typedef Half UnalignedHalves __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

// Subtracting nothing is nothing to do; adding it would be, for the sake of a negative zero.
inline Vector all(float value) { return value - Vector{}; }
inline Vector select(Integers where, Vector yes, Vector no) { return where ? yes : no; }
inline Vector absolute(Vector x) { return reinterpret_cast<Vector>(reinterpret_cast<Integers>(x) & 0x7fffffff); }

inline Vector load(const float* from) { return *reinterpret_cast<const UnalignedVector*>(from); }
inline void store(float* to, Vector x) { *reinterpret_cast<UnalignedVector*>(to) = x; }

// GCC takes more than twice the instructions for these where it is left to it.
inline Bits widened(const Half* from) {
#if defined(__AVX512F__)
    return reinterpret_cast<Bits>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX2__)
    return reinterpret_cast<Bits>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    return __builtin_convertvector(*reinterpret_cast<const UnalignedHalves*>(from), Bits);
#endif
}
inline Halves narrowed(Bits x) {
#if defined(__AVX512F__)
    return reinterpret_cast<Halves>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(x)));
#else
    return __builtin_convertvector(x, Halves);
#endif
}

inline Vector load(const Half* from) { return reinterpret_cast<Vector>(widened(from) << 16); }
inline void store(Half* to, Vector x) {
    const Bits bits = reinterpret_cast<Bits>(x);
    *reinterpret_cast<UnalignedHalves*>(to) = narrowed((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float load_one(const float* from) { return *from; }
inline float load_one(const Half* from) {
    const std::uint32_t bits = static_cast<std::uint32_t>(*from) << 16;
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}
inline void store_one(float* to, float x) { *to = x; }
inline void store_one(Half* to, float x) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    *to = static_cast<Half>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Sums of neighbours: of the first vector in the lower lanes, of the second in the upper ones.
inline Vector add_pairs(Vector x, Vector y) {
    Integers even, odd;
    for (int lane = 0; lane < kLanes; ++lane) {
        even[lane] = 2 * lane;
        odd[lane] = 2 * lane + 1;
    }
    return __builtin_shuffle(x, y, even) + __builtin_shuffle(x, y, odd);
}

// The sum of each vector's lanes.
template <int count = kLanes>
inline Vector sums(Vector (&x)[kLanes]) {
    if constexpr (count > 1) {
#pragma GCC unroll 8
        for (int i = 0; i < count / 2; ++i) x[i] = add_pairs(x[2 * i], x[2 * i + 1]);
        return sums<count / 2>(x);
    } else {
        return x[0];
    }
}

// The lanes, with those exchanged that are `step` apart.
template <int step>
inline Vector exchanged(Vector x) {
    Integers places;
    for (int lane = 0; lane < kLanes; ++lane) places[lane] = lane ^ step;
    return __builtin_shuffle(x, places);
}

template <int step = kLanes / 2>
inline float sum(Vector x) {
    if constexpr (step > 0)
        return sum<step / 2>(x + exchanged<step>(x));
    else
        return x[0];
}

template <int step = kLanes / 2>
inline float highest(Vector x) {
    if constexpr (step > 0) {
        const Vector other = exchanged<step>(x);
        return highest<step / 2>(select(other > x, other, x));
    } else {
        return x[0];
    }
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

inline Vector activated(Activation kind, Vector x) {
    switch (kind) {
        case Activation::relu: return select(x > 0.0f, x, Vector{});
        case Activation::gelu: return 0.5f * x * (error_function(x * 0.70710678f) + 1.0f);
        case Activation::gelu_tanh:
            return 0.5f * x * (hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)) + 1.0f);
        case Activation::silu: return x / (exponential(-x) + 1.0f);
        default: return x;
    }
}

}  // namespace
}  // namespace tidal
