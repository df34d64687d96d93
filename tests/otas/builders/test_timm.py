"""The transformer equals timm's for every accepted form."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from testing import tiny_vision as tiny
from tests.otas.builders import timm_models
from tidal.errors import InvalidArgument, NotFound
from tidal_builders.otas import timm_child, timm_export
from tidal_builders.otas.timm_child import FOLDER_VARIABLE, export_timm_model, has_timm, vision_folder
from tidal_builders.otas.timm_export import REFERENCE_FILE
from tidal_builders.otas.transformer import load_transformer
from tidal_builders.otas.vit import read_vit

pytestmark = pytest.mark.slow

needs_timm = pytest.mark.skipif(not has_timm(), reason=f"timm is not in {vision_folder()}: run `make vision`")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per form, see `timm_models`."""
    folder = tmp_path_factory.mktemp("timm")
    root = Path(timm_models.__file__).parents[3]
    found = os.pathsep.join([str(vision_folder()), str(root)])
    command = [sys.executable, timm_models.__file__, str(folder)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": found}, check=True, capture_output=True, timeout=120)
    return folder


@needs_timm
@pytest.mark.parametrize("form", ["plain", "grey", "registers", "mean", "clip", "mean before"])
def test_at_gamma_0_features_equal_those_of_timm(models: Path, form: str) -> None:
    folder = models / form / "exported"
    reference = load_file(folder / REFERENCE_FILE)
    model = load_transformer(read_vit(folder))
    with torch.inference_mode():
        features = model(0, reference["pixel_values"])
    assert features.std() > 0.1
    torch.testing.assert_close(features, reference["features"], rtol=0, atol=1e-6)


@needs_timm
@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("latent pooling", "not supported: tensor attn_pool"),
        ("gated", r"not supported: tensor blocks\.0\.attn\.norm"),
        ("convolutions", r"contains a MobileNetV3; accepted: timm's vit_\*"),
    ],
)
def test_other_forms_are_refused(models: Path, form: str, message: str) -> None:
    assert re.search(message, (models / form / "refused").read_text())


@needs_timm
def test_a_timm_model_is_built_and_verified(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child process only copies what was exported before: importing timm takes seconds."""

    def run(command: list[str], env: Mapping[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        assert env["PYTHONPATH"].split(os.pathsep)[0] == str(vision_folder())
        source, folder = map(Path, command[3:])
        shutil.copytree(source.with_name("exported"), folder, dirs_exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(timm_child, "subprocess", SimpleNamespace(run=run))
    report = tiny.build(tmp_path / "r", models / "plain/source", gammas=[0], static_batches=[])
    assert (report.outcome, report.base) == ("published", read_vit(models / "plain/exported").digest)
    assert tiny.manifest_of(tmp_path / "r").source.architecture == "vit_tiny_patch16_224"


def test_an_error_of_the_child_process_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The child runs in this process: importing torch in another one takes seconds."""
    (tmp_path / "timm").mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[1:3] == ["-m", "tidal_builders.otas.timm_export"]
        code = timm_export.main(command[3:])
        return subprocess.CompletedProcess(command, code, "", "a warning\n" + capsys.readouterr().err)

    monkeypatch.setattr(timm_child, "subprocess", SimpleNamespace(run=run))
    with pytest.raises(InvalidArgument, match=r"^field 'model': .* has no model.safetensors; pickled weights"):
        export_timm_model(tmp_path, tmp_path)


def test_without_timm_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    if has_timm():
        pytest.skip("timm is installed beside torch here")
    with pytest.raises(NotFound, match="run `make vision`"):
        export_timm_model(tmp_path, tmp_path)
