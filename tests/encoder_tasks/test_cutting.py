"""Parameters of windows, which are checked when a model is loaded."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tidal.arlo.parameters import ArloParameters
from tidal.encoder_tasks.cutting import Cutter, open_cutter
from tidal.errors import InvalidArgument


def opened(task: str, truncate: Any, stride: int | None = None) -> Cutter | None:
    """Open what cuts the texts of a model of 64 tokens."""
    return open_cutter(task, 64, truncate, stride)


@pytest.mark.parametrize(
    ("task", "truncate", "stride", "expected"),
    [
        ("token-classification", False, None, None),
        ("token-classification", True, None, None),  # by the tokenizer
        ("token-classification", "stride", None, Cutter(0, 64, 32, False)),
        ("token-classification", "stride", 0, Cutter(0, 64, 0, False)),
        ("question-answering", "stride", 20, Cutter(1, 64, 20, False)),
        ("question-answering", True, None, Cutter(1, 64, 0, True)),
        ("embedding", "stride", None, Cutter(0, 64, 0, False)),
        ("classification", True, None, None),
    ],
)
def test_what_is_cut(task: str, truncate: Any, stride: int | None, expected: Cutter | None) -> None:
    assert opened(task, truncate, stride) == expected


@pytest.mark.parametrize(
    ("task", "truncate", "stride", "message"),
    [
        ("classification", "stride", None, "'truncate' is 'stride', and the task classification has no windows"),
        ("fill-mask", "stride", None, "the task fill-mask has no windows; accepted are true and false"),
        ("embedding", False, 3, "'stride' is 3; it requires truncate: stride"),
        ("embedding", "stride", 33, "'stride' is 33; accepted are 0 to 32 tokens, half of the model's"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(task: str, truncate: Any, stride: int | None, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        opened(task, truncate, stride)
    assert message in str(caught.value)


def test_values_of_truncate() -> None:
    for text, value in (("true", True), ("FALSE", False), ("stride", "stride")):
        assert ArloParameters.model_validate({"truncate": text}).truncate == value
    with pytest.raises(ValidationError, match="expected true, false or stride, got 'strides'"):
        ArloParameters.model_validate({"truncate": "strides"})
