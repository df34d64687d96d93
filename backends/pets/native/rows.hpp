// The rows of a tensor with their tasks, and work on blocks of their tokens in parallel.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "openvino/core/except.hpp"
#include "openvino/runtime/tensor.hpp"
#include "tasks.hpp"
#include "tbb/blocked_range.h"
#include "tbb/parallel_for.h"
#include "tbb/task_arena.h"

namespace tidal {

// Tokens of a tensor [1, tokens, width] or [tokens, width].
struct Extent {
    explicit Extent(const ov::Tensor& tensor) {
        const ov::Shape& shape = tensor.get_shape();
        width = shape.back();
        tokens = tensor.get_size() / width;
    }
    std::size_t tokens, width;
};

// The rows of the running batch, and where their tokens are in a tensor: it has all of them, or one of each row.
class Rows {
public:
    Rows(const ov::Tensor& number, std::size_t tokens) {
        const std::int32_t wanted = *number.data<const std::int32_t>();
        batch_ = running_batch(wanted);
        OPENVINO_ASSERT(batch_ || wanted == 0, "no running batch has the number ", wanted);
        if (!batch_) {
            alone_ = Layout({static_cast<std::int32_t>(tokens)});
            layout_ = &alone_;
            return;
        }
        layout_ = tokens == batch_->all.tokens() ? &batch_->all : &batch_->one;
        OPENVINO_ASSERT(layout_->tokens() == tokens, "the batch has other tokens than the tensors");
    }
    Rows(const Rows&) = delete;
    Rows& operator=(const Rows&) = delete;
    std::size_t size() const { return layout_->firsts.size() - 1; }
    const Task* task(std::size_t row) const { return batch_ ? batch_->tasks[row].get() : nullptr; }
    std::size_t first(std::size_t row) const { return layout_->firsts[row]; }
    std::size_t tokens(std::size_t row) const { return layout_->firsts[row + 1] - layout_->firsts[row]; }
    const std::vector<Piece>& pieces() const { return layout_->pieces; }
    int widest_dense() const { return batch_ ? batch_->widest_dense : 0; }

private:
    const Batch* batch_;
    const Layout* layout_;
    Layout alone_;
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

// Call work(piece) for all pieces of the rows.
template <typename Work>
void for_pieces(const Rows& rows, const Work& work) {
    const std::vector<Piece>& pieces = rows.pieces();
    in_parallel(pieces.size(), [&](std::size_t index) { work(pieces[index]); });
}

}  // namespace tidal
