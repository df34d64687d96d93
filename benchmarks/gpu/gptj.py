"""A decoder of GPT-J's size (6 billion parameters); see `decoders`."""

from __future__ import annotations

from benchmarks.gpu.decoders import GPTJ, measure_decoder
from benchmarks.gpu.recording import Record, Setting


def measure(setting: Setting, record: Record) -> None:
    """Measure it; the claim of the step `gpt2` is measured there."""
    measure_decoder(setting, record, GPTJ, "GPT-J's size")
