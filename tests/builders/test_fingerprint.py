"""How a model is run on this machine."""

from __future__ import annotations

import pytest

from tidal_builders.fingerprint import Workers, one_a_thread
from tidal_builders.specs import ArloSpec


def spec(**fields: object) -> ArloSpec:
    return ArloSpec.model_validate({"kind": "arlo", "name": "m", "model": "m", **fields})


def test_the_other_way_has_as_many_engines_as_the_first_has_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8))
    assert one_a_thread(spec()) == Workers(8, 1)


@pytest.mark.parametrize("fields", [{"engine": "torch"}, {"threads": 2}, {"contexts": 2}])
def test_no_other_way(monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8))
    assert one_a_thread(spec(**fields)) is None
