"""Builds TensorRT plans from an ONNX file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import tensorrt as trt

from tidal.device import gpu, library_version
from tidal.engines.base import Dim, PlanOptions
from tidal.engines.plan_profiles import Profile, fixed_dimensions, profiles_for
from tidal.engines.tensorrt.messages import MESSAGES
from tidal.errors import Internal

_LEVELS = {
    "none": trt.HardwareCompatibilityLevel.NONE,
    "ampere_plus": trt.HardwareCompatibilityLevel.AMPERE_PLUS,
    "same_compute_capability": trt.HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY,
}


def specialise_engine(
    path: Path, shapes: Sequence[Mapping[str, tuple[Dim, ...]]], options: PlanOptions
) -> tuple[Path, ...]:
    """Build plans for some shapes in the folder of the ONNX file; see `registry.specialise_engine`.

    Raises:
        Internal: TensorRT cannot read the file or build a plan from it.
    """
    groups = [profiles_for(wanted) for wanted in shapes]
    if options.plans == "separate":
        return tuple(_plan(path, group, options) for group in groups)
    return (_plan(path, [profile for group in groups for profile in group], options),) * len(shapes)


def _plan(onnx: Path, profiles: Sequence[Profile], options: PlanOptions) -> Path:
    """The plan with these profiles, which is built unless it exists."""
    chosen = options.model_dump(include=set(PlanOptions.model_fields))
    key = hashlib.sha256(repr((chosen, [sorted(profile.items()) for profile in profiles])).encode()).hexdigest()
    plan = onnx.with_name(f"model-{key[:8]}.plan")
    if not plan.exists():
        _write(plan, build_plan(onnx, profiles, options))
    return plan


def build_plan(onnx: Path, profiles: Sequence[Profile], options: PlanOptions) -> memoryview:
    """Build a serialised plan.

    The network is strongly typed, so the ONNX file decides all precisions. TF32 is disabled, because it shortens
    float32 products to 10 bits. A dimension that is equal in all profiles is static in the network.

    Args:
        onnx: ONNX file.
        profiles: Optimisation profiles of the plan.
        options: Options of the plan.
    """
    builder = trt.Builder(MESSAGES)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, MESSAGES)
    if not parser.parse_from_file(str(onnx)):
        problems = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise Internal(f"TensorRT cannot read {onnx}: {problems or MESSAGES.reason()}")
    fixed = fixed_dimensions(profiles)
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        tensor.shape = trt.Dims(list(fixed[tensor.name]))
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    config.hardware_compatibility_level = _LEVELS[options.hardware_compatibility]
    if options.workspace_mb is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mb << 20)
    for bounds in profiles:
        profile = builder.create_optimization_profile()
        for name, dims in bounds.items():
            low, high = trt.Dims([dim[0] for dim in dims]), trt.Dims([dim[1] for dim in dims])
            profile.set_shape(name, low, high, high)
        if config.add_optimization_profile(profile) < 0:
            raise Internal(f"TensorRT refuses the optimisation profile {dict(bounds)}: {MESSAGES.reason()}")
    cache_file = _timing_cache_file()
    cache = config.create_timing_cache(cache_file.read_bytes() if cache_file.exists() else b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise Internal(f"TensorRT cannot build a plan from {onnx}: {MESSAGES.reason()}")
    _write(cache_file, _content(cache.serialize()))
    return _content(plan)


def _timing_cache_file() -> Path:
    """File with kernel timings for later builds on the same GPU model with the same TensorRT version."""
    folder = Path(os.environ.get("TIDAL_CACHE", Path.home() / ".cache" / "tidal")) / "tensorrt"
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(f"{gpu()} {library_version('tensorrt')}".encode()).hexdigest()[:16]
    return folder / f"{key}.timing"


def _content(memory: trt.IHostMemory) -> memoryview:
    # It supports Python's buffer protocol, which its type stub does not declare.
    return memoryview(cast(Any, memory))


def _write(path: Path, content: memoryview) -> None:
    """Write a file atomically."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(content)
    aside.replace(path)
