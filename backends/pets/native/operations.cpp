#include "operations.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "openvino/core/attribute_visitor.hpp"
#include "tasks.hpp"
#include "tbb/blocked_range.h"
#include "tbb/parallel_for.h"
#include "tbb/task_arena.h"

namespace tidal {
namespace {

Activation activation_named(const std::string& name) {
    static const char* const names[] = {"none", "relu", "gelu", "silu", "gelu_tanh", "tanh"};
    for (int i = 0; i < 6; ++i)
        if (name == names[i]) return static_cast<Activation>(i);
    OPENVINO_THROW("unknown activation ", name);
}

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
float* scratch(std::size_t floats) {
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

NormSite norm_site(const Task* task, std::int64_t norm, const ov::Tensor& weight, const ov::Tensor& bias) {
    const NormSite* own = task ? task->norm(norm) : nullptr;
    return own ? *own : NormSite{weight.data<const float>(), bias.data<const float>()};
}

}  // namespace

// Operations are cloned field by field: copying a node would, for a moment, make the copy a reader of the original's
// inputs, and streams that run at once clone the same nodes.

// ---- TaskLinear

void TaskLinear::validate_and_infer_types() {
    set_output_type(0, get_input_element_type(0), get_input_partial_shape(0));
}

std::shared_ptr<ov::Node> TaskLinear::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    auto clone = std::make_shared<TaskLinear>();
    clone->set_arguments(inputs);
    clone->layers_ = layers_;
    clone->outputs_ = outputs_;
    clone->activation_ = activation_;
    clone->constructor_validate_and_infer_types();
    return clone;
}

bool TaskLinear::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("layers", layers_);
    visitor.on_attribute("outputs", outputs_);
    visitor.on_attribute("activation", activation_);
    return true;
}

bool TaskLinear::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const Extent extent(inputs[0]);
    outputs[0].set_shape(inputs[0].get_shape());
    const std::size_t input_width = inputs[1].get_shape().back();
    const float* const shared = inputs[0].data<const float>();
    const float* const input = inputs[1].data<const float>();
    float* const output = outputs[0].data<float>();
    const Rows rows(inputs[2], extent);
    const Kernels& level = kernels();
    const Activation activation = activation_named(activation_);
    const std::vector<int> widths(outputs_.begin(), outputs_.end());
    const int widest = *std::max_element(widths.begin(), widths.end());
    const std::size_t room = level.linear_scratch(static_cast<int>(input_width), widest, rows.widest_dense());
    for_blocks(rows, extent, output, extent.width, [&](std::size_t row, std::size_t first, std::size_t tokens) {
        const LinearSite* sites[8] = {};
        const Task* task = rows.task(row);
        for (std::size_t i = 0; i < layers_.size() && task; ++i) sites[i] = task->linear(layers_[i]);
        const std::size_t token = row * extent.tokens + first;
        level.linear({static_cast<int>(tokens), static_cast<int>(input_width), static_cast<int>(layers_.size()),
                      widths.data(), sites, shared + token * extent.width, input + token * input_width,
                      output + token * extent.width, activation},
                     scratch(room));
    });
    return true;
}

// ---- TaskLinearNorm

void TaskLinearNorm::validate_and_infer_types() {
    set_output_type(0, get_input_element_type(0), get_input_partial_shape(0));
}

std::shared_ptr<ov::Node> TaskLinearNorm::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    auto clone = std::make_shared<TaskLinearNorm>();
    clone->set_arguments(inputs);
    clone->layer_ = layer_;
    clone->norm_ = norm_;
    clone->epsilon_ = epsilon_;
    clone->constructor_validate_and_infer_types();
    return clone;
}

bool TaskLinearNorm::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("layer", layer_);
    visitor.on_attribute("norm", norm_);
    visitor.on_attribute("epsilon", epsilon_);
    return true;
}

bool TaskLinearNorm::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const Extent extent(inputs[0]);
    outputs[0].set_shape(inputs[0].get_shape());
    const std::size_t input_width = inputs[1].get_shape().back();
    const float* const shared = inputs[0].data<const float>();
    const float* const input = inputs[1].data<const float>();
    const float* const residual = inputs[2].data<const float>();
    float* const output = outputs[0].data<float>();
    const Rows rows(inputs[5], extent);
    const Kernels& level = kernels();
    const int width = static_cast<int>(extent.width);
    const std::size_t room = level.linear_scratch(static_cast<int>(input_width), width, rows.widest_dense());
    for_blocks(rows, extent, output, extent.width, [&](std::size_t row, std::size_t first, std::size_t tokens) {
        const Task* task = rows.task(row);
        const LinearSite* site = task ? task->linear(layer_) : nullptr;
        const std::size_t token = row * extent.tokens + first;
        float* const target = output + token * extent.width;
        if (site)
            level.linear({static_cast<int>(tokens), static_cast<int>(input_width), 1, &width, &site,
                          shared + token * extent.width, input + token * input_width, target, Activation::none},
                         scratch(room));
        const NormSite own = norm_site(task, norm_, inputs[3], inputs[4]);
        level.norm({static_cast<int>(tokens), width, static_cast<float>(epsilon_),
                    site ? target : shared + token * extent.width, residual + token * extent.width, own.weight,
                    own.bias, target});
    });
    return true;
}

// ---- TaskNorm

void TaskNorm::validate_and_infer_types() {
    set_output_type(0, get_input_element_type(0), get_input_partial_shape(0));
}

std::shared_ptr<ov::Node> TaskNorm::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    auto clone = std::make_shared<TaskNorm>();
    clone->set_arguments(inputs);
    clone->norm_ = norm_;
    clone->epsilon_ = epsilon_;
    clone->constructor_validate_and_infer_types();
    return clone;
}

bool TaskNorm::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("norm", norm_);
    visitor.on_attribute("epsilon", epsilon_);
    return true;
}

bool TaskNorm::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const Extent extent(inputs[0]);
    outputs[0].set_shape(inputs[0].get_shape());
    const float* const source = inputs[0].data<const float>();
    float* const output = outputs[0].data<float>();
    const Rows rows(inputs[3], extent);
    const Kernels& level = kernels();
    for_blocks(rows, extent, output, extent.width, [&](std::size_t row, std::size_t first, std::size_t tokens) {
        const NormSite own = norm_site(rows.task(row), norm_, inputs[1], inputs[2]);
        const std::size_t offset = (row * extent.tokens + first) * extent.width;
        level.norm({static_cast<int>(tokens), static_cast<int>(extent.width), static_cast<float>(epsilon_),
                    source + offset, nullptr, own.weight, own.bias, output + offset});
    });
    return true;
}

// ---- RowAttention

void RowAttention::validate_and_infer_types() {
    ov::PartialShape shape = get_input_partial_shape(0);
    if (shape.rank().is_static()) shape[2] = width_;
    set_output_type(0, get_input_element_type(0), shape);
}

std::shared_ptr<ov::Node> RowAttention::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    auto clone = std::make_shared<RowAttention>();
    clone->set_arguments(inputs);
    clone->heads_ = heads_;
    clone->width_ = width_;
    clone->constructor_validate_and_infer_types();
    return clone;
}

bool RowAttention::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("heads", heads_);
    visitor.on_attribute("width", width_);
    return true;
}

bool RowAttention::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const Extent queries(inputs[0]), keys(inputs[1]);
    const std::size_t width = static_cast<std::size_t>(width_), heads = static_cast<std::size_t>(heads_);
    const std::size_t size = width / heads;
    outputs[0].set_shape({queries.rows, queries.tokens, width});
    const float* const query = inputs[0].data<const float>();
    const float* const key = inputs[1].data<const float>() + keys.width - 2 * width;
    float* const output = outputs[0].data<float>();
    const Rows rows(inputs[2], keys);
    const Kernels& level = kernels();
    const std::size_t room = level.attention_scratch(static_cast<int>(keys.tokens), static_cast<int>(size));
    in_parallel(queries.rows * heads, [&](std::size_t index) {
        const std::size_t row = index / heads, column = index % heads * size;
        const std::size_t real_keys = rows.length(row), real = std::min(real_keys, queries.tokens);
        const float* const row_key = key + row * keys.tokens * keys.width + column;
        float* const target = output + row * queries.tokens * width + column;
        level.attention({static_cast<int>(real), static_cast<int>(real_keys), static_cast<int>(size),
                         query + row * queries.tokens * queries.width + column, row_key, row_key + width, target,
                         static_cast<int>(queries.width), static_cast<int>(keys.width), static_cast<int>(width)},
                        scratch(room));
        for (std::size_t token = real; token < queries.tokens; ++token)
            std::memset(target + token * width, 0, size * sizeof(float));
    });
    return true;
}

}  // namespace tidal
