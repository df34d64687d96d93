// Vectors of bytes with sign in memory, and keys and values that are kept as such.
//
// Included once in each level's compilation; everything is local to it, see kernels.hpp.
#pragma once

#include "bf16_vectors.hpp"

namespace tidal {
namespace {

constexpr float kMostOfByte = 127.0f;

// The nearest integers of |x| < 2^22, ties to even.
inline Integers nearest(Vector x) {
    return reinterpret_cast<Integers>(x + 12582912.0f) - 0x4b400000;
}

typedef std::int8_t Bytes __attribute__((vector_size(kLanes), may_alias));
typedef std::int8_t UnalignedBytes __attribute__((vector_size(kLanes), aligned(1), may_alias));

inline void store_bytes(std::int8_t* to, Integers x) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(x)));
#else
    *reinterpret_cast<UnalignedBytes*>(to) = __builtin_convertvector(x, Bytes);
#endif
}

inline Vector load(const std::int8_t* from) {
#if defined(__AVX512F__)
    const __m512i x = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return reinterpret_cast<Vector>(_mm512_cvtepi32_ps(x));
#elif defined(__AVX2__)
    const __m256i x = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    return reinterpret_cast<Vector>(_mm256_cvtepi32_ps(x));
#else
    const Bytes x = *reinterpret_cast<const UnalignedBytes*>(from);
    return __builtin_convertvector(__builtin_convertvector(x, Integers), Vector);
#endif
}
inline float load_one(const std::int8_t* from) { return static_cast<float>(*from); }

// Whether numbers are kept as integers, whose scale each token has for each head.
template <class Held>
constexpr bool kScaled = sizeof(Held) == 1;

// `count` numbers x become x * factors.
inline void multiply_by(float* x, const float* factors, std::int64_t count) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(x + i, load(x + i) * load(factors + i));
    for (; i < count; ++i) x[i] *= factors[i];
}

// Round numbers to integers of at most 127; returns their scale.
inline float round_to_bytes(const float* from, std::int8_t* to, int count) {
    const int whole = count / kLanes * kLanes;
    Vector most{}, not_finite{};
    for (int i = 0; i < whole; i += kLanes) {
        const Vector x = load(from + i), size = absolute(x);
        most = select(size > most, size, most);
        not_finite += x * 0.0f;
    }
    float largest = highest(most), off = sum(not_finite);
    for (int i = whole; i < count; ++i) {
        const float size = from[i] < 0 ? -from[i] : from[i];
        largest = size > largest ? size : largest;
        off += from[i] * 0.0f;
    }
    // Numbers that are too small to divide by are 0.
    const float factor = largest > 1e-30f ? kMostOfByte / largest : 0.0f;
    for (int i = 0; i < whole; i += kLanes) store_bytes(to + i, nearest(load(from + i) * factor));
    for (int i = whole; i < count; ++i) to[i] = static_cast<std::int8_t>(nearest(all(from[i] * factor))[0]);
    // NaN and infinite numbers become NaN.
    return (factor > 0 ? largest / kMostOfByte : 0.0f) + off;
}

}  // namespace
}  // namespace tidal
