"""An opened engine: rows of requests in, the engine's outputs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidal import device
from tidal.engine_model.manifest import EngineManifest
from tidal.engines import Engine, open_engines
from tidal.errors import Internal, InvalidArgument, TidalError

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class EngineModel:
    """An opened version; not thread-safe."""

    manifest: EngineManifest
    engine: Engine

    def check(self, inputs: Tensors) -> None:
        """Validate a request's tensors.

        Args:
            inputs: INT64 arrays [rows, length] by input name.

        Raises:
            InvalidArgument: An input is invalid; the message names it, its value and the accepted values.
        """
        manifest, runtime = self.manifest, self.manifest.runtime
        names = {each.name for each in manifest.inputs}
        if set(inputs) != names:
            raise InvalidArgument(f"the inputs {sorted(inputs)} were sent; accepted are {sorted(names)}")
        shapes = {name: list(array.shape) for name, array in inputs.items()}
        first = shapes[manifest.inputs[0].name]
        for name, shape in shapes.items():
            if len(shape) != 2 or not self._takes(shape[1]):
                length = f"1 to {runtime.max_length}" if runtime.dynamic else str(runtime.max_length)
                raise InvalidArgument(f"{name} has shape {shape}; accepted is [rows, length] with length {length}")
            if shape != first:
                raise InvalidArgument(f"inputs differ in their shapes {shapes}; accepted is one shape for all")
        if not 1 <= first[0] <= runtime.max_batch:
            raise InvalidArgument(f"the request has {first[0]} rows; accepted are 1 to {runtime.max_batch}")
        for each in manifest.inputs:
            array = inputs[each.name]
            if array.dtype != np.int64:
                raise InvalidArgument(f"{each.name} has dtype {array.dtype}; accepted is int64")
            for value in (int(array.min()), int(array.max())):
                if not 0 <= value < each.below:
                    raise InvalidArgument(f"{each.name} holds the value {value}; accepted are 0 to {each.below - 1}")

    def run(
        self, requests: Sequence[Tensors], deadline_error: Callable[[int], TidalError | None] = lambda _: None
    ) -> list[dict[str, Array] | TidalError]:
        """Run requests; those of equal length share batches up to the engine's maximum.

        Args:
            requests: Tensors of each request by input name.
            deadline_error: Called with a request's index before it runs; returns an error if it must not run any more.

        Returns:
            For each request its outputs [rows, ...] by name, or its error; an error does not affect other requests.
        """
        results: list[dict[str, Array] | TidalError] = [Internal("the request was not run")] * len(requests)
        accepted = []
        for index, inputs in enumerate(requests):
            try:
                self.check(inputs)
            except InvalidArgument as error:
                results[index] = error
            else:
                accepted.append(index)
        for group in self._groups(requests, accepted):
            late = {index: reason for index in group if (reason := deadline_error(index)) is not None}
            for index, reason in late.items():
                results[index] = reason
            group = [index for index in group if index not in late]
            if not group:
                continue
            for index, result in zip(group, self._run([requests[index] for index in group]), strict=True):
                results[index] = result
        return results

    def warm_up(self) -> None:
        """Run once at the longest input, since the first pass is slow."""
        shape = (1, self.manifest.runtime.max_length)
        self.engine.run({each.name: np.ones(shape, np.int64) % each.below for each in self.manifest.inputs})

    def _takes(self, length: int) -> bool:
        runtime = self.manifest.runtime
        return 1 <= length <= runtime.max_length if runtime.dynamic else length == runtime.max_length

    def _groups(self, requests: Sequence[Tensors], indices: Sequence[int]) -> list[list[int]]:
        """Return indices of requests to run together: equal lengths, in order, up to the maximum batch size."""
        groups: list[list[int]] = []
        last: dict[int, tuple[list[int], int]] = {}  # by length: the group to fill and its number of rows
        for index in indices:
            rows, length = requests[index]["input_ids"].shape
            group, filled = last.get(length, ([], self.manifest.runtime.max_batch))
            if filled + rows > self.manifest.runtime.max_batch:
                group, filled = [], 0
                groups.append(group)
            group.append(index)
            last[length] = group, filled + rows
        return groups

    def _run(self, group: Sequence[Tensors]) -> Sequence[dict[str, Array] | TidalError]:
        try:
            if len(group) == 1:
                return [self.engine.run(group[0])]
            together = {name: np.concatenate([inputs[name] for inputs in group]) for name in group[0]}
            outputs = self.engine.run(together)
        except Exception as error:  # any exception of the library; the requests are valid
            return [Internal(f"the engine failed: {error}")] * len(group)
        ends = np.cumsum([len(inputs["input_ids"]) for inputs in group])[:-1]
        parts = {name: np.split(array, ends) for name, array in outputs.items()}
        return [{name: split[index] for name, split in parts.items()} for index in range(len(group))]


def open_engine_model(manifest: EngineManifest, version_dir: Path) -> EngineModel:
    """Check a published version against this machine, open its engine and warm it up.

    Args:
        manifest: Manifest of the version.
        version_dir: Folder of the version.

    Raises:
        InvalidArgument: The manifest does not match the files, this device or the installed engine library.
    """
    manifest.check(version_dir, device.here(manifest.device.kind))
    (engine,) = open_engines(manifest.artifact(version_dir), contexts=1, threads=manifest.threads)
    model = EngineModel(manifest, engine)
    model.warm_up()
    return model
