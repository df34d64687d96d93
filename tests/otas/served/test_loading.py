"""Loading a vision transformer: parameters, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testing.requests import make_context
from testing.vision import Vision
from tests.otas.served.serving import OUTPUTS
from tidal.errors import InvalidArgument
from tidal.metrics import Metrics
from tidal.otas.loading import load
from tidal.otas.parameters import OtasParameters
from tidal.triton.parameters import parse_parameters


def start(model: Path, outputs: frozenset[str] = OUTPUTS, **parameters: Any) -> None:
    """Load a model and end its service."""
    context = make_context(model, Metrics("otas"), model="v", outputs=outputs, failures=[])
    load(context, OtasParameters(**parameters))(context).close(5)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"policy": "fixed"}, "policy fixed without gamma"),
        ({"gamma": 2}, "policy pareto and gamma, which goes with fixed only"),
        ({"policy": "fixed", "gamma": 3}, "gamma is 3; accepted are -2, 0, 2"),
        ({"batch_memory_mb": 1e-9}, "bytes of memory do not allow one query at γ -2"),
    ],
)
def test_conflicting_parameters_are_refused(vision: Vision, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        start(vision.repository / "vision", **parameters)


@pytest.mark.parametrize("parameters", [{}, {"policy": "paper"}, {"policy": "fixed", "gamma": -2}])
def test_every_policy_starts(vision: Vision, parameters: dict[str, Any]) -> None:
    start(vision.repository / "vision", **parameters)


def test_parameters_are_parsed_from_text() -> None:
    raw = {
        "policy": "fixed",
        "gamma": "-2",
        "default_latency_ms": "600",
        "max_megapixels": "2.5",
        "max_image_mb": "0.5",
    }
    _, parsed = parse_parameters({name: {"string_value": text} for name, text in raw.items()}, OtasParameters)
    assert (parsed.gamma, parsed.default_latency_ms, parsed.max_pixels) == (-2, 600.0, 2_500_000)
    assert parsed.max_image_bytes == 1 << 19


def test_an_unknown_output_is_refused(vision: Vision) -> None:
    with pytest.raises(InvalidArgument, match="declares the output 'level', which this model does not give"):
        start(vision.repository / "vision", OUTPUTS | {"level"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda content: content["device"].update(name="another"),
            r"was built for another .*rebuild with `tidal build",
        ),
        (lambda content: content["libraries"].update(openvino="1"), "was built with openvino 1, installed is"),
        (lambda content: content.update(gammas=[-2, 2]), "gammas must ascend and include 0"),
        (lambda content: content["files"][0].update(sha256="0"), "differs from what was published"),
    ],
)
def test_an_unsuitable_version_is_refused(vision: Vision, tmp_path: Path, change: Any, message: str) -> None:
    vision.copy(tmp_path, "vit")
    file = tmp_path / "vit/1/manifest.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(InvalidArgument, match=message):
        start(tmp_path / "vit")
