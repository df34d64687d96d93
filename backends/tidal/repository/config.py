"""Reading a model's config.pbtxt, and changing the number of instances in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidal.errors import InvalidArgument

CONFIG_FILE = "config.pbtxt"
# Parameter of a runtime's model; "false": no instance runs until an allocation says so. Triton has no count of 0.
DEPLOYED = "deployed"


def read_config(model_dir: Path) -> dict[str, Any]:
    """Read a model's config.pbtxt in the form that Triton's load API accepts, with the model's name filled in.

    Args:
        model_dir: Folder of the model in the repository.

    Raises:
        InvalidArgument: The file is missing, or has a setting that this release's Triton client does not know and
            would drop.
    """
    # Not at the top: with gRPC, they take a third of the imports of a model's process, which reads no config.
    from google.protobuf import json_format, text_format  # type: ignore[import-untyped]
    from tritonclient.grpc import model_config_pb2

    path = model_dir / CONFIG_FILE
    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(path.read_text(encoding="utf-8"), config)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} cannot be read: {error}") from None
    except text_format.ParseError as error:
        raise InvalidArgument(f"{path} is not a valid model config: {error}") from None
    config.name = config.name or model_dir.name
    return dict(json_format.MessageToDict(config, preserving_proto_field_name=True))


def instance_count(config: Mapping[str, Any]) -> int:
    """Number of instances that a config specifies; a group with several GPUs has its count on each of them."""
    if config.get("parameters", {}).get(DEPLOYED, {}).get("string_value") == "false":
        return 0
    groups = config.get("instance_group") or [{}]
    return sum(int(group.get("count", 1)) * max(1, len(_gpus(group))) for group in groups)


def served_versions(config: Mapping[str, Any], published: Sequence[int]) -> list[int]:
    """Versions that a config's version_policy selects, ascending; the newest where it has none.

    Args:
        config: Model config, as `read_config` returns it.
        published: Published versions of the model, ascending.
    """
    policy = config.get("version_policy", {})
    if "all" in policy:
        return list(published)
    if "specific" in policy:
        named = {int(version) for version in policy["specific"].get("versions", ())}
        return [version for version in published if version in named]
    return list(published[-max(1, int(policy.get("latest", {}).get("num_versions", 1))) :])


def with_instances(config: Mapping[str, Any], count: int) -> dict[str, Any]:
    """A copy of a config with another number of instances, distributed evenly over the GPUs that it names.

    Args:
        config: Model config, as `read_config` returns it.
        count: Number of instances, at least 1.
    """
    parameters = {name: value for name, value in config.get("parameters", {}).items() if name != DEPLOYED}
    config = {**config, "parameters": parameters} if "parameters" in config else config
    groups = config.get("instance_group") or [{"kind": "KIND_CPU"}]
    gpus = list(dict.fromkeys(gpu for group in groups for gpu in _gpus(group)))
    if not gpus:
        return {**config, "instance_group": [{**groups[0], "count": count}]}
    each, more = divmod(count, len(gpus))
    shares = {gpu: each + (index < more) for index, gpu in enumerate(gpus)}
    # Triton refuses two groups with one name, and generates names for groups without one.
    nameless = {key: value for key, value in groups[0].items() if key != "name"}
    return {
        **config,
        "instance_group": [{**nameless, "gpus": [gpu], "count": share} for gpu, share in shares.items() if share],
    }


def _gpus(group: Mapping[str, Any]) -> list[int]:
    return list(group.get("gpus") or ()) if group.get("kind") == "KIND_GPU" else []
