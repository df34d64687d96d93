"""A decoder of GPT-2's size (124 million parameters); see `decoders`."""

from __future__ import annotations

from benchmarks.gpu.decoders import GPT2, measure_decoder
from benchmarks.gpu.recording import Record, Setting


def measure(setting: Setting, record: Record) -> None:
    """Measure it; claims `gpu_flover_vs_instances[32]`."""
    measure_decoder(setting, record, GPT2, "GPT-2's size")
