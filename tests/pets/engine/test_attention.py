"""The attention that each token receives equals the sum over the row's own merged, unmodified model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from testing.truth import KINDS, Exported, attention_received, randomise
from tests.pets.engine.conftest import ENCODERS, VOCABULARY, Bench, load_tasks
from tidal.errors import Unsupported
from tidal.pets.merging import unmerged
from tidal.pets.openvino_engine.engine import open_openvino_engine
from tidal_builders.pets.base import export_encoder

TOLERANCE = 1e-4
LENGTHS = (5, 1, 40, 17, 33, 2, 16, 31, 8)


@pytest.fixture(scope="module")
def attentive(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    made: dict[str, Bench] = {}

    def make(name: str) -> Bench:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = randomise(ENCODERS[name](), seed=len(name))
            layers, _ = export_encoder(model, folder, attention=True)
            made[name] = load_tasks(open_openvino_engine(folder, threads=2), Exported(model, folder, layers))
        return made[name]

    return make


@pytest.mark.parametrize("encoder", ENCODERS)
def test_rows_of_all_types_of_terms_in_one_batch(attentive: Callable[[str], Bench], encoder: str, level: str) -> None:
    made = attentive(encoder)
    rng = np.random.default_rng(5)
    ids = rng.integers(4, VOCABULARY, (len(KINDS), max(LENGTHS) + 3))
    found = made.engine.run([each.task for each in made.tasks.values()], ids, np.asarray(LENGTHS), attention=True)
    assert found.received.shape == ids.shape
    for row, (loaded, length) in enumerate(zip(made.tasks.values(), LENGTHS, strict=True)):
        own = ids[row, :length].tolist()
        np.testing.assert_allclose(found.pooled[row], loaded.truth.pooled(own), atol=TOLERANCE, rtol=0)
        wanted = attention_received(loaded.truth, own)
        np.testing.assert_allclose(found.received[row, :length], wanted, atol=TOLERANCE * wanted.max(), rtol=0)
        assert not found.received[row, length:].any()


def test_attention_leaves_pooled_vectors_unchanged(
    attentive: Callable[[str], Bench], bench: Callable[[str], Bench]
) -> None:
    ids, lengths = np.random.default_rng(1).integers(4, VOCABULARY, (3, 20)), np.asarray([20, 7, 1])
    with_it, without = attentive("bert"), bench("bert")
    found = with_it.engine.run([None] * 3, ids, lengths, attention=True)
    np.testing.assert_array_equal(with_it.engine.pooled([None] * 3, ids, lengths), found.pooled)
    np.testing.assert_allclose(without.engine.pooled([None] * 3, ids, lengths), found.pooled, atol=1e-5)
    with pytest.raises(Unsupported, match="gives no attention_received: build it with attention_received"):
        without.engine.run([None] * 3, ids, lengths, attention=True)


def test_a_merged_copy_gives_the_same_attention(attentive: Callable[[str], Bench]) -> None:
    made = attentive("bert")
    loaded = made.tasks["everything"]
    copy = open_openvino_engine(Path(made.base.folder), threads=1, merged=loaded.terms)
    ids, lengths = np.random.default_rng(2).integers(4, VOCABULARY, (2, 12)), np.asarray([12, 5])
    found = copy.run([copy.add(unmerged(loaded.terms))] * 2, ids, lengths, attention=True)
    shared = made.engine.run([loaded.task] * 2, ids, lengths, attention=True)
    np.testing.assert_allclose(found.received, shared.received, atol=1e-3)
