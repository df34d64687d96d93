"""The configurations in `model_repository` declare what clients of the demo ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidal.repository.config import read_config

REPOSITORY = Path(__file__).parents[2] / "model_repository"
# Those of `flover` count their tokens in `prompt_tokens` and `generated_tokens`.
COUNTING = ("arlo", "tabi", "pets", "otas")
CONFIGS = [read_config(file.parent) for file in sorted(REPOSITORY.glob("*/config.pbtxt"))]
COUNTED = [config for config in CONFIGS if config.get("backend") in COUNTING]


@pytest.mark.parametrize("config", COUNTED, ids=lambda config: config["name"])
def test_tokens_are_counted(config: dict[str, object]) -> None:
    """Without this output, `usage` in the gateway's answers is 0."""
    assert "input_tokens" in str(config["output"])


def test_every_backend_is_there() -> None:
    assert {config["backend"] for config in COUNTED} == set(COUNTING)
