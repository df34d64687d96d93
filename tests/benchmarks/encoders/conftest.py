"""Requests that several modules use."""

from __future__ import annotations

import pytest

from benchmarks.encoders.workload import Workload
from demo.train import minilm_folder

TOKENIZER = minilm_folder() / "tokenizer.json"


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(TOKENIZER, None)
