"""Function-preserving expansion of a BERT classifier: wider and deeper, the same logits (Net2Net, Chen et al. 2016).

Width: every channel, unit and dimension of a head is replicated, and a weight is divided by the number of copies of
what it reads. LayerNorm needs all channels replicated equally often, which keeps mean and variance. Unequal copies
(384 to 1024 channels) would need a mean that the residual connection around the attention cannot add.

Depth: layers are inserted whose attention and feed-forward layer add zero: the copies of a unit have output weights
that cancel. LayerNorm is the identity on normalised channels only, so that the scale and shift of the LayerNorm before
them move to the last inserted layer, and the inserted layers' weights include them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Indices = npt.NDArray[np.int64]
Parameters = dict[str, "torch.Tensor"]
_EMBEDDINGS, _EMBEDDINGS_NORM = "bert.embeddings", "bert.embeddings.LayerNorm"
_POOLER, _CLASSIFIER = "bert.pooler.dense", "classifier"
# Parts of a layer.
_QUERY, _KEY, _VALUE = (f"attention.self.{name}" for name in ("query", "key", "value"))
_ATTENTION_OUT, _ATTENTION_NORM = "attention.output.dense", "attention.output.LayerNorm"
_UNITS, _UNITS_OUT, _UNITS_NORM = "intermediate.dense", "output.dense", "output.LayerNorm"


@dataclass(frozen=True, slots=True)
class BertSize:
    """Size of a BERT encoder, with the field names of its configuration."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int

    @property
    def linear_layers(self) -> int:
        """Number of linear layers of a classifier: six in each layer, the pooler and the classifier."""
        return 6 * self.num_hidden_layers + 2


# BERT-base, and the class of BERT-large: its 24 layers of 1024 channels have 302 million weights, these 287 million.
# That is 3.4 times as many as BERT-base's 85 million, and takes longer than that, since less of it stays in the caches:
# in bf16 on two cores, 4.0 times as long on texts of SST-2, and 4.6 times with 21 such layers.
SIZES = {"small": BertSize(12, 768, 12, 3072), "large": BertSize(18, 1152, 18, 4608)}


class _Expansion:
    """Sources of the channels, attention dimensions and units of a wider model in a smaller one.

    Args:
        old: Size of the smaller model.
        new: Size of the wider model.

    Raises:
        ValueError: The function cannot be preserved; the message names the field.
    """

    def __init__(self, old: BertSize, new: BertSize) -> None:
        self._check(old, new)
        dimensions, wider = (size.hidden_size // size.num_attention_heads for size in (old, new))
        self.channels: Indices = np.arange(new.hidden_size) % old.hidden_size
        heads = np.arange(new.num_attention_heads) % old.num_attention_heads
        self.dimensions: Indices = (heads[:, None] * dimensions + np.arange(wider) % dimensions).ravel()
        self.units: Indices = np.arange(new.intermediate_size) % old.intermediate_size
        # A product of m copies is m times as large, and is divided by the root of an m times larger head.
        self.query_scale = (dimensions / wider) ** 0.5

    @staticmethod
    def _check(old: BertSize, new: BertSize) -> None:
        for name, value in asdict(new).items():
            if value < getattr(old, name):
                raise ValueError(f"{name} is {value}; expected at least the model's own, {getattr(old, name)}")
        if new.hidden_size % old.hidden_size:
            raise ValueError(
                f"hidden_size is {new.hidden_size}; expected a multiple of {old.hidden_size}: LayerNorm needs all "
                "channels replicated equally often"
            )
        if new.hidden_size % (new.num_attention_heads * (old.hidden_size // old.num_attention_heads)):
            raise ValueError(
                f"num_attention_heads is {new.num_attention_heads}; expected heads of a multiple of "
                f"{old.hidden_size // old.num_attention_heads} dimensions"
            )


def expand(model: Any, size: BertSize) -> Any:
    """Return a larger BERT classifier with the same logits, up to rounding.

    Args:
        model: `BertForSequenceClassification` with GELU and absolute positions.
        size: Size of the result: `hidden_size` a multiple of the model's, its heads a multiple of the model's head
            size. With more layers every unit and every dimension of a head needs at least two copies.

    Raises:
        ValueError: The function cannot be preserved at this size; the message names the field.
    """
    from transformers import BertConfig, BertForSequenceClassification

    names = asdict(size)
    old = BertSize(**{name: getattr(model.config, name) for name in names})
    expansion = _Expansion(old, size)
    counts = layer_copies(old.num_hidden_layers, size.num_hidden_layers)
    if max(counts) > 1:
        for name, sources in (("hidden_size", expansion.dimensions), ("intermediate_size", expansion.units)):
            if np.bincount(sources).min() < 2:
                raise ValueError(f"{name} is {names[name]}; expected at least twice the model's to insert layers")
    config = BertConfig(**(model.config.to_dict() | names))
    larger = BertForSequenceClassification(config).eval()
    larger.load_state_dict(_parameters(model.state_dict(), expansion, counts))
    return larger


def layer_copies(old: int, new: int) -> list[int]:
    """Return the number of layers that take the place of each layer, as equal as possible.

    Args:
        old: Number of layers.
        new: Number of layers of the deeper model.
    """
    return [new // old + (layer < new % old) for layer in range(old)]


def cancelling(sources: Indices) -> npt.NDArray[np.float32]:
    """Return a coefficient for each copy, with sum 0 over the copies of each source: pairs of +1 and -1, or +1, +1, -2.

    Their products with a weight have the same rounding error in any binary precision, so that they cancel in each.

    Args:
        sources: Source of each copy, [copies]; each at least twice.

    Returns:
        float32 [copies], divided by the number of copies of the source.
    """
    found = np.empty(len(sources), np.float32)
    for source in np.unique(sources):
        places = np.flatnonzero(sources == source)
        signs = np.where(np.arange(len(places)) % 2, -1.0, 1.0)
        if len(places) % 2:
            signs[:3] = (1, 1, -2)
            signs[3:] *= -1
        found[places] = signs / len(places)
    return found


def _parameters(old: Parameters, expansion: _Expansion, counts: list[int]) -> Parameters:
    """Return the larger model's parameters by name."""
    channels = expansion.channels
    new = {name: value[..., channels] for name, value in old.items() if name.startswith(_EMBEDDINGS)}
    before = norm = _EMBEDDINGS_NORM  # the LayerNorm before a layer, in the model and in the larger one
    total = 0
    for number, count in enumerate(counts):
        source = f"bert.encoder.layer.{number}"
        for copy in range(count):
            target = f"bert.encoder.layer.{total}"
            inserted = copy < count - 1
            if inserted:
                new |= _inserted(old, source, target, before, expansion)
                for part in (norm, f"{target}.{_ATTENTION_NORM}"):
                    new |= _norm(old, None, part, channels)
            else:
                new |= _replicated(old, source, target, expansion)
            norm = f"{target}.{_UNITS_NORM}"
            new |= _norm(old, before if inserted else f"{source}.{_UNITS_NORM}", norm, channels)
            total += 1
        before = f"{source}.{_UNITS_NORM}"
    new |= _linear(_POOLER, old[f"{_POOLER}.weight"], old[f"{_POOLER}.bias"], channels, channels)
    bias = old[f"{_CLASSIFIER}.bias"]
    return new | _linear(_CLASSIFIER, old[f"{_CLASSIFIER}.weight"], bias, np.arange(len(bias)), channels)


def _replicated(old: Parameters, source: str, target: str, expansion: _Expansion) -> Parameters:
    """Return a wider layer, without its last LayerNorm."""
    channels, dimensions, units = expansion.channels, expansion.dimensions, expansion.units
    new = _norm(old, f"{source}.{_ATTENTION_NORM}", f"{target}.{_ATTENTION_NORM}", channels)
    for part, rows, columns in (
        (_QUERY, dimensions, channels),
        (_KEY, dimensions, channels),
        (_VALUE, dimensions, channels),
        (_ATTENTION_OUT, channels, dimensions),
        (_UNITS, units, channels),
        (_UNITS_OUT, channels, units),
    ):
        weight, bias = old[f"{source}.{part}.weight"], old[f"{source}.{part}.bias"]
        scale = expansion.query_scale if part == _QUERY else 1.0
        new |= _linear(f"{target}.{part}", weight * scale, bias * scale, rows, columns)
    return new


def _inserted(old: Parameters, source: str, target: str, before: str, expansion: _Expansion) -> Parameters:
    """Return a wider layer whose attention and units are those of `source`, and add zero; without LayerNorms.

    Its input is normalised, without the scale and the shift of the LayerNorm `before`: its first weights include them,
    so that it attends as `source` does.
    """
    new = _replicated(old, source, target, expansion)
    for parts, norm in (((_QUERY, _KEY, _VALUE), before), ((_UNITS,), f"{source}.{_ATTENTION_NORM}")):
        gain, shift = (old[f"{norm}.{name}"][expansion.channels] for name in ("weight", "bias"))
        for part in parts:
            name = f"{target}.{part}"
            new[f"{name}.bias"] = new[f"{name}.bias"] + new[f"{name}.weight"] @ shift
            new[f"{name}.weight"] = new[f"{name}.weight"] * gain
    for part, sources in ((_ATTENTION_OUT, expansion.dimensions), (_UNITS_OUT, expansion.units)):
        weight, bias = old[f"{source}.{part}.weight"], old[f"{source}.{part}.bias"]
        new |= _linear(f"{target}.{part}", weight, bias * 0, expansion.channels, sources, cancelling(sources))
    return new


def _linear(
    target: str,
    weight: torch.Tensor,
    bias: torch.Tensor,
    rows: Indices,
    columns: Indices,
    coefficients: npt.NDArray[np.float32] | None = None,
) -> Parameters:
    """Return a linear layer with replicated rows and columns; `coefficients` of the columns default to 1 / copies."""
    factors = 1 / np.bincount(columns)[columns] if coefficients is None else coefficients
    wide = weight[rows][:, columns] * weight.new_tensor(factors)
    return {f"{target}.weight": wide, f"{target}.bias": bias[rows]}


def _norm(old: Parameters, source: str | None, target: str, channels: Indices) -> Parameters:
    """Return a replicated LayerNorm; without a source one with scale 1 and shift 0."""
    weight, bias = (old[f"{source or _EMBEDDINGS_NORM}.{name}"][channels] for name in ("weight", "bias"))
    if source is None:
        weight, bias = weight * 0 + 1, bias * 0
    return {f"{target}.weight": weight, f"{target}.bias": bias}
