"""A tiny published vision transformer with random weights and tasks, and how they have to answer."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.otas.vits import tiny_vit
from tidal import device
from tidal.engines import compile_engine, engine_file, engine_version
from tidal.manifest import MANIFEST_FILE, FileRecord, Source, sha256_file
from tidal.otas.images import FloatArray
from tidal.otas.manifest import (
    ENGINE_FOLDER,
    PIXELS,
    PROMPTS,
    GammaVerification,
    OtasEngine,
    OtasForm,
    OtasManifest,
    load_otas_manifest,
)
from tidal.otas.profile import GammaLatency
from tidal.otas.tasks import Head, OtasProvenance, TaskParameters, add_task
from tidal.tasks.folder import tasks_folder
from tidal_builders.otas.transformer import GammaModule, TransformerModel, load_transformer
from tidal_builders.otas.vit import Vit

GAMMAS, MAX_BATCH = (-2, 0, 2), 8
# Milliseconds of batches of 1 and 8, by γ: so much more than the tiny model takes that deadlines choose γ by what is
# published, however busy the machine is.
_MS = ((10.0, 20.0), (2000.0, 3000.0), (5000.0, 8000.0))


@dataclass
class Vision:
    """The model `vit`, published in a repository."""

    repository: Path
    vit: Vit
    _tasks: dict[str, TaskParameters] = field(default_factory=dict)

    @cached_property
    def manifest(self) -> OtasManifest:
        return load_otas_manifest(self.repository / "vit/1")

    @cached_property
    def model(self) -> TransformerModel:
        return load_transformer(self.vit)

    def copy(self, repository: Path, name: str, *, config: str = "") -> Path:
        """Add the model to another repository, with more in its config; its folder of tasks."""
        shutil.copytree(self.repository / "vit", repository / name)
        (repository / name / "config.pbtxt").write_text('backend: "otas"\n' + config)
        return tasks_folder(repository / name)

    def task(self, name: str, classes: int) -> TaskParameters:
        """A task's random parameters, by its number of classes."""
        if name not in self._tasks:
            draw = np.random.default_rng(classes)
            config = self.vit.config

            def values(*shape: int) -> FloatArray:
                return np.asarray(draw.normal(size=shape), np.float32)

            self._tasks[name] = TaskParameters(
                tuple(f"{name} {number}" for number in range(classes)),
                Head(values(classes, config.width), values(classes)),
                {},
                {gamma: values(config.layers, gamma, config.width) for gamma in GAMMAS if gamma > 0},
            )
        return self._tasks[name]

    def add(self, tasks: Path, name: str, classes: int) -> None:
        """Add that task to a folder; more tokens make it more accurate."""
        accuracy = {gamma: 0.8 + gamma / 20 for gamma in GAMMAS}
        add_task(tasks, name, self.task(name, classes), accuracy, self.manifest, OtasProvenance(source="a test"))

    def logits(self, name: str, gamma: int, pixels: FloatArray) -> FloatArray:
        """What a task answers to an image [channels, height, width] alone at γ, computed by torch."""
        of = self._tasks[name]
        prompts = torch.from_numpy(of.prompts[gamma][None]) if gamma > 0 else None
        features = self.model(gamma, torch.from_numpy(pixels[None]), prompts).numpy()
        return np.asarray(of.logits(gamma, features)[0])


def publish_tiny(folder: Path) -> Vision:
    """Compile and publish a tiny model as `vit` in a repository in `folder`."""
    vit = tiny_vit(width=16, patch=(8, 8), size=32)
    version = folder / "vit/1"
    engines, files = [], []
    form: dict[str, Any] = {
        "image": vit.config.image, "width": vit.config.width, "layers": vit.config.layers, "tokens": vit.config.tokens,
        "accumulate": False, "gammas": GAMMAS, "max_batch": MAX_BATCH,
    }  # fmt: skip
    model = load_transformer(vit)
    for gamma in GAMMAS:
        file = f"{ENGINE_FOLDER}/{gamma}/{engine_file('openvino')}"
        (version / file).parent.mkdir(parents=True)
        example = {PIXELS: np.zeros((2, *vit.config.image.shape), np.float32)}
        if gamma > 0:
            example[PROMPTS] = np.zeros((2, vit.config.layers, gamma, vit.config.width), np.float32)
        shapes = OtasForm(**form).shapes((gamma,), None)
        module = GammaModule(model, gamma)
        compile_engine("openvino", module, (version / file).parent, precision="fp32", shapes=shapes, example=example)
        sizes = (1, 4) if gamma < 0 else (None,)
        engines += [OtasEngine(gammas=(gamma,), file=file, batch=size) for size in sizes]
    for path in sorted(path for path in version.rglob("*") if path.is_file()):
        files.append(
            FileRecord(path=str(path.relative_to(version)), bytes=path.stat().st_size, sha256=sha256_file(path))
        )
    manifest = OtasManifest(
        kind="otas", name="vit", created="2026-01-01T00:00:00+00:00", spec="vit.yaml", fingerprint="f",
        libraries={"openvino": engine_version("openvino") or ""}, files=tuple(files),
        source=Source(model="tiny", architecture="tiny", sha256="0" * 64),
        engine="openvino", precision="fp32", device=device.cpu(), base=vit.digest, threads=1, engines=tuple(engines),
        verification=tuple(
            GammaVerification(gamma=gamma, samples=1, max_abs_error=0, tolerance=1) for gamma in GAMMAS
        ),
        profile=GammaLatency(
            gammas=GAMMAS, batches=(1, MAX_BATCH), median_ms=_MS, p95_ms=_MS, image_bytes=(1,) * len(GAMMAS)
        ),
        **form,
    )  # fmt: skip
    (version / MANIFEST_FILE).write_text(manifest.model_dump_json())
    return Vision(folder, vit)
