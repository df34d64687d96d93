// The operations of an encoder's graph. The tokens of all rows of a batch are one after another, without padding. Each
// operation has an input `batch`, i32 [1]: the number of the running batch, which says what task and how many tokens
// each row has; 0 is the base alone, all tokens of one row. Tensors of tokens have all of them, or one of each row.
#pragma once

#include <string>
#include <vector>

#include "openvino/op/op.hpp"

namespace tidal {

// (shared [1, tokens, outputs] or [rows, outputs], input [1, tokens, inputs] or [rows, inputs], batch): shared + what
// tasks add at linear layers that read the same input, side by side; then the base's activation.
class TaskLinear : public ov::op::Op {
public:
    OPENVINO_OP("TaskLinear", "tidal");
    TaskLinear() = default;
    void validate_and_infer_types() override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;
    bool has_evaluate() const override { return true; }

private:
    std::vector<std::int64_t> layers_;   // numbers of the layers
    std::vector<std::int64_t> outputs_;  // of each layer
    std::string activation_ = "none";
};

// (shared, input, residual, weight [width], bias [width], batch): normalise shared + what tasks add + residual, with
// each task's own weight and bias. The first three are [1, tokens, ...].
class TaskLinearNorm : public ov::op::Op {
public:
    OPENVINO_OP("TaskLinearNorm", "tidal");
    TaskLinearNorm() = default;
    void validate_and_infer_types() override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;
    bool has_evaluate() const override { return true; }

private:
    std::int64_t layer_ = 0;
    std::int64_t norm_ = 0;
    double epsilon_ = 0;
};

// (source [1, tokens, width], weight, bias, batch): normalise with each task's own weight and bias.
class TaskNorm : public ov::op::Op {
public:
    OPENVINO_OP("TaskNorm", "tidal");
    TaskNorm() = default;
    void validate_and_infer_types() override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;
    bool has_evaluate() const override { return true; }

private:
    std::int64_t norm_ = 0;
    double epsilon_ = 0;
};

// (queries [1, queries, width or more], keys [1, tokens, 2 * width or more], batch): attention of each row to its own
// tokens. Queries are the first `width` columns of their input, keys and values the last 2 * width of theirs. With
// `received` a second output [1, heads, tokens]: what each token gets of the attention of all queries of its row.
class RowAttention : public ov::op::Op {
public:
    OPENVINO_OP("RowAttention", "tidal");
    RowAttention() = default;
    void validate_and_infer_types() override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;
    bool has_evaluate() const override { return true; }

private:
    std::int64_t heads_ = 1;
    std::int64_t width_ = 0;
    std::int64_t received_ = 0;
};

}  // namespace tidal
