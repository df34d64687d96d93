// Vectors of bfloat16 in memory, and reductions of a vector's lanes.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "kernels.hpp"
#include "vectors.hpp"

namespace tidal {
namespace {

typedef std::uint32_t Bits __attribute__((vector_size(kLanes * 4), may_alias));
typedef std::uint32_t UnalignedBits __attribute__((vector_size(kLanes * 4), aligned(2), may_alias));
typedef Half Halves __attribute__((vector_size(kLanes * 2), may_alias));
typedef Half UnalignedHalves __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

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

// The same in one instruction where there is one; numbers that are too small for a normal bfloat16 become 0, as in products.
inline void store_rounded(Half* to, Vector x) {
#if defined(__AVX512BF16__)
    const __m256bh rounded = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(x));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(rounded));
#else
    store(to, x);
#endif
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

}  // namespace
}  // namespace tidal
