"""Invalid requests to the `flover` service are refused and do not affect others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.flover.service.runners import greedy
from tests.flover.service.running import FakePrompt, running
from tidal.errors import InvalidArgument

BAD = {
    "the request has neither text_input nor input_ids": FakePrompt(None),
    "both text_input and input_ids": FakePrompt(
        None, inputs={"text_input": np.array([b"a"], object), "input_ids": np.array([1])}
    ),
    "text_input row 0 is empty": FakePrompt("  "),
    "has 70 tokens; this model reads at most 63": FakePrompt("x" * 70),
    "is not valid UTF-8 at byte 1": FakePrompt(None, inputs={"text_input": np.array([b"a\xff"], object)}),
    r"input_ids has shape \[0\]; accepted is \[tokens\], 1 to 63": FakePrompt([]),
    r"input_ids has shape \[64\]": FakePrompt([1] * 64),
    "input_ids has the id 257; accepted are 0 to 256": FakePrompt([1, 257]),
    "has the id -1": FakePrompt([-1]),
    r"stream has shape \[2\]; accepted is \[1\]": FakePrompt(
        None, inputs={"input_ids": np.array([1]), "stream": np.array([True, False])}
    ),
    "unknown task 'x': the model has no tasks": FakePrompt([1], task="x"),
}


@pytest.mark.parametrize("message", BAD)
def test_an_invalid_request_is_refused_alone(tmp_path: Path, message: str) -> None:
    with running(tmp_path) as service:
        good = FakePrompt([5], max_tokens=9)
        service.ask(good, BAD[message])
        with pytest.raises(InvalidArgument, match=message):
            BAD[message].wait()
        assert good.tokens() == greedy([5], 9)
        assert service.counts("refused_requests_total", 1)
