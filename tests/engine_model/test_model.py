"""Requests on one engine: refusals, batches and deadlines. The engine is a fake that adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tidal.engine_model.manifest import EngineInput, EngineManifest, Runtime
from tidal.engine_model.model import EngineModel
from tidal.engines import TensorSpec
from tidal.errors import Internal, InvalidArgument, TidalError, Unavailable

BAD_ID = 8  # in the vocabulary, but the engine fails on it


class Adder:
    """An engine that sums each row of ids and records the shapes of its batches."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        ids = inputs["input_ids"]
        self.shapes.append(ids.shape)
        if (ids == BAD_ID).any():
            raise RuntimeError("out of memory")
        return {"logits": ids.sum(axis=1, keepdims=True).astype(np.float32)}


def make_model(*, dynamic: bool = False) -> tuple[EngineModel, Adder]:
    manifest = EngineManifest.model_construct(
        inputs=(EngineInput(name="input_ids", below=9), EngineInput(name="attention_mask", below=2)),
        runtime=Runtime(max_length=4, file="f", dynamic=dynamic, max_batch=3),
    )
    engine = Adder()
    return EngineModel(manifest, engine), engine


def request(rows: int = 1, length: int = 4, token: int = 1) -> dict[str, Any]:
    ids = np.full((rows, length), token, np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def sums(answers: list[dict[str, Any] | TidalError]) -> list[list[float] | type]:
    return [a["logits"][:, 0].tolist() if isinstance(a, dict) else type(a) for a in answers]


def test_requests_run_together_up_to_the_largest_batch() -> None:
    model, engine = make_model()
    answers = model.run([request(2, token=1), request(1, token=2), request(2, token=3)])
    assert sums(answers) == [[4, 4], [8], [12, 12]]
    assert engine.shapes == [(3, 4), (2, 4)]


def test_a_dynamic_runtime_runs_equal_lengths_together() -> None:
    model, engine = make_model(dynamic=True)
    answers = model.run([request(length=2), request(length=3), request(length=2, token=2)])
    assert sums(answers) == [[2], [3], [4]]
    assert sorted(engine.shapes) == [(1, 3), (2, 2)]


ids = request()["input_ids"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request(length=3), r"input_ids has shape \[1, 3\]; accepted is \[rows, length\] with length 4"),
        (request(length=5), r"input_ids has shape \[1, 5\]"),
        (request(rows=4), "the request has 4 rows; accepted are 1 to 3"),
        (request(rows=0), "the request has 0 rows; accepted are 1 to 3"),
        (request(token=9), "input_ids holds the value 9; accepted are 0 to 8"),
        (request(token=-1), "input_ids holds the value -1; accepted are 0 to 8"),
        ({**request(), "attention_mask": ids * 2}, "attention_mask holds the value 2; accepted are 0 to 1"),
        ({**request(), "attention_mask": np.ones((2, 4), np.int64)}, "inputs differ in their shapes"),
        ({**request(), "input_ids": ids.astype(np.int32)}, "input_ids has dtype int32; accepted is int64"),
        ({**request(), "input_ids": ids[0]}, r"input_ids has shape \[4\]"),
        ({"input_ids": ids}, r"the inputs \['input_ids'\] were sent; accepted are \['attention_mask', 'input_ids'\]"),
        ({**request(), "more": ids}, "'more'.* were sent"),
    ],
)
def test_an_invalid_request_is_refused_alone(bad: dict[str, Any], message: str) -> None:
    model, _ = make_model()
    before, refused, after = model.run([request(), bad, request(token=2)])
    assert sums([before, after]) == [[4], [8]]
    assert isinstance(refused, InvalidArgument)
    with pytest.raises(InvalidArgument, match=message):
        raise refused


def test_a_dynamic_runtime_accepts_lengths_up_to_its_longest() -> None:
    model, _ = make_model(dynamic=True)
    one, none, long = model.run([request(length=1), request(length=0), request(length=5)])
    assert sums([one]) == [[1]]
    assert isinstance(none, InvalidArgument)
    assert isinstance(long, InvalidArgument)
    assert "with length 1 to 4" in str(long)


def test_overdue_requests_are_not_run() -> None:
    model, engine = make_model()

    def overdue(index: int) -> TidalError | None:
        late = index == 0 or (index in (2, 3) and len(engine.shapes) > 0)
        return Unavailable(f"{index} is late") if late else None

    answers = model.run([request(), request(2), request(2), request(1), request(1)], overdue)
    assert sums(answers) == [Unavailable, [4, 4], Unavailable, Unavailable, [4]]
    assert engine.shapes == [(2, 4), (1, 4)]


def test_an_engine_failure_is_an_internal_error_of_its_batch() -> None:
    model, _ = make_model()
    failed, with_it, apart = model.run([request(2, token=BAD_ID), request(), request()])
    assert isinstance(failed, Internal)
    assert isinstance(with_it, Internal)
    assert "out of memory" in str(failed)
    assert sums([apart]) == [[4]]
