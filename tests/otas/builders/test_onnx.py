"""The ONNX file of a merging graph, from which TensorRT plans are built, run by ONNX's reference implementation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from testing.vits import tiny_vit
from tests.otas.builders import reference
from tidal.engines.exporting import export_program, write_onnx
from tidal.otas.manifest import FEATURES, PIXELS, OtasForm
from tidal_builders.otas.engines import draw_inputs
from tidal_builders.otas.transformer import GammaModule, load_transformer

pytestmark = pytest.mark.slow

# Operators that TensorRT's ONNX parser reads as a plugin, which is not part of a plan, or does not read at all.
_PLUGINS = {"ScatterElements", "ScatterND", "GroupNormalization", "InstanceNormalization", "RoiAlign", "NonZero"}


def test_a_graph_without_scattering_needs_no_plugin(tmp_path: Path) -> None:
    vit = tiny_vit(layers=2)
    form = OtasForm(
        image=vit.config.image,
        width=vit.config.width,
        layers=vit.config.layers,
        tokens=vit.config.tokens,
        accumulate=False,
        gammas=(-3, 0),
        max_batch=4,
    )
    images = draw_inputs(form, -3, images=3, seed=1)
    scattered, program = (
        export_program(
            GammaModule(load_transformer(vit), -3, scatter=scatter),
            precision="fp32",
            shapes=form.shapes((-3,), None),
            example=images,
        )
        for scatter in (True, False)
    )
    assert [any("scatter" in str(node.target) for node in each.graph.nodes) for each in (scattered, program)] == [
        True, False,
    ]  # fmt: skip
    write_onnx(program, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx")
    assert not {node.op_type for node in graph.graph.node} & _PLUGINS
    (found,) = ReferenceEvaluator(graph).run([FEATURES], dict(images))
    for row, pixels in enumerate(images[PIXELS]):
        expected, _ = reference.features(vit, -3, pixels.astype(np.float64), None, accumulate=False)
        np.testing.assert_allclose(found[row], expected, rtol=0, atol=2e-5)
