"""The demo's text generation, on the tests' model of the same name."""

from __future__ import annotations

import pytest

from demo.writing import MAX_TOKENS, MODEL, PROMPTS, fused, stepped, write, write_together
from tests.flover.served.conftest import Served
from tidal_client import Client

pytestmark = pytest.mark.server


def test_texts_are_generated_in_shared_steps(served: Served) -> None:
    parts: list[str] = []
    with Client(served.url("http")) as http, Client(served.url("grpc")) as grpc:
        one = write(grpc, PROMPTS[0], parts.append)
        texts, steps = fused(served.server.metrics, stepped([one]))
        found = write_together(http, grpc)
        more_texts, more_steps = fused(served.server.metrics, int(texts) + stepped(each for _, each in found))
        whole = [grpc.generate(MODEL, prompt, max_tokens=MAX_TOKENS) for prompt in PROMPTS[:2]]
    assert [over for over, _ in found] == ["HTTP", "gRPC"] * (len(PROMPTS) // 2)
    assert all(0 < each.first_ms <= each.all_ms for _, each in found)
    for (_, each), wanted in zip(found, whole, strict=False):
        assert (each.text, each.tokens, each.finish_reason) == (
            wanted.text,
            wanted.generated_tokens,
            wanted.finish_reason,
        )
    assert ("".join(parts), len(parts)) == (found[0][1].text, one.parts)
    assert 0 < more_steps - steps < more_texts - texts
