"""Tiny encoders of each supported architecture, exported once per session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    DistilBertModel,
    RobertaConfig,
    RobertaModel,
)

from testing.truth import KINDS, Exported, Truth, random_terms, randomise
from tidal.pets.engine.contract import LoadedTask
from tidal.pets.opening import PetsEngineKind
from tidal.pets.openvino_engine import native
from tidal.pets.openvino_engine.engine import open_openvino_engine
from tidal.pets.terms import TaskTerms
from tidal_builders.pets.base import export_encoder

VOCABULARY = 60


def _bert() -> Any:
    # Widths that are not multiples of any vector or panel size.
    shape = {"hidden_size": 36, "intermediate_size": 50, "num_attention_heads": 4, "num_hidden_layers": 2}
    return BertModel(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=48, **shape))


def _wide_bert() -> Any:
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 1}
    return BertModel(BertConfig(vocab_size=VOCABULARY, hidden_act="gelu_new", **shape))


def _roberta() -> Any:
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = RobertaConfig(vocab_size=VOCABULARY, type_vocab_size=1, hidden_act="relu", pad_token_id=1, **shape)
    return RobertaModel(config, add_pooling_layer=False)


def _distilbert(around: bool) -> Any:
    config = DistilBertConfig(vocab_size=VOCABULARY, dim=40, hidden_dim=56, n_heads=4, n_layers=2)
    return DistilBertForSequenceClassification(config) if around else DistilBertModel(config)


ENCODERS: dict[str, Callable[[], Any]] = {
    "bert": _bert,
    "wide_bert": _wide_bert,
    "roberta": _roberta,
    "distilbert": lambda: _distilbert(False),
    "distilbert_classifier": lambda: _distilbert(True),
}


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Exported]:
    made: dict[tuple[str, PetsEngineKind], Exported] = {}

    def export(name: str, engine: PetsEngineKind = "openvino") -> Exported:
        if (name, engine) not in made:
            model = randomise(ENCODERS[name](), seed=len(name))
            folder = tmp_path_factory.mktemp(name)
            layers, _ = export_encoder(model, folder, engine)
            made[name, engine] = Exported(model, folder, layers)
        return made[name, engine]

    return export


@dataclass
class Loaded:
    """A task in an engine, its terms, and its expected answers."""

    task: LoadedTask
    terms: TaskTerms
    base: Exported

    @cached_property
    def truth(self) -> Truth:
        return Truth(self.base.model, self.terms)


@dataclass
class Bench:
    """An engine with one task for each type of terms."""

    base: Exported
    engine: Any
    tasks: dict[str, Loaded]


def load_tasks(engine: Any, base: Exported) -> Bench:
    """Add one task for each type of terms to an engine."""
    terms = {kind: random_terms(kind, base.layers, seed) for seed, kind in enumerate(KINDS)}
    return Bench(base, engine, {kind: Loaded(engine.add(own), own, base) for kind, own in terms.items()})


@pytest.fixture(scope="session")
def bench(exported: Callable[[str], Exported]) -> Callable[[str], Bench]:
    made: dict[str, Bench] = {}

    def make(name: str) -> Bench:
        if name not in made:
            base = exported(name)
            made[name] = load_tasks(open_openvino_engine(base.folder, threads=2), base)
        return made[name]

    return make


@pytest.fixture(scope="session")
def laned(exported: Callable[[str], Exported]) -> Callable[[str], Bench]:
    """As `bench`, with two lanes of one thread each beside the one with two threads."""
    made: dict[str, Bench] = {}

    def make(name: str) -> Bench:
        if name not in made:
            base = exported(name)
            made[name] = load_tasks(open_openvino_engine(base.folder, threads=2, narrow=2), base)
        return made[name]

    return make


@pytest.fixture(params=["avx512", "avx2", "plain"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each level of vector instructions that this processor supports."""
    try:
        native.choose_kernels(request.param)
    except native.InvalidArgument:
        pytest.skip(f"this processor lacks {request.param}")
    yield request.param
    native.choose_kernels("auto")
