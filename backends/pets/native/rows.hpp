// The rows of a tensor with their tasks, and work on blocks of their tokens in parallel.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "openvino/core/except.hpp"
#include "openvino/runtime/tensor.hpp"
#include "tasks.hpp"
#include "tbb/blocked_range.h"
#include "tbb/parallel_for.h"
#include "tbb/task_arena.h"

namespace tidal {

// Rows and tokens of a tensor [rows, tokens, width] or [rows, width].
struct Extent {
    explicit Extent(const ov::Tensor& tensor) {
        const ov::Shape& shape = tensor.get_shape();
        rows = shape[0];
        tokens = shape.size() == 3 ? shape[1] : 1;
        width = shape.back();
    }
    std::size_t rows, tokens, width;
};

class Rows {
public:
    Rows(const ov::Tensor& number, const Extent& extent) : extent_(extent) {
        const std::int32_t wanted = *number.data<const std::int32_t>();
        batch_ = running_batch(wanted);
        OPENVINO_ASSERT(batch_ || wanted == 0, "no running batch has the number ", wanted);
        OPENVINO_ASSERT(!batch_ || batch_->tasks.size() == extent.rows, "the batch has other rows than the tensors");
    }
    const Task* task(std::size_t row) const { return batch_ ? batch_->tasks[row].get() : nullptr; }
    std::size_t length(std::size_t row) const {
        return batch_ ? std::min<std::size_t>(batch_->lengths[row], extent_.tokens) : extent_.tokens;
    }
    int widest_dense() const { return batch_ ? batch_->widest_dense : 0; }

private:
    Extent extent_;
    const Batch* batch_;
};

// Scratch of the calling thread, aligned for vectors.
inline float* scratch(std::size_t floats) {
    struct Free {
        void operator()(float* memory) const { std::free(memory); }
    };
    thread_local std::unique_ptr<float, Free> memory;
    thread_local std::size_t room = 0;
    if (room < floats) {
        memory.reset();
        room = 0;
        memory.reset(static_cast<float*>(std::aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64)));
        if (!memory) throw std::bad_alloc();
        room = floats;
    }
    return memory.get();
}

template <typename Work>
void in_parallel(std::size_t count, const Work& work) {
    // Some pieces take many times as long as others: small ranges, yet not so small that handing out is what is paid.
    const std::size_t threads = static_cast<std::size_t>(tbb::this_task_arena::max_concurrency());
    const std::size_t grain = std::max<std::size_t>(1, count / (threads * 16));
    tbb::parallel_for(
        tbb::blocked_range<std::size_t>(0, count, grain),
        [&](const tbb::blocked_range<std::size_t>& range) {
            for (std::size_t i = range.begin(); i < range.end(); ++i) work(i);
        },
        tbb::simple_partitioner{});
}

// Call work(row, first token, real tokens) for all blocks; what is padding is cleared.
template <typename Work>
void for_blocks(const Rows& rows, const Extent& extent, float* output, std::size_t width, const Work& work) {
    const std::size_t blocks = (extent.tokens + kBlock - 1) / kBlock;
    in_parallel(extent.rows * blocks, [&](std::size_t index) {
        const std::size_t row = index / blocks, first = index % blocks * kBlock;
        const std::size_t end = std::min(first + kBlock, extent.tokens);
        const std::size_t real = std::clamp(rows.length(row), first, end);
        if (real > first) work(row, first, real - first);
        if (end > real)
            std::memset(output + (row * extent.tokens + real) * width, 0, (end - real) * width * sizeof(float));
    });
}

}  // namespace tidal
