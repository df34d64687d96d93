"""The choice of a precision by made-up errors and latencies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tidal_builders.arlo.precision import choose_precision
from tidal_builders.arlo.spec import ArloSpec

SPEC = ArloSpec.model_validate({"kind": "arlo", "name": "m", "model": "m", "precision": "auto", "device": "cpu"})


@pytest.mark.parametrize(
    ("means", "missed", "chosen"),
    [
        ({"fp32": 1.0, "bf16": 0.99, "int8": 0.98}, (), "fp32"),
        ({"fp32": 1.1, "bf16": 1.0, "int8": 0.98}, (), "bf16"),
        ({"fp32": 1.1, "bf16": 1.1, "int8": 0.9}, (), "int8"),
        ({"fp32": 1.1, "bf16": 1.1, "int8": 0.9}, ("int8",), "fp32"),
        ({"fp32": 1.0, "bf16": 2.0, "int8": 2.0}, ("fp32", "bf16"), "int8"),
        ({"fp32": 1.0, "bf16": 1.0, "int8": 1.0}, ("fp32", "bf16", "int8"), None),
    ],
)
def test_the_most_precise_within_the_tolerance_and_near_the_fastest_is_chosen(
    monkeypatch: pytest.MonkeyPatch, means: dict[str, float], missed: tuple[str, ...], chosen: str | None
) -> None:
    # A precision stands for the engines that are compiled and opened for it.
    monkeypatch.setattr("tidal_builders.arlo.precision.open_form", lambda compiled, *_: compiled)

    def compare(opened: Any) -> Any:
        return SimpleNamespace(error=np.zeros(1), shortfalls=lambda *_: ["too far"] if opened in missed else [])

    def mean_ms(opened: Any) -> Any:
        return {name: means[name] for name in opened}

    facts: Any = SimpleNamespace(max_length=64)
    compiled: Any = str
    found = choose_precision(SPEC, "cpu", facts, compiled, compare, mean_ms, lambda *_: None)
    assert found.chosen == chosen
    verdicts = {trial.precision: trial.verdict for trial in found.trials}
    assert {name for name, verdict in verdicts.items() if verdict == "misses tolerance"} == set(missed)
    assert [name for name, verdict in verdicts.items() if verdict == "chosen"] == ([chosen] if chosen else [])
