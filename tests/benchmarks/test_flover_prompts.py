"""The measurement of long prompts and shared prefixes: times from an engine, and claims from times."""

from __future__ import annotations

import pytest

from benchmarks.flover.prompts import TimedEngine, first_tokens, gaps_beside, make_claims
from testing.decoders import tiny_model, tiny_runner
from tests.flover.service.runners import CheapCosts


@pytest.fixture
def engine() -> TimedEngine:
    return TimedEngine(tiny_runner(tiny_model("gpt2"), slots=4), CheapCosts(), reuse=True)


def test_prompts_have_first_tokens(engine: TimedEngine) -> None:
    found = first_tokens(engine, [[1, 2, 3], [4, 5]], 3)
    assert len(found) == 2
    assert min(found) > 0


def test_a_stream_has_gaps_before_a_prompt_and_beside_it(engine: TimedEngine) -> None:
    quiet, beside, first = gaps_beside(engine, list(range(60)), 60)
    assert len(quiet) == 16
    assert len(beside) >= 1
    assert sum(beside) > 0
    assert first > 0


def test_claims() -> None:
    claims = {each.name: each for each in make_claims(7.0, {512: 1.5, 4000: 2.5})}
    assert {name: (each.measured, each.holds) for name, each in claims.items()} == {
        "prefix_ttft_speedup[512 shared]": (7.0, True),
        "itl_p99_ratio[512 prompt]": (1.5, True),
        "itl_p99_ratio[4000 prompt]": (2.5, False),
    }
