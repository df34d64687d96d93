#include "packing.hpp"

#include <cstring>

#include "workers.hpp"

namespace tidal {
namespace {

// The panel's weights of floats, or zeros beyond the matrix.
template <class Weight>
void pack_floats(const Matrix& matrix, const Weight* weights, int number, Weight* to) {
    const int depth = matrix.depth(), width = matrix.panel();
    for (int step = 0; step < matrix.steps(); ++step)
        for (int column = 0; column < width; ++column)
            for (int part = 0; part < depth; ++part) {
                const int output = number * width + column, input = step * depth + part;
                *to++ = output < matrix.outputs && input < matrix.inputs
                            ? weights[static_cast<std::size_t>(output) * matrix.inputs + input]
                            : Weight{};
            }
}

void pack_int8(const Matrix& matrix, const std::uint8_t* weights, const float* scales, int number, char* to) {
    const int width = matrix.panel(), stride = matrix.groups() * matrix.group;
    for (int input = 0; input < stride; input += 4)
        for (int column = 0; column < width; ++column, to += 4) {
            const int output = number * width + column;
            if (output < matrix.outputs)
                std::memcpy(to, weights + static_cast<std::size_t>(output) * stride + input, 4);
            else
                std::memset(to, 0, 4);
        }
    for (int column = 0; column < width; ++column, to += sizeof(float)) {
        const int output = number * width + column;
        const float scale = output < matrix.outputs ? scales[output] : 0.0f;
        std::memcpy(to, &scale, sizeof scale);
    }
}

void pack_int4(const Matrix& matrix, const std::uint8_t* weights, const Half* scales, int number, char* to) {
    const int width = matrix.panel(), groups = matrix.groups(), stride = groups * matrix.group;
    for (int group = 0; group < groups; ++group) {
        for (int input = group * matrix.group; input < (group + 1) * matrix.group; input += 8)
            for (int column = 0; column < width; ++column) {
                const int output = number * width + column;
                const std::uint8_t* from = weights + static_cast<std::size_t>(output) * stride + input;
                for (int i = 0; i < 4; ++i)
                    *to++ = output < matrix.outputs ? static_cast<char>(from[i] | from[i + 4] << 4) : 0;
            }
        for (int column = 0; column < width; ++column, to += 2 * sizeof(Half)) {
            const int output = number * width + column;
            if (output < matrix.outputs)
                std::memcpy(to, scales + 2 * (static_cast<std::size_t>(output) * groups + group), 2 * sizeof(Half));
            else
                std::memset(to, 0, 2 * sizeof(Half));
        }
    }
}

}  // namespace

void pack(const Matrix& matrix, int threads, const void* weights, const void* scales) {
    const int panels = matrix.panels_count();
    for_ranges(threads, panels, panels, [&](int begin, int end) {
        for (int number = begin; number < end; ++number) {
            char* to = static_cast<char*>(const_cast<void*>(matrix.panels)) + number * matrix.panel_bytes();
            switch (matrix.format) {
                case Format::full:
                    pack_floats(matrix, static_cast<const float*>(weights), number, reinterpret_cast<float*>(to));
                    break;
                case Format::half:
                    pack_floats(matrix, static_cast<const Half*>(weights), number, reinterpret_cast<Half*>(to));
                    break;
                case Format::int8:
                    pack_int8(matrix, static_cast<const std::uint8_t*>(weights), static_cast<const float*>(scales), number,
                              to);
                    break;
                case Format::int4:
                    pack_int4(matrix, static_cast<const std::uint8_t*>(weights), static_cast<const Half*>(scales), number,
                              to);
                    break;
            }
        }
    });
}

}  // namespace tidal
