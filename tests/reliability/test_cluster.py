"""The scenario of a cluster: a broken guarantee is seen, whichever it is, and one node's loss breaks none."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reliability import run as running_scenarios
from reliability.cluster_failures import IN_ONE_CLUSTER, OF_RAY, Failure, Outcome
from reliability.cluster_load import ClusterRequest, answered_twice, is_answer
from reliability.clusters import KEPT, ClusterUnderTest, cluster_under_test
from reliability.load import OK
from reliability.models import LATENCIES_MS, SMALL, SPLIT, add_split, build_few
from reliability.scenarios.cluster import ClusterResult, FailureResult, fail_in_turn, rows
from reliability.server_under_test import ServerUnderTest
from testing.clusters import LocalCluster
from tidal_client.local_servers import process_started

LOSS = IN_ONE_CLUSTER[-1]


def request(seconds: float, start: float = 100.0, outcome: str = OK, *, one_entrance: bool = True) -> ClusterRequest:
    return ClusterRequest("r", start, start + seconds, outcome, one_entrance)


def result(**fields: Any) -> ClusterResult:
    """A result in which every guarantee holds, but for the given fields."""
    found = FailureResult(requests=1200, changes=3, again_s=[0.5, 1.2, 0.4], slowest_s=1.2)
    return ClusterResult(
        **{"found": {LOSS.what: found}, "crossed": [50, 60], "requests": 1200, "clusters": 2, **fields}
    )


def broken(of: ClusterResult) -> list[str]:
    return [row.what for row in rows(of, quick=False) if not row.holds]


def test_every_guarantee_holds_where_nothing_is_wrong() -> None:
    assert broken(result()) == []
    assert len(rows(result(), quick=False)) == 5


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"failures": ["split-1: UNAVAILABLE: x"]}, "cluster: a node is killed, all its processes"),
        ({"requests": 999}, "cluster: a node is killed, all its processes"),
        ({"again_s": [0.5, 2.1]}, "the other entrance dispatches to what is left"),
    ],
)
def test_what_clients_see_of_a_failure_is_judged(fields: dict[str, Any], what: str) -> None:
    good = {"requests": 1200, "changes": 3, "again_s": [0.5]}
    (found,) = broken(result(found={LOSS.what: FailureResult(**{**good, **fields})}))
    assert what in found


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"crossed": [50, 3]}, "ran on other nodes (control)"),
        ({"crossed": []}, "ran on other nodes (control)"),
        ({"twice": ["split-1"]}, "answered twice"),
        ({"left": ["process 7"]}, "left after its end"),
    ],
)
def test_what_is_wrong_with_a_cluster_is_judged(fields: dict[str, Any], what: str) -> None:
    (found,) = broken(result(**fields))
    assert what in found


def test_every_failure_has_rows() -> None:
    one = FailureResult(requests=1000, changes=3, again_s=[0.1])
    failures = (*IN_ONE_CLUSTER, *OF_RAY)
    table = rows(result(found={failure.what: one for failure in failures}), quick=False)
    assert len(table) == len(failures) + sum(failure.loses for failure in failures) + 3
    assert all(row.holds for row in table)


def test_queries_around_the_failure_at_the_entrance_that_stays_are_timed() -> None:
    found = FailureResult()
    before, meanwhile, after, late = request(9, 80), request(3, 98), request(4, 104), request(8, 106)
    elsewhere = request(7, one_entrance=False)
    found.add([before, meanwhile, after, late, elsewhere], [], 100.0)
    assert (found.again_s, found.slowest_s) == ([4.0], 9.0)
    found.add([], [], 100.0)
    assert found.again_s[1] == float("inf")  # an entrance that answers nothing is not fast


def test_an_answer_to_another_query_is_seen() -> None:
    right = [np.array([0.1, 0.9], np.float32), np.array([0.2, 0.8], np.float32), np.array([0.1, 0.9], np.float32)]
    close = np.array([0.101, 0.899], np.float32)
    assert is_answer(right, 0, close)
    assert is_answer(right, 2, close)  # the same text again
    assert not is_answer(right, 1, close)
    assert not is_answer(right, 0, None)


def test_a_second_answer_is_seen(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [
        ("a", SPLIT, OK),
        ("b", SPLIT, OK),
        ("b", SPLIT, OK),
        ("c", SPLIT, "UNAVAILABLE"),
        ("c", SPLIT, OK),
        ("d", SPLIT, OK),
        ("d", SPLIT, OK),
        ("a", "split_len16", OK),
        ("", SPLIT, OK),
        ("", SPLIT, OK),
    ]
    text = "".join(json.dumps({"id": name, "model": model, "code": code}) + "\n" for name, model, code in lines)
    log.write_text('{"id": "b", "mo' + "\n" + text)
    assert answered_twice(log, {SPLIT}, {"d"}) == ["b"]


def test_processes_and_files_that_are_left_are_seen(tmp_path: Path) -> None:
    ended: list[tuple[str, ...]] = []

    def command(*words: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        ended.append(words)
        return subprocess.CompletedProcess(words, 0, "", "")

    one = LocalCluster(tmp_path / "one", command)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            started = {"pid": process.pid, "started": process_started(process.pid)}
            records = one.folder / "run" / "tidal" / "cluster"
            records.mkdir(parents=True)
            facts = {"ray": started, "folder": str(tmp_path / "ray"), "serve": None}
            (records / "n1.json").write_text(json.dumps(facts))
            assert one.stop() == [f"process {process.pid}", str(records / "n1.json")]
        finally:
            process.kill()
    (records / "n1.json").unlink()
    assert one.stop() == []
    assert ended == [("cluster", "stop")] * 2


def test_it_is_skipped_with_a_reason_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def target(folder: Path, *_: object, **__: object) -> Iterator[ServerUnderTest]:
        yield ServerUnderTest.__new__(ServerUnderTest)

    monkeypatch.setattr(running_scenarios, "server_under_test", target)
    monkeypatch.setattr(running_scenarios, "counted", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    progress: list[str] = []
    running_scenarios.run(["cluster"], quick=True, report_progress=progress.append)
    assert progress[-1] == "cluster is skipped: ray is not installed: install the extra ray, pip install 'tidal[ray]'"


def kill_the_entrance_that_stays(running: ClusterUnderTest) -> Outcome:
    moment = time.monotonic()
    os.kill(running.server(KEPT).server_pid, signal.SIGKILL)
    return moment, []


@pytest.mark.server
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
def test_the_loss_of_a_node_breaks_no_guarantee_and_that_of_both_is_seen(tmp_path: Path) -> None:
    built = build_few(tmp_path / "built")
    add_split(built)
    both = Failure("a raylet is killed", False, kill_the_entrance_that_stays)
    result = ClusterResult()
    with cluster_under_test(tmp_path, built.folder, SPLIT, [*LATENCIES_MS], SMALL) as running:
        fail_in_turn(running, [LOSS, both], 60, result)
    result.left = running.left
    # The time until queries are dispatched again is not judged here.
    table = {row.what: row for row in rows(result, quick=True) if row.unit != "s"}
    assert not table.pop(f"cluster: {both.what}").holds
    assert len(table) == 4
    for row in table.values():
        assert row.holds, row
