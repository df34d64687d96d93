"""Models whose engines return a score for each pair of a query and a document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidal.errors import InvalidArgument
from tidal_builders.encoder_tasks.logits import Logits
from tidal_builders.encoder_tasks.prepared import Prepared, PrepareOptions
from tidal_builders.encoder_tasks.sentence_files import activation_of, transformer_limits

_ACTIVATIONS = {"Identity": "identity", "Sigmoid": "sigmoid"}


def prepare_reranker(folder: Path, model: Any, options: PrepareOptions) -> Prepared:
    """Prepare a cross-encoder; its score is the sigmoid of the logit unless its files name another function.

    Raises:
        InvalidArgument: The model has several outputs, or an activation function that is not supported.
    """
    outputs = int(model.config.num_labels)
    if outputs != 1:
        raise InvalidArgument(f"field 'task': {folder} has {outputs} outputs; a reranker has 1")
    named = activation_of(folder) or "Sigmoid"
    activation = named.rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise InvalidArgument(f"{folder} has the activation function {named}; accepted are {', '.join(_ACTIVATIONS)}")
    longest, lower_case = transformer_limits(folder)
    settings = {"activation": _ACTIVATIONS[activation]}
    return Prepared(Logits(), outputs, settings=settings, max_length=longest, lower_case=lower_case)
