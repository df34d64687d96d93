"""The accuracy that a published model must keep, by precision, where its spec names none."""

from __future__ import annotations

# Largest difference of any logit from the source model. Logits of classifiers differ by some units; fp16 keeps 11 bits
# of each number, bf16 8 and int8 about 7, which many layers turn into these errors.
DEFAULT_TOLERANCE = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.1, "int8": 0.5}
# Least share of verification samples that must keep their label: a wide tolerance alone does not protect labels.
LEAST_AGREEMENT = {"fp32": 1.0, "fp16": 0.99, "bf16": 0.99, "int8": 0.97}
# The same of embeddings: largest 1 - cosine, and rank correlation of the similarities of all pairs of samples.
VECTOR_TOLERANCE = {"fp32": 1e-5, "fp16": 1e-4, "bf16": 2e-3, "int8": 3e-2}
VECTOR_AGREEMENT = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.99, "int8": 0.97}
