"""One config for several versions of a runtime's model.

Triton has one config for all versions of a model, and a publish writes the config of the newest. While a front changes
from one version to another, its runtimes serve both, whose engines may differ in inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidal.arlo.manifest import ArloManifest
from tidal.catalog.graph import ModelGraph
from tidal.engine_model.manifest import EngineManifest


def joint_config(graph: ModelGraph, front: str, runtime: str, versions: Sequence[int]) -> dict[str, Any] | None:
    """The config with which a runtime's model serves exactly these versions; None where one config cannot.

    Outputs of any of them are declared, and inputs that not all of them read are optional. Versions for Triton's own
    backend have sizes and profiles in their config; they are served together only where these are equal.

    Args:
        graph: Relations between the models of the repository.
        front: Name of the front.
        runtime: Name of the runtime's model, whose config.pbtxt is complete for the version that it names.
        versions: Published versions, at least one.
    """
    config = graph.config(runtime)
    specific = config.get("version_policy", {}).get("specific", {})
    named = {int(version) for version in specific.get("versions", ())}
    joint = serving(config, versions)
    if named == set(versions):
        return joint
    compared = sorted(set(versions) | (named & set(graph.versions(runtime))))
    found = ((version, graph.manifest(runtime, version)) for version in compared)
    engines = {version: manifest for version, manifest in found if isinstance(manifest, EngineManifest)}
    of_fronts = (graph.manifest(front, version) for version in compared)
    fronts = [manifest for manifest in of_fronts if isinstance(manifest, ArloManifest)]
    if len(engines) < len(compared) or len(fronts) < len(compared):  # one cannot be read
        return None
    if any(manifest.native for manifest in fronts):
        return joint if len({_native_shape(manifest) for manifest in fronts}) == 1 else None
    served = [engines[version] for version in versions]
    joint["input"] = _inputs(config.get("input", ()), list(engines.values()))
    joint["output"] = _outputs(config.get("output", ()), served)
    if config.get("max_batch_size", 0):
        joint["max_batch_size"] = max(config["max_batch_size"], *(each.runtime.max_batch for each in served))
    return joint


def serving(config: Mapping[str, Any], versions: Sequence[int]) -> dict[str, Any]:
    """A copy of a config that serves these versions alone."""
    return {**config, "version_policy": {"specific": {"versions": [str(version) for version in sorted(versions)]}}}


def _inputs(declared: Sequence[Mapping[str, Any]], engines: Sequence[EngineManifest]) -> list[dict[str, Any]]:
    """Declared inputs and those that any engine reads; inputs that only some engines read are optional."""
    read = [{each.name for each in engine.inputs} for engine in engines]
    differing = read[0].union(*read) - read[0].intersection(*read)
    inputs = [{**each, "optional": True} if each["name"] in differing else dict(each) for each in declared]
    lacking = differing - {each["name"] for each in declared}
    # All inputs of an engine have one shape.
    return inputs + [{**each, "name": name, "optional": True} for each in declared[:1] for name in sorted(lacking)]


def _outputs(declared: Sequence[Mapping[str, Any]], engines: Sequence[EngineManifest]) -> list[dict[str, Any]]:
    given = dict.fromkeys(output.name for engine in engines for output in engine.extra_outputs)
    lacking = [name for name in given if name not in {each["name"] for each in declared}]
    return [*map(dict, declared), *({"name": name, "data_type": "TYPE_FP32", "dims": ["-1"]} for name in lacking)]


def _native_shape(manifest: ArloManifest) -> tuple[object, ...]:
    """What the config of a runtime on Triton's own backend depends on, besides its version and instances."""
    outputs = manifest.main_output, manifest.extra_outputs, len(manifest.labels)
    return manifest.native, manifest.runtimes, manifest.inputs, outputs
