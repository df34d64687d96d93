"""Static compared with dynamic shapes on a GPU: the paper's Figure 2 with torch instead of TensorRT.

Static: one exported program per length, as a CUDA graph. Dynamic: one compilation for all lengths. The compared
latencies are those of the profiles of `tidal build`.
"""

from __future__ import annotations

import statistics
from typing import Literal

from benchmarks.arlo.prepare import ArloArtefacts, build
from benchmarks.report import Claim, Report


def measure(report: Report, artefacts: ArloArtefacts, *, precision: str, device: Literal["gpu", "cpu"] = "gpu") -> None:
    """Build both forms with engine torch, and add the table and the claim.

    Args:
        report: Report to add to.
        artefacts: Artefacts of the benchmark.
        precision: Precision of both forms.
        device: Device to build for.
    """
    profiles = []
    for form in ("static", "dynamic"):
        settings = f"engine: torch\ndevice: {device}\nplacement: polymorphic\nform: {form}\nmax_batch: 1\n"
        build(artefacts, f"intents_torch_{form}", precision, settings)
        profiles.append(artefacts.manifest(f"intents_torch_{form}").profile)
    static, dynamic = profiles
    lengths = [length for length in static.lengths if length in dynamic.lengths]
    ratios = [static.latency_ms(length) / dynamic.latency_ms(length) for length in lengths]
    rows = [
        [str(length), f"{static.latency_ms(length):.3f}", f"{dynamic.latency_ms(length):.3f}", f"{ratio:.3f}"]
        for length, ratio in zip(lengths, ratios, strict=True)
    ]
    title = f"torch on the {device}, one query, ms: one CUDA graph per length against one compilation for all lengths"
    report.add_table(title, ["tokens", "static", "dynamic", "ratio"], rows)
    report.measured["gpu"] = dict(zip(map(str, lengths), ratios, strict=True))
    note = f"median over {len(lengths)} lengths; {min(ratios):.2f}-{max(ratios):.2f}"
    report.claims.append(
        Claim("gpu_static_vs_dynamic", "<= 0.82", statistics.median(ratios), paper="1/1.22 to 1/3.56", note=note)
    )
