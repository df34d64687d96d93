"""`python -m benchmarks.encoders [--quick] [--data DIR] [--json FILE]`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import environments
from benchmarks.encoders import bulk, claims, equality, mixed_tasks, plot, quality, tables
from benchmarks.encoders.agreement import agreement, make_references
from benchmarks.encoders.cells import Case
from benchmarks.encoders.claims import CLAIMED, GOALS
from benchmarks.encoders.prepare import EncoderArtefacts, load, model_name, prepare
from benchmarks.encoders.quality import QualityBench
from benchmarks.encoders.rounds import EncoderRounds
from benchmarks.encoders.run import EncoderRun
from benchmarks.encoders.search import PeerSearch
from benchmarks.encoders.sides import TidalSide
from benchmarks.encoders.source import LONGEST, TASKS, Task
from benchmarks.encoders.systems import FASTAPI, FASTEMBED, LITSERVE, ONNX, PEERS, TIDAL
from benchmarks.encoders.workload import Lengths, Traffic, Workload
from benchmarks.kept import kept_file
from benchmarks.report import Claim, Report, machine_line, progress
from tidal.server.child import tidal_serve


@dataclass(frozen=True, slots=True)
class EncoderSize:
    """Size of a run.

    Attributes:
        rounds: Number of rounds.
        seconds: Length of a closed loop in seconds; open loops take twice as long.
        searched_s: Length of a measurement of the search in seconds.
        in_flight: Numbers of requests in flight of the claimed traffic, by task.
        shares: Rates of random arrivals by task, as shares of the capacity of the best peer.
        others: Further cases.
        peers: Compared systems, by task.
        pairs: Number of pairs of sentences.
        references: Number of compared requests per task and kind of lengths.
        sentences: Number of sentences whose entities are compared.
        questions: Number of questions of each language whose answers are compared.
        mixed: Number of queries of each kind of task that share an encoder.
        bulk: Number of texts of a file for `tidal embed`.
    """

    rounds: int
    seconds: float
    searched_s: float
    in_flight: dict[Task, tuple[int, ...]]
    shares: dict[Task, tuple[float, ...]]
    others: tuple[Case, ...]
    peers: dict[Task, tuple[str, ...]]
    pairs: int
    references: int
    sentences: int
    questions: int
    mixed: int
    bulk: int

    def cases(self, task: Task) -> list[Case]:
        """Return the cases of a task."""
        found = [Case(CLAIMED[task], in_flight) for in_flight in self.in_flight[task]]
        found += [Case(CLAIMED[task], share=share) for share in self.shares[task]]
        return [*found, *(case for case in self.others if case.traffic.task == task)]


_SHARES = (0.4, 0.7, 0.9)
_ALL = (*PEERS, FASTEMBED)
FULL = EncoderSize(
    rounds=5,
    seconds=2.5,
    searched_s=1.5,
    in_flight={task: tuple(GOALS) for task in TASKS},
    shares=dict.fromkeys(TASKS, _SHARES),
    others=(
        *(Case(Traffic("embed", "documents"), in_flight) for in_flight in GOALS),
        Case(Traffic("rerank", "documents", 16), 8),
    ),
    peers=dict.fromkeys(TASKS, _ALL),
    pairs=1500,
    references=32,
    sentences=600,
    questions=2000,  # all: XQuAD has 1,190
    mixed=200,
    bulk=2048,
)
QUICK = EncoderSize(
    rounds=1,
    seconds=1.0,
    searched_s=0.7,
    in_flight={"embed": (1, 32), "rerank": (32,)},
    shares={"embed": (0.7,), "rerank": ()},
    others=(),
    peers={"embed": (FASTAPI, LITSERVE, ONNX), "rerank": (FASTAPI,)},
    pairs=100,
    references=4,
    sentences=20,
    questions=4,
    mixed=8,
    bulk=512,
)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer peers, cases and rounds; under 3 minutes.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder that contains tweet_lengths, xquad, stsb_en and wnut17.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="File for the results; tables and plot are written next to it.")
    ] = None,
) -> None:
    """Compare Tidal with other servers of embedding and reranking models."""
    compare(load() if quick else prepare(), QUICK if quick else FULL, data, json, quick=quick)


def compare(
    artefacts: EncoderArtefacts, size: EncoderSize, data: Path | None, json: Path | None, *, quick: bool
) -> None:
    """Measure what an interrupted run has not stored yet, and report."""
    report = Report("encoders", quick)
    workload = Workload(artefacts.tokenizer("embed"), data)
    run = EncoderRun.open(kept_file("encoders-run", size, artefacts.digest, str(data), files=()))
    print(machine_line())
    _add_setting(report, artefacts, workload, size)
    _search(artefacts, size, run, workload, quick=quick)
    for task in TASKS:
        EncoderRounds(artefacts, run, workload, size.rounds, size.seconds).measure(task, size.cases(task))
    QualityBench(artefacts, run, workload, size.rounds, size.seconds).measure(data, size.pairs)
    bulk.BulkBench(artefacts, run, workload, size.rounds, size.seconds, size.bulk).measure()
    compared = _compare_answers(artefacts, size, run, data)
    tables.add_search(report, run)
    tables.add_agreement(report, run)
    tables.add_cases(report, run, [case for task in TASKS for case in size.cases(task)])
    quality.add_table(report, run)
    report.claims += [*claims.make_claims(run), *quality.make_claims(run), *bulk.make_claims(run)]
    report.claims += [*compared, *mixed_tasks.make_claims(run)]
    report.measured |= {
        "cells": run.cells_json(),
        "forms": run.forms,
        "searched": run.searched,
        "missing": run.missing,
        "agreement": run.agreement,
        **run.facts,
    }
    report.finish(json)
    if json is not None:
        plot.save(report.document(), json.with_suffix(".png"))
    run.file.unlink(missing_ok=True)


def _search(
    artefacts: EncoderArtefacts, size: EncoderSize, run: EncoderRun, workload: Workload, *, quick: bool
) -> None:
    """Choose the settings of all peers, and compare the answers of all systems with the source models'."""
    if all(TIDAL in run.agreement.get(task, {}) for task in TASKS):
        return
    progress("answers of the source models")
    references = make_references(artefacts, workload, size.references)
    search = PeerSearch(artefacts, run, workload, references, size.searched_s, quick)
    for task in TASKS:
        for system in size.peers[task]:
            search.search(CLAIMED[task], system)
    named = [part for task in TASKS for part in ("--model", model_name(task))]
    with tidal_serve(artefacts.repository, *named) as server:
        for task in TASKS:
            run.agreement.setdefault(task, {})[TIDAL] = agreement(TidalSide(server, task), references, task)
    run.save()


def _compare_answers(artefacts: EncoderArtefacts, size: EncoderSize, run: EncoderRun, data: Path | None) -> list[Claim]:
    """Compare entities, answers and tasks of an encoder with transformers."""
    named = [part for model in (*equality.MODELS.values(), mixed_tasks.MODEL) for part in ("--model", model)]
    with tidal_serve(artefacts.repository, *named) as server:
        url = f"grpc://{server.state.grpc}"
        run.fact("mixed_tasks", lambda: mixed_tasks.measure(url, artefacts.repository, size.mixed))
        if data is None:
            return []
        sentences = equality.read_sentences(data, size.sentences)
        questions = {name: equality.read_questions(data, name, size.questions) for name in equality.LANGUAGES}
        entities = equality.compare_entities(url, artefacts.folder / "tokens", sentences)
        answers = equality.compare_answers(
            url, artefacts.folder / "questions", environments.python(environments.PIPELINE), questions
        )
    for each in (entities, *answers.values()):
        for difference in each.different:
            progress(f"different: {difference[:300]}")
    return equality.make_claims(entities, answers)


def _add_setting(report: Report, artefacts: EncoderArtefacts, workload: Workload, size: EncoderSize) -> None:
    lengths: tuple[Lengths, ...] = ("tweets", "documents")
    facts: dict[str, str] = {
        "artefacts": artefacts.digest,
        "embed": "all-MiniLM-L6-v2, its weights; a text per request",
        "rerank": "a cross-encoder of its size: its encoder, a head of random weights; a query and a document each",
        "same for all": f"fp32, all cores, at most {LONGEST} tokens, all texts different; one sender for all of HTTP",
        "answers": "in each server's cheapest form of FP32: bytes, or base64 from infinity",
        "settings": "Tidal's as built; peers' are searched for 1 and for more requests in flight, on other texts",
        "rounds": f"{size.rounds} of {size.seconds:g} s; peers that are not measured are stopped meanwhile",
        "capacity": "requests per second of the best peer at 32 in flight, in the search",
        **{each: workload.origin(each) for each in lengths},
    }
    report.measured["setting"] = facts
    report.add_table("setting", ["what", ""], [[name, text] for name, text in facts.items()])


if __name__ == "__main__":
    typer.run(main)
