"""Mix of request options in a run: variants with their shares."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tidal_client.errors import InvalidArgument
from tidal_client.options import Parameter, request_parameters

_TEXTS = ("task", "stop")


@dataclass(frozen=True, slots=True)
class RequestVariant:
    """Options of a share of the requests."""

    #: Share of the requests, relative to the other variants'.
    share: float = 1.0
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.share > 0 and math.isfinite(self.share)):
            raise InvalidArgument(f"mix: expected a share above 0, got {self.share:g}")

    @property
    def name(self) -> str:
        """The options in the form of `parse_mix`; `-` for none."""
        written = (f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.parameters.items())
        return " ".join(written) or "-"


def parse_mix(text: str) -> tuple[RequestVariant, ...]:
    """Parse a mix: comma-separated variants of space-separated options `name=value`, each followed by `:share`.

    ``latency_ms=100:0.7,latency_ms=500 task=a:0.3`` is a mix of two variants; a missing share is 1.

    Raises:
        InvalidArgument: The text is malformed, or an option is unknown.
    """
    return tuple(_variant(part.strip()) for part in text.split(","))


def read_mix(file: Path) -> tuple[RequestVariant, ...]:
    """Read a mix from a JSON or YAML file: a list of objects with the options and `share` (default 1).

    Raises:
        InvalidArgument: The file cannot be read or is malformed.
        ModuleNotFoundError: The file is YAML and PyYAML is not installed.
    """
    try:
        text = file.read_text(encoding="utf-8")
        found = _yaml(text) if file.suffix in (".yaml", ".yml") else json.loads(text)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"mix {file}: cannot be read: {error}") from None
    if not isinstance(found, list) or not found or not all(isinstance(each, dict) for each in found):
        raise InvalidArgument(f"mix {file}: expected a list of objects with options and `share`")
    return tuple(_checked(each, each.pop("share", 1.0)) for each in cast("list[dict[str, Any]]", found))


def assign(mix: Sequence[RequestVariant], count: int, seed: int = 0) -> npt.NDArray[np.intp]:
    """Draw the variant of each of `count` requests by the shares; int [count]."""
    shares = np.array([variant.share for variant in mix])
    return np.random.default_rng(seed).choice(len(mix), count, p=shares / shares.sum())


def _variant(text: str) -> RequestVariant:
    options, colon, share = text.rpartition(":")
    if not colon:
        options, share = text, "1"
    found: dict[str, object] = {}
    for part in options.split():
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise InvalidArgument(f"mix: expected name=value, got '{part}' in '{text}'")
        found[name] = value if name in _TEXTS else _number(value)
    return _checked(found, share)


def _checked(options: Mapping[str, object], share: object) -> RequestVariant:
    try:
        weight = float(cast(str, share))
    except (TypeError, ValueError):
        raise InvalidArgument(f"mix: expected a share that is a number, got {share!r}") from None
    try:
        return RequestVariant(weight, request_parameters(options))
    except TypeError as error:
        raise InvalidArgument(f"mix: {error}") from None


def _number(value: str) -> object:
    for convert in (int, float):
        try:
            return convert(value)
        except ValueError:
            continue
    return value


def _yaml(text: str) -> object:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from None
