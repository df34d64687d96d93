"""A partitioned model's runtimes as other Triton models of the server, `<model>_len<N>`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.arlo.model import padded_inputs
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import InvalidArgument
from tidal.repository.entries import ModelEntry
from tidal.repository.names import runtime_model
from tidal.requests import Array
from tidal.service import ModelCall, ModelUnavailable

_MIN_LATENCY_MS = 0.001


class RuntimeModels:
    """Runs batches on the Triton models of the runtimes; implements `tidal.arlo.runner.BatchRunner`.

    It calls the front's own version of a runtime's model. If models are loaded by hand, only another version may be
    loaded: that one is called if it has the same tokenizer, labels and outputs, since its results are then valid.

    Args:
        call: Calls another model of the server.
        front: Name of the front on the server.
        model_dir: Folder of the front in the repository.
        version: Version of the front.
        manifest: Manifest of that version.
    """

    def __init__(self, call: ModelCall, front: str, model_dir: Path, version: int, manifest: ArloManifest) -> None:
        self._call = call
        self._manifest = manifest
        self._models = [runtime_model(front, runtime.max_length) for runtime in manifest.runtimes]
        self._outputs = list(manifest.engine_outputs)
        self._versions = [version] * len(self._models)  # version that answered last, by runtime
        self._entry = ModelEntry(model_dir)
        self._compatible = {version: True}

    def run(self, lane: int, runtime: int, rows: Sequence[TokenRow], deadline: float | None) -> dict[str, Array]:
        """Run rows on an instance of the runtime, which Triton selects; see `BatchRunner`."""
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
        """Return other compatible versions, the newest first."""
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
    """Return what a front computes itself: the tokenizer, the task, the labels and the engines' outputs."""
    tokenizer = next((file.sha256 for file in manifest.files if file.path == manifest.tokenizer.file), None)
    outputs = manifest.main_output, manifest.extra_outputs
    return tokenizer, manifest.tokenizer, manifest.task, manifest.settings, manifest.labels, outputs
