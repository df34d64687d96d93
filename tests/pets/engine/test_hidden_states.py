"""Hidden states of all tokens equal those of each row's own merged, unmodified model, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from testing.truth import KINDS, Exported
from tests.pets.engine.conftest import ENCODERS, VOCABULARY, Bench, load_tasks
from tidal.errors import Unsupported
from tidal.pets.engine.description import DESCRIPTION_FILE
from tidal.pets.opening import PetsEngineKind, open_pets_engine
from tidal.pets.openvino_engine.engine import open_openvino_engine

TOLERANCE = 1e-4
LENGTHS = (5, 1, 40, 17, 33, 2, 16, 31, 8)
KIND_NAMES: tuple[PetsEngineKind, ...] = ("openvino", "torch")


@pytest.fixture(scope="module")
def opened(exported: Callable[..., Exported]) -> Callable[[str, PetsEngineKind], Bench]:
    made: dict[tuple[str, str], Bench] = {}

    def open_(name: str, engine: PetsEngineKind) -> Bench:
        if (name, engine) not in made:
            base = exported(name, engine)
            made[name, engine] = load_tasks(open_pets_engine(engine, base.folder, threads=1, device="cpu"), base)
        return made[name, engine]

    return open_


def check(made: Bench, seed: int, extra: int = 3) -> None:
    rows = list(zip(made.tasks.values(), LENGTHS, strict=True))
    ids = np.random.default_rng(seed).integers(4, VOCABULARY, (len(rows), max(LENGTHS) + extra))
    tasks = [loaded.task for loaded, _ in rows]
    found = made.engine.run(tasks, ids, np.asarray(LENGTHS), all_tokens=True)
    first = made.engine.run(tasks, ids, np.asarray(LENGTHS))
    assert first.hidden.shape == (len(rows), 1, made.base.layers.width)
    for row, (loaded, length) in enumerate(rows):
        own = ids[row, :length].tolist()
        wanted = loaded.truth.hidden(own)
        np.testing.assert_allclose(found.hidden[row, :length], wanted, atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(first.hidden[row, 0], wanted[0], atol=TOLERANCE, rtol=0)
        for pooled in (found.pooled[row], first.pooled[row]):
            np.testing.assert_allclose(pooled, loaded.truth.pooled(own), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("engine", KIND_NAMES)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_all_types_of_terms_in_one_batch(
    opened: Callable[[str, PetsEngineKind], Bench], encoder: str, engine: PetsEngineKind
) -> None:
    assert len(LENGTHS) == len(KINDS)
    check(opened(encoder, engine), seed=6)


def test_at_every_level(opened: Callable[[str, PetsEngineKind], Bench], level: str) -> None:
    check(opened("bert", "openvino"), seed=7)


def test_with_attention_received(opened: Callable[..., Bench], tmp_path: Any) -> None:
    from tidal_builders.pets.base import export_encoder

    made = opened("bert", "openvino")
    export_encoder(made.base.model, tmp_path, attention=True)
    engine = open_openvino_engine(tmp_path, threads=1)
    ids, lengths = np.random.default_rng(1).integers(4, VOCABULARY, (2, 9)), np.asarray([9, 4])
    both = engine.run([None, None], ids, lengths, all_tokens=True, attention=True)
    hidden = made.engine.run([None, None], ids, lengths, all_tokens=True).hidden
    received = engine.run([None, None], ids, lengths, attention=True).received
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(both.hidden[row, :length], hidden[row, :length], atol=1e-5)  # type: ignore[index]
    np.testing.assert_array_equal(both.received, received)


def test_a_base_of_an_earlier_release_refuses(exported: Callable[..., Exported], tmp_path: Any) -> None:
    """Its description does not mention hidden states, and its graph has no input that selects tokens."""
    description = (exported("bert", "torch").folder / DESCRIPTION_FILE).read_text()
    assert '"hidden": true' in description
    from tidal.pets.engine.description import Description

    old = Description.model_validate_json(description.replace('"hidden": true', '"hidden": false'))
    engine = open_openvino_engine(exported("bert").folder, threads=1)
    engine.lanes[0].description = old
    with pytest.raises(Unsupported, match="gives pooled vectors only; build it again, with engine openvino or torch"):
        engine.run([None], np.full((1, 4), 7), np.asarray([4]), all_tokens=True)
