"""Next-token distributions of a decoder on text, compared with those of the source model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from tidal.flover.form import KeyValueType
from tidal.flover.manifest import FloverPrecision, QualityBounds, TextVerification
from tidal.flover.runner import FloverRunner
from tidal_builders.arrays import write_arrays
from tidal_builders.flover.source import DecoderSource
from tidal_builders.samples import draw_samples
from tidal_builders.timing import Progress

_TEXTS = 8
_LONGEST = 64

# What the distributions must keep where the spec does not say otherwise. Measured on the demo's writer, see
# docs/explanation/flover.md.
DEFAULT_BOUNDS: Mapping[FloverPrecision, QualityBounds] = {
    "fp32": QualityBounds(perplexity_ratio=1.001, agreement=0.99, max_kl=1e-3),
    "bf16": QualityBounds(perplexity_ratio=1.02, agreement=0.95, max_kl=0.1),
    "int8": QualityBounds(perplexity_ratio=1.02, agreement=0.9, max_kl=0.1),
    "int4": QualityBounds(perplexity_ratio=1.15, agreement=0.6, max_kl=2.0),
}


def default_bounds(precision: FloverPrecision, kv_cache_dtype: KeyValueType) -> QualityBounds:
    """Bounds of a precision; keys and values of 8 bits have those of int8 where these are looser."""
    bounds = DEFAULT_BOUNDS[precision]
    if kv_cache_dtype == "auto":
        return bounds
    integers = DEFAULT_BOUNDS["int8"]
    return QualityBounds(
        perplexity_ratio=max(bounds.perplexity_ratio, integers.perplexity_ratio),
        agreement=min(bounds.agreement, integers.agreement),
        max_kl=max(bounds.max_kl, integers.max_kl),
    )


@dataclass(frozen=True, slots=True)
class TextReference:
    """A text as the source model reads it.

    Attributes:
        ids: Token ids, int64 [tokens].
        logits: Logits of the source after each token but the last, float32 [tokens - 1, vocabulary].
    """

    ids: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float32]


def write_text_references(source: DecoderSource, texts: Sequence[str], max_length: int, path: Path) -> None:
    """Compute the source's logits on texts, and write them.

    Args:
        source: Source model.
        texts: Texts to draw from.
        max_length: Largest number of tokens of a text.
        path: File to write, .npz.

    Raises:
        InvalidArgument: The texts contain only white space.
    """
    longest = min(_LONGEST, max_length)
    rows = draw_samples(source.tokenizer, texts, longest, _TEXTS, ["input_ids"], seed=1)
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for number, row in enumerate(rows):
        ids = row["input_ids"][:longest]
        if len(ids) < 2:  # there is no next token: the text is read twice
            ids = np.concatenate([ids, ids])
        with torch.inference_mode():
            logits = source.model(torch.from_numpy(ids)[None]).logits[0, :-1]
        arrays[f"ids{number}"], arrays[f"logits{number}"] = ids, logits.float().numpy()
    write_arrays(path, arrays)


def read_text_references(path: Path) -> tuple[TextReference, ...]:
    """Read the references written by `write_text_references`."""
    with np.load(path, allow_pickle=False) as arrays:
        return tuple(TextReference(arrays[f"ids{number}"], arrays[f"logits{number}"]) for number in range(_TEXTS))


def verify_text(
    runner: FloverRunner,
    references: Sequence[TextReference],
    bounds: QualityBounds,
    progress: Progress = lambda _: None,
) -> TextVerification:
    """Compare the next-token distributions of a runner with the source's.

    Args:
        runner: Runner to verify.
        references: Texts with the logits of the source.
        bounds: Accepted values.
        progress: Called with the share that is done, 0 to 1.
    """
    ours, theirs, same, divergences = [], [], [], []
    for number, each in enumerate(references):
        following = torch.from_numpy(each.ids[1:])
        source = torch.from_numpy(each.logits).double().log_softmax(-1)
        served = runner.score(0, each.ids)[:-1].double().log_softmax(-1)
        ours.append(functional.nll_loss(served, following, reduction="none"))
        theirs.append(functional.nll_loss(source, following, reduction="none"))
        same.append(served.argmax(-1) == source.argmax(-1))
        divergences.append((source.exp() * (source - served)).sum(-1))
        progress((number + 1) / len(references))
    nats, source_nats = float(torch.cat(ours).mean()), float(torch.cat(theirs).mean())
    return TextVerification(
        tokens=len(torch.cat(same)),
        perplexity=float(np.exp(nats)),
        perplexity_ratio=float(np.exp(nats - source_nats)),
        agreement=float(torch.cat(same).double().mean()),
        max_kl=max(0.0, float(torch.cat(divergences).max())),
        bounds=bounds,
    )


def text_agreement(runner: FloverRunner, references: Sequence[TextReference]) -> float:
    """Return the share of tokens of texts after which a runner's most likely token is the source's.

    Args:
        runner: Runner of any decoder with the source's vocabulary.
        references: Texts with the logits of the source; what exceeds the runner's slots is left out.
    """
    same = []
    for each in references:
        ids, logits = each.ids[: runner.max_length], torch.from_numpy(each.logits)
        found = runner.score(0, ids)[:-1].argmax(-1)
        same.append(found == logits[: len(found)].argmax(-1))
    return float(torch.cat(same).double().mean())


def text_misses(found: TextVerification) -> tuple[str, ...]:
    """Return the reasons that keep a decoder from being published, a clause each."""
    bounds, reasons = found.bounds, []
    if not found.perplexity_ratio <= bounds.perplexity_ratio:
        reasons.append(
            f"perplexity on text is {found.perplexity_ratio:.4g} times the source's; accepted is at most "
            f"{bounds.perplexity_ratio:g}"
        )
    if not found.agreement >= bounds.agreement:
        reasons.append(
            f"{found.agreement:.1%} of the most likely next tokens on text are the source's; required are "
            f"{bounds.agreement:.1%}"
        )
    if not found.max_kl <= bounds.max_kl:
        reasons.append(
            f"a next-token distribution on text diverges by {found.max_kl:.3g} nats from the source's; accepted are "
            f"{bounds.max_kl:g}"
        )
    return tuple(reasons)
