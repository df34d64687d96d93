"""A killed build of a cascade leaves only complete versions, and answers that the next build reuses."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from testing.building import BuildProcess
from tests.tabi.builders.conftest import SHORT_SEARCH, write_spec
from tidal.repository.entries import ModelEntry
from tidal_builders.specs import load_spec
from tidal_builders.tabi.build import build_tabi
from tidal_builders.tabi.collect import LevelRunner, answers_key
from tidal_builders.tabi.spec import TabiSpec

pytestmark = pytest.mark.slow


def _code(_modules: object) -> str:
    return "code"


# The code and the candidates of all builds here, also of those in other processes.
_CHANGES = {"tidal_builders.fingerprint.hash_code": _code, **SHORT_SEARCH}


class _Stop(BaseException):
    """Ends a build in this process."""


def _versions(repository: Path) -> dict[str, list[int]]:
    return {name: ModelEntry(repository / name).versions() for name in ("reviews", "reviews_small", "reviews_large")}


def test_killed_again_and_again(
    models: Path, labelled: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, spec_file = tmp_path / "r", write_spec(tmp_path / "reviews.yaml", models, labelled)
    for stage, large in (("large: verify", []), ("search candidates", [1])):
        assert BuildProcess(spec_file, repository, kill_at=stage, changes=_CHANGES).wait() == -signal.SIGKILL, stage
        assert _versions(repository) == {"reviews": [], "reviews_small": [1], "reviews_large": large}

    for path, value in _CHANGES.items():
        monkeypatch.setattr(path, value)
    # All levels have answered all queries: only pruned queries are new.
    spec = load_spec(spec_file)
    assert isinstance(spec, TabiSpec)
    asked: list[str] = []
    fill = LevelRunner._write_chunk

    def noted(self: LevelRunner, folder: Path, queries: Any) -> None:
        asked.extend(query.texts[0] for query in queries)
        fill(self, folder, queries)

    def stop(stage: str, _share: float) -> None:
        if stage == "publish":
            raise _Stop

    monkeypatch.setattr(LevelRunner, "_write_chunk", noted)
    with pytest.raises(_Stop):
        build_tabi(spec, repository, spec_file=spec_file, progress=stop)
    assert asked
    assert not set(asked) & set(texts)
    assert _versions(repository) == {"reviews": [], "reviews_small": [1], "reviews_large": [1]}

    # All results are stored; only the publication is missing.
    def refuse(*_: object) -> None:
        raise AssertionError("a query was run")

    monkeypatch.setattr(LevelRunner, "_write_chunk", refuse)
    stages: list[str] = []
    report = build_tabi(spec, repository, spec_file=spec_file, progress=lambda stage, _: stages.append(stage))
    assert (report.outcome, report.version, set(stages)) == ("published", 1, {"publish"})
    assert [name for name in report.reused if name.startswith("search-")]
    kept = {path.name.partition("-")[0] for path in (repository / "reviews/.build/cascade").iterdir()}
    assert kept == {"search", *(answers_key(repository / f"reviews_{name}" / "1") for name in ("small", "large"))}
