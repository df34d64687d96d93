"""Models whose engines return a weight for each token of the vocabulary (SPLADE, Formal et al. 2021)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tidal.errors import InvalidArgument
from tidal_builders.encoder_tasks.prepared import Prepared, PrepareOptions
from tidal_builders.encoder_tasks.sentence_files import read_modules, transformer_limits

_STRATEGIES, _ACTIVATIONS = ("max", "sum"), ("relu", "log1p_relu")


class SparseTail(torch.nn.Module):
    """From logits [rows, length, vocabulary] to weights [rows, vocabulary]: log(1 + relu(logit)) over the tokens.

    Args:
        strategy: `max` or `sum` over the tokens.
        activation: `relu`, or `log1p_relu` for a second logarithm.
    """

    def __init__(self, strategy: str, activation: str) -> None:
        super().__init__()
        self.strategy = strategy
        self.activation = activation

    def forward(self, outputs: Any, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the weights."""
        # The logarithm is monotonic, so that the maximum can be taken first, of far fewer numbers.
        logits = outputs.logits.relu() * attention_mask[:, :, None].to(outputs.logits.dtype)
        if self.strategy == "max":
            return self._logarithm(logits.amax(1).float())
        return self._logarithm(logits.float()).sum(1)

    def _logarithm(self, values: torch.Tensor) -> torch.Tensor:
        values = values.log1p()
        return values.log1p() if self.activation == "log1p_relu" else values


def prepare_sparse(folder: Path, model: Any, options: PrepareOptions) -> Prepared:
    """Prepare a masked language model, with the pooling of sentence-transformers if the folder has it.

    Raises:
        InvalidArgument: A module or an option of the pooling is not supported.
    """
    modules = read_modules(folder)
    config: dict[str, Any] = {}
    if modules:
        kinds = [module.kind for module in modules]
        if kinds not in (["MLMTransformer", "SpladePooling"], ["Transformer", "SpladePooling"]):
            raise InvalidArgument(
                f"{folder} has the modules {', '.join(kinds)}; accepted are MLMTransformer, SpladePooling"
            )
        config = modules[1].config
    strategy, activation = str(config.get("pooling_strategy", "max")), str(config.get("activation_function", "relu"))
    if strategy not in _STRATEGIES or activation not in _ACTIVATIONS:
        raise InvalidArgument(
            f"{folder} has the pooling {strategy} of {activation}; accepted are {' and '.join(_STRATEGIES)} of "
            f"{' and '.join(_ACTIVATIONS)}"
        )
    longest, lower_case = transformer_limits(folder)
    width = int(model.config.vocab_size)
    return Prepared(SparseTail(strategy, activation), width, max_length=longest, lower_case=lower_case)
