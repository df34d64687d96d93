"""The page of limits agrees with the gateway: defaults of the settings, and the nesting that JSON may have."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tidal_gateway.api.embeddings import EmbeddingsBody
from tidal_gateway.api.kserve import _document
from tidal_gateway.api.options import parse_body
from tidal_gateway.errors import Refusal
from tidal_gateway.settings import GatewaySettings

PAGE = (Path(__file__).parents[2] / "docs/reference/limits.md").read_text().partition("## Limits of the gateway")[2]


def test_the_page_has_every_limit_with_its_default() -> None:
    found = {name: float(value.replace(",", "")) for name, value in re.findall(r"\| `(\w+)`, ([\d,]+)", PAGE)}
    assert found == {name: GatewaySettings.model_fields[name].default for name in found}
    limits = {name for name in GatewaySettings.model_fields if name.startswith("max_") or name.endswith("timeout_s")}
    assert limits <= found.keys()


@pytest.mark.parametrize("parse", [lambda content: parse_body(EmbeddingsBody, content), _document])
@pytest.mark.parametrize("value", [b"[%b]", b'{"a": %b}'])
def test_json_is_nested_as_deeply_as_the_page_says(parse: Callable[[bytes], object], value: bytes) -> None:
    (levels,) = map(int, re.findall(r"nesting of JSON \| (\d+) levels", PAGE))

    def nested(depth: int) -> bytes:
        content = b"1"
        for _ in range(depth - 1):
            content = value % content
        return b'{"model": "embedder", "input": "hi", "x": %b}' % content

    parse(nested(levels))
    with pytest.raises(Refusal, match="the body is not JSON: recursion limit exceeded"):
        parse(nested(levels + 1))
