"""`python -m benchmarks.flover.peers [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

import json as json_format
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.environments import GENAI, why_not
from benchmarks.flover.peers.decoders import GPT2, LLAMA, PRECISIONS, SMALL
from benchmarks.flover.peers.measuring import FULL, QUICK, PeerBench, PrecisionRun
from benchmarks.flover.peers.outcome import add_tables, make_claims
from benchmarks.flover.peers.plot import plot
from benchmarks.flover.peers.worker_process import Worker
from benchmarks.kept import cache_folder, kept_file
from benchmarks.report import Report, progress
from tidal.flover.native.tuning import measure_kernels

# The precision in which requests of recorded lengths are measured, and the one whose memory is compared.
_RECORDED, _MEMORY = "int8", "bf16"


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Small decoders and one round; under 3 minutes.")] = False,
    prepare: Annotated[bool, typer.Option("--prepare", help="Write the decoders' files, and measure nothing.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with azure_llm_2023 for recorded lengths.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of each side; default: all cores.")] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write results here, tables (.txt) and a figure (.png) beside it.")
    ] = None,
) -> None:
    """Compare generation by Tidal and by OpenVINO GenAI in bf16, int8 and int4, without servers.

    Random weights, greedy texts of requested lengths, drafts off. The peer's type of keys and values, chunks and
    prompts are searched in the run, for each precision and each purpose. An interrupted run continues after the last
    complete precision.
    """
    if missing := why_not(GENAI):
        raise typer.BadParameter(f"OpenVINO GenAI cannot be run: {missing}")
    count = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(count)
    decoders, size = (SMALL, QUICK) if quick else ((GPT2, LLAMA), FULL)
    log = cache_folder() / "flover-peers.log"
    for decoder in decoders:
        decoder.prepare(lambda: Worker(log))
    if prepare:
        return
    report, kernels = Report("flover_peers", quick), measure_kernels(count)
    kept = kept_file("flover-peers-run", size, decoders, data is not None, count, files=())
    found = json_format.loads(kept.read_text()) if kept.exists() else {}
    for decoder in decoders:
        runs: dict[str, PrecisionRun] = {}
        for precision in PRECISIONS:
            if (done := found.get(decoder.name, {}).get(precision)) is None:
                with Worker(log) as worker:
                    bench = PeerBench(
                        decoder, precision, worker, kernels, size, count,
                        data=data if precision == _RECORDED else None, memory=precision == _MEMORY,
                    )  # fmt: skip
                    done = asdict(bench.measure())
                found.setdefault(decoder.name, {})[precision] = done
                kept.write_text(json_format.dumps(found))
            runs[precision] = PrecisionRun(**done)
            add_tables(report, decoder.name, precision, runs[precision])
        report.claims += make_claims(runs, ",gpt2" if decoder.family == "gpt2" else "")
    report.measured |= {
        "decoders": found,
        "sizes": {each.name: asdict(each) for each in decoders},
        "kernels": None if kernels is None else kernels.model_dump(),
        "threads": count,
    }
    report.finish(json)
    if json is not None:
        plot(report.document(), json.with_suffix(".png"))
    kept.unlink(missing_ok=True)
    progress("done")


if __name__ == "__main__":
    typer.run(main)
