"""A partitioned model's runtimes as other Triton models of the server, `<model>_len<N>`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.arlo.model import TokenRow, padded_inputs
from tidal.errors import InvalidArgument
from tidal.repository.entries import ModelEntry
from tidal.repository.names import runtime_model
from tidal.requests import Array
from tidal.service import ModelCall, ModelUnavailable

_MIN_LATENCY_MS = 0.001


class RuntimeModels:
    """Runs batches on the models of the runtimes; implements `tidal.arlo.runner.BatchRunner`.

    A runtime's model is asked for the front's own version. Where somebody loads the models by hand it may already have
    another one alone: that is taken where its front reads a text and names its classes in the same way. Otherwise there
    is none to ask any more, and an answer would be wrong.

    Args:
        call: asks another model.
        front: the front's name on the server.
        model_dir: the front's folder in the repository.
        version: the front's version.
        manifest: of that version.
    """

    def __init__(self, call: ModelCall, front: str, model_dir: Path, version: int, manifest: ArloManifest) -> None:
        self._call = call
        self._manifest = manifest
        self._models = [runtime_model(front, runtime.max_length) for runtime in manifest.runtimes]
        self._outputs = ["logits", *(output.name for output in manifest.extra_outputs)]
        self._versions = [version] * len(self._models)  # that served last
        self._entry = ModelEntry(model_dir)
        self._compatible = {version: True}

    def run(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> dict[str, Array]:
        """Run rows on some instance of the runtime; see `BatchRunner`. Which one is Triton's choice."""
        inputs = padded_inputs(self._manifest, runtime, rows)
        version = self._versions[runtime]
        try:
            return self._call_model(runtime, version, inputs, deadline)
        except ModelUnavailable as error:
            if error.died:
                raise
            for other in self._other_versions(version):
                try:
                    outputs = self._call_model(runtime, other, inputs, deadline)
                except ModelUnavailable as also:
                    if also.died:
                        raise
                else:
                    self._versions[runtime] = other
                    return outputs
            raise

    def _call_model(
        self, runtime: int, version: int, inputs: dict[str, Array], deadline: float | None
    ) -> dict[str, Array]:
        latency_ms = None
        if deadline is not None:
            latency_ms = max((deadline - time.monotonic()) * 1e3, _MIN_LATENCY_MS)
        return self._call(self._models[runtime], inputs, self._outputs, version=version, latency_ms=latency_ms)

    def _other_versions(self, version: int) -> list[int]:
        """Other versions that would do, the newest first."""
        return [other for other in reversed(self._entry.versions()) if other != version and self._is_compatible(other)]

    def _is_compatible(self, version: int) -> bool:
        if version not in self._compatible:
            try:
                other = load_arlo_manifest(self._entry.version_dir(version))
            except InvalidArgument:
                return False
            self._compatible[version] = _input_contract(other) == _input_contract(self._manifest)
        return self._compatible[version]


def _input_contract(manifest: ArloManifest) -> tuple[object, ...]:
    """What a front does by itself: from a text to tokens, from logits to named classes."""
    tokenizer = next((file.sha256 for file in manifest.files if file.path == manifest.tokenizer.file), None)
    return tokenizer, manifest.tokenizer, manifest.labels, manifest.extra_outputs
