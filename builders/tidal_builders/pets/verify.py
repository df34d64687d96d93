"""Compares the engine with the source model, for the base alone and for a typical task of every kind at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, Field

from tidal.manifest import Verification
from tidal.pets.engine.contract import Ids, LoadedTask, PetsEngine, PetsPrecision
from tidal.pets.terms import BaseLayers, FloatArray, TaskTerms
from tidal_builders.pets.source import BaseSource
from tidal_builders.pets.streams import run_every_way
from tidal_builders.pets.training.merged import merge_terms
from tidal_builders.pets.typical import typical_task
from tidal_builders.samples import Row, batches, draw_samples, longest, pad
from tidal_builders.tolerances import LEAST_AGREEMENT

# Number of queries for the base and for every kind.
_QUERIES: dict[PetsPrecision, int] = {"fp32": 10, "bf16": 170}
_LARGEST_BATCH = 16


class PetsVerification(BaseModel):
    """Errors of the engine.

    Attributes:
        verification: Figures that are published in the manifest.
        errors: Largest error of the pooled vector, or of hidden states as a share of a query's largest one, by kind;
            the base's own under "base".
        least: Share of the samples that must keep their label.
        received: Error of attention_received as a share of a query's largest value.
    """

    verification: Verification
    errors: dict[str, float]
    least: float = Field(description="share of the samples that must keep their label")
    received: float = Field(0.0, description="error of attention_received as a share of a query's largest value")

    @property
    def misses(self) -> tuple[str, ...]:
        """Why the base cannot be published, one clause per reason."""
        found = self.verification
        said = [
            f"'{name}': largest error of the pooled vector or of hidden states {error:.3g} exceeds the tolerance "
            f"{found.tolerance:g}"
            for name, error in self.errors.items()
            if not error <= found.tolerance
        ]
        if not self.received <= found.tolerance:
            limit = f"{found.tolerance:g} is accepted"
            said.append(f"attention_received is off by {self.received:.3g} of its largest value, {limit}")
        if (found.argmax_agreement or 0.0) < self.least:
            said.append(f"{found.argmax_agreement:.2%} of the samples keep their label; required is {self.least:.2%}")
        return tuple(said)


@dataclass(frozen=True, slots=True)
class _Sample:
    """A query, its task's kind or "base", and the source model's outputs: pooled [width], hidden [length, width]."""

    variant: str
    row: Row
    pooled: FloatArray
    hidden: FloatArray
    received: FloatArray | None


def verify(
    engine: PetsEngine,
    source: BaseSource,
    layers: BaseLayers,
    texts: Sequence[str],
    *,
    kinds: Sequence[str],
    max_length: int,
    precision: PetsPrecision,
    tolerance: float,
    attention: bool = False,
    progress: Callable[[float], None],
) -> PetsVerification:
    """Run queries of all kinds in mixed batches, and each alone on its own merged source model.

    Args:
        engine: Engine of the exported base.
        source: Source model of the base.
        layers: Layers of the base.
        texts: Texts that queries are made of.
        kinds: Kinds of task to verify.
        max_length: Longest query in tokens.
        precision: Precision that the engine was opened with.
        tolerance: Largest accepted difference.
        attention: Whether the engine returns the attention that tokens receive, which is then compared too.
        progress: Called with the share that is done.
    """
    whole = {name.rpartition(".")[0] for name in source.zeroed}
    tasks = {kind: typical_task(kind, layers, whole=sorted(whole)) for kind in kinds}
    samples: list[_Sample] = []
    for number, (variant, terms) in enumerate([("base", None), *tasks.items()]):
        samples += _ask_source(
            variant, terms, source, texts, max_length, _QUERIES[precision], seed=number, attention=attention
        )
        progress((number + 1) / (len(tasks) + 1))
    loaded = {kind: engine.add(terms) for kind, terms in tasks.items()}
    errors = dict.fromkeys(["base", *tasks], 0.0)
    same, off = 0, 0.0
    pad_id = source.tokenizer.pad_token_id or 0
    for group in batches([sample.row for sample in samples], _LARGEST_BATCH, seed=0):
        chosen = [samples[position] for position in group]
        batch = pad([sample.row for sample in chosen], longest([sample.row for sample in chosen]), pad_id)
        lengths = np.array([len(sample.row["input_ids"]) for sample in chosen])
        of = [loaded.get(sample.variant) for sample in chosen]
        ways = run_every_way(engine, of, batch["input_ids"], lengths, batch.get("token_type_ids"))
        hidden = _hidden(engine, of, batch["input_ids"], lengths, batch.get("token_type_ids"))
        for sample, states, *vectors in zip(chosen, hidden, *ways, strict=True):
            error = float(np.abs(np.stack(vectors) - sample.pooled).max())
            if states is not None:
                largest = max(1.0, float(np.abs(sample.hidden).max()))
                apart = float(np.abs(states[: len(sample.hidden)] - sample.hidden).max()) / largest
                error = float(np.max([error, apart]))  # unlike `max` it keeps NaN
            # NaN is not a small error.
            errors[sample.variant] = float("inf") if np.isnan(error) else max(errors[sample.variant], error)
            head = tasks.get(sample.variant, tasks[kinds[0]]).head
            labels = {int((head.weight @ each + head.bias).argmax()) for each in (*vectors, sample.pooled)}
            same += int(len(labels) == 1)
        if attention:
            found = engine.run(of, batch["input_ids"], lengths, batch.get("token_type_ids"), attention=True).received
            assert found is not None
            off = max(off, *(_off(sample, own) for sample, own in zip(chosen, found, strict=True)))
    for task in loaded.values():
        engine.remove(task)
    verification = Verification(
        samples=len(samples),
        max_abs_error=max(errors.values()),
        tolerance=tolerance,
        argmax_agreement=same / len(samples),
    )
    return PetsVerification(verification=verification, errors=errors, least=LEAST_AGREEMENT[precision], received=off)


def _hidden(
    engine: PetsEngine, tasks: Sequence[LoadedTask | None], ids: Ids, lengths: Ids, types: Ids | None
) -> Sequence[FloatArray | None]:
    """Hidden states of all tokens of each row, None from an engine without."""
    if not engine.description.hidden:
        return [None] * len(tasks)
    found = engine.run(tasks, ids, lengths, types, all_tokens=True).hidden
    assert found is not None
    return list(found)


def _off(sample: _Sample, received: FloatArray) -> float:
    wanted = sample.received
    assert wanted is not None
    error = float(np.abs(received[: len(wanted)] - wanted).max() / wanted.max())
    return float("inf") if np.isnan(error) else error


def _ask_source(
    variant: str,
    terms: TaskTerms | None,
    source: BaseSource,
    texts: Sequence[str],
    max_length: int,
    queries: int,
    seed: int,
    *,
    attention: bool,
) -> list[_Sample]:
    model = source.model
    if terms is not None:
        model = copy.deepcopy(source.model)
        merge_terms(model, terms)
    eager = attentive(model) if attention else None
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if source.type_ids else [])]
    rows = draw_samples(source.tokenizer, texts, max_length, queries, names, seed=seed)
    samples = []
    for row in rows:
        with torch.inference_mode():
            inputs = {name: torch.from_numpy(values)[None] for name, values in row.items()}
            found = model(**inputs)
            received = None if eager is None else attention_received(eager(**inputs, output_attentions=True))
        pooled = getattr(found, "pooler_output", None)
        vector = found.last_hidden_state[:, 0] if pooled is None else pooled
        samples.append(_Sample(variant, row, vector[0].numpy(), found.last_hidden_state[0].numpy(), received))
    return samples


def attentive(model: Any) -> Any:
    """A copy of an encoder that computes attention explicitly, the only way that returns the attention weights."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    return eager


def attention_received(found: Any) -> FloatArray:
    """The attention that each token of one query without padding receives, [length], from outputs of `attentive`."""
    received: FloatArray = torch.stack(found.attentions).sum(dim=(0, 1, 2, 3)).numpy()
    return received
