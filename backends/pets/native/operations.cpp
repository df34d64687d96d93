#include "operations.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "openvino/core/attribute_visitor.hpp"
#include "rows.hpp"

namespace tidal {
namespace {

// Linear layers that one operation stands behind.
constexpr std::size_t most_layers = 8;

Activation activation_named(const std::string& name) {
    static const char* const names[] = {"none", "relu", "gelu", "gelu_tanh", "silu", "tanh"};
    for (int i = 0; i < 6; ++i)
        if (name == names[i]) return static_cast<Activation>(i);
    OPENVINO_THROW("unknown activation ", name);
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
    OPENVINO_ASSERT(get_input_size() == 3 && !layers_.empty() && layers_.size() <= most_layers &&
                        layers_.size() == outputs_.size(),
                    "TaskLinear takes three inputs and one to ", most_layers, " layers");
    const ov::PartialShape& shape = get_input_partial_shape(0);
    const std::int64_t width = std::accumulate(outputs_.begin(), outputs_.end(), std::int64_t{0});
    OPENVINO_ASSERT(shape.rank().is_dynamic() || shape[shape.size() - 1].compatible(width),
                    "TaskLinear's layers have other outputs than its first input");
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
    const Rows rows(inputs[2], extent.tokens);
    const Kernels& level = kernels();
    const Activation activation = activation_named(activation_);
    const std::vector<int> widths(outputs_.begin(), outputs_.end());
    const int widest = *std::max_element(widths.begin(), widths.end());
    const std::size_t room = level.linear_scratch(static_cast<int>(input_width), widest, rows.widest_dense());
    for_pieces(rows, [&](const Piece& piece) {
        const LinearSite* sites[most_layers] = {};
        const Task* task = rows.task(piece.row);
        for (std::size_t i = 0; i < layers_.size() && task; ++i) sites[i] = task->linear(layers_[i]);
        level.linear({static_cast<int>(piece.tokens), static_cast<int>(input_width), static_cast<int>(layers_.size()),
                      widths.data(), sites, shared + piece.first * extent.width, input + piece.first * input_width,
                      output + piece.first * extent.width, activation},
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
    const Rows rows(inputs[5], extent.tokens);
    const Kernels& level = kernels();
    const int width = static_cast<int>(extent.width);
    const std::size_t room = level.linear_scratch(static_cast<int>(input_width), width, rows.widest_dense());
    // Behind the kernels' scratch: what a bottleneck after the normalisation reads.
    const std::size_t whole = room + kBlock * extent.width;
    for_pieces(rows, [&](const Piece& piece) {
        const Task* task = rows.task(piece.row);
        const LinearSite* site = task ? task->linear(layer_) : nullptr;
        const std::size_t token = piece.first;
        const int tokens = static_cast<int>(piece.tokens);
        float* const target = output + token * extent.width;
        if (site)
            level.linear({tokens, static_cast<int>(input_width), 1, &width, &site,
                          shared + token * extent.width, input + token * input_width, target, Activation::none},
                         scratch(whole));
        const NormSite own = norm_site(task, norm_, inputs[3], inputs[4]);
        if (site && site->after_norm) {
            float* const kernels_own = scratch(whole);
            float* const normalised = kernels_own + room;
            level.norm({tokens, width, static_cast<float>(epsilon_), target,
                        residual + token * extent.width, own.weight, own.bias, normalised});
            level.bottleneck({tokens, width, site, normalised, target}, kernels_own);
        }
        level.norm({tokens, width, static_cast<float>(epsilon_),
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
    const Rows rows(inputs[3], extent.tokens);
    const Kernels& level = kernels();
    for_pieces(rows, [&](const Piece& piece) {
        const NormSite own = norm_site(rows.task(piece.row), norm_, inputs[1], inputs[2]);
        const std::size_t offset = piece.first * extent.width;
        level.norm({static_cast<int>(piece.tokens), static_cast<int>(extent.width), static_cast<float>(epsilon_),
                    source + offset, nullptr, own.weight, own.bias, output + offset});
    });
    return true;
}

// ---- RowAttention

void RowAttention::validate_and_infer_types() {
    ov::PartialShape shape = get_input_partial_shape(0);
    if (shape.rank().is_static()) shape[2] = width_;
    set_output_size(received_ ? 2 : 1);
    set_output_type(0, get_input_element_type(0), shape);
    if (!received_) return;
    const ov::PartialShape& keys = get_input_partial_shape(1);
    const bool known = keys.rank().is_static();
    set_output_type(1, get_input_element_type(0),
                    {known ? keys[0] : ov::Dimension(), heads_, known ? keys[1] : ov::Dimension()});
}

std::shared_ptr<ov::Node> RowAttention::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    auto clone = std::make_shared<RowAttention>();
    clone->set_arguments(inputs);
    clone->heads_ = heads_;
    clone->width_ = width_;
    clone->received_ = received_;
    clone->constructor_validate_and_infer_types();
    return clone;
}

bool RowAttention::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("heads", heads_);
    visitor.on_attribute("width", width_);
    visitor.on_attribute("received", received_);
    return true;
}

bool RowAttention::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const Extent queries(inputs[0]), keys(inputs[1]);
    const std::size_t width = static_cast<std::size_t>(width_), heads = static_cast<std::size_t>(heads_);
    const std::size_t size = width / heads;
    outputs[0].set_shape({1, queries.tokens, width});
    const float* const query = inputs[0].data<const float>();
    const float* const key = inputs[1].data<const float>() + keys.width - 2 * width;
    float* const output = outputs[0].data<float>();
    if (received_) outputs[1].set_shape({1, heads, keys.tokens});
    float* const received = received_ ? outputs[1].data<float>() : nullptr;
    const Rows asking(inputs[2], queries.tokens), rows(inputs[2], keys.tokens);
    std::size_t longest = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) longest = std::max(longest, rows.tokens(row));
    const Kernels& level = kernels();
    const std::size_t room = level.attention_scratch(static_cast<int>(longest), static_cast<int>(size));
    in_parallel(rows.size() * heads, [&](std::size_t index) {
        const std::size_t row = index / heads, head = index % heads, column = head * size;
        const float* const row_key = key + rows.first(row) * keys.width + column;
        float* const own = received ? received + head * keys.tokens + rows.first(row) : nullptr;
        if (own) std::memset(own, 0, rows.tokens(row) * sizeof(float));
        level.attention({static_cast<int>(asking.tokens(row)), static_cast<int>(rows.tokens(row)),
                         static_cast<int>(size), query + asking.first(row) * queries.width + column, row_key,
                         row_key + width, output + asking.first(row) * width + column,
                         static_cast<int>(queries.width), static_cast<int>(keys.width), static_cast<int>(width), own},
                        scratch(room));
    });
    return true;
}

}  // namespace tidal
