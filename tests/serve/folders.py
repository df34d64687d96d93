"""Folders of models with a config alone, and of ensembles of them."""

from __future__ import annotations

from pathlib import Path

CONFIG = 'backend: "{backend}"\ninput [ {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} ]\n'
_STEP = '{{ model_name: "{}" model_version: -1 input_map {{ key: "x" value: "x" }} }}'


def add(repository: Path, name: str, *versions: int, backend: str = "python") -> None:
    folder = repository / name
    for version in versions:
        (folder / str(version)).mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    (folder / "config.pbtxt").write_text(CONFIG.format(backend=backend))


def add_ensemble(repository: Path, name: str, *steps: str, versions: tuple[int, ...] = (1,)) -> None:
    add(repository, name, *versions)
    listed = ", ".join(_STEP.format(step) for step in steps)
    text = f'platform: "ensemble"\nensemble_scheduling {{ step [ {listed} ] }}\n'
    (repository / name / "config.pbtxt").write_text(text)
