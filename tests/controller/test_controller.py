"""`tidal controller` next to a real `tidal serve`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testing.controller import Traffic, controller, controller_thread
from testing.serving import Served, environment_in, serving, tidal_in_process
from testing.waiting import until
from tests.cluster.pages import Values, of, read
from tidal.repository.allocation import make_allocation, read_allocation, write_allocation
from tidal.server.change_lock import exclusive_change
from tidal.server.gauges import used_instances

pytestmark = pytest.mark.server

QUICK = ("--period", "2")
# Whatever devices this machine has.
THREE = ("--min-instances", "3", "--max-instances", "3")
FIXED = {"min_instances": 3, "max_instances": 3}
# Words of a query that fits each runtime, with two special tokens.
SHORT, MIDDLE, LONG = 10, 25, 50


@pytest.fixture
def even(served: Served) -> Served:
    """The server with one instance of each runtime."""
    if used(served) != {16: 1, 32: 1, 64: 1}:
        answer = served.tidal("models", "allocate", "tiny", "16=1", "32=1", "64=1")
        assert answer.returncode == 0, answer.stderr
    return served


def allocation(served: Served) -> dict[int, int] | None:
    found = read_allocation(Path(served.report["repository"]) / "tiny")
    return None if found is None else found.instances


def used(served: Served) -> dict[int, int]:
    versions = used_instances(served.report["metrics"], "tiny")
    return versions[max(versions)]


def measured(page: Values) -> bool:
    """Return whether the last plan is based on queries."""
    names = ("observed_latency_seconds", "predicted_latency_seconds", "demand_queries", "queries_total")
    return all(sum(of(page, name, model="tiny").values()) > 0 for name in names)


def test_a_dry_run_prints_the_plan_and_changes_nothing(even: Served) -> None:
    served, before = even, allocation(even)
    with Traffic(served.report["grpc"], "tiny", SHORT) as traffic:
        assert until(lambda: traffic.answered > 20)
        # Any gain is enough: a busy machine sends few queries, so the gain is small, and publishes counters late.
        dry_run = ("--once", "--dry-run", *QUICK, "--min-gain", "0", *THREE)
        planned = "tiny: would allocate 16=1 32=1 64=1 -> 16=2 32=0 64=1: the best allocation is predicted"
        assert until(lambda: planned in served.tidal("controller", *dry_run).stdout)
        decisions: list[dict[str, Any]] = []

        def decides() -> bool:
            lines = served.tidal("controller", "tiny", "--json", *dry_run)
            assert lines.returncode == 0, lines.stderr
            (decision,) = [json.loads(line) for line in lines.stdout.splitlines() if '"decision"' in line]
            decisions.append(decision)
            observed = min(decision["observed"]["requests"], decision["observed"]["queries"]["16"])
            return bool(decision["after"] == {"16": 2, "32": 0, "64": 1} and observed > 20)

        assert until(decides), decisions
    decision = decisions[-1]
    assert decision["dry_run"] is True
    assert decision["predicted_mean_best_s"] < decision["predicted_mean_before_s"]
    assert allocation(served) == before
    assert used(served) == {16: 1, 32: 1, 64: 1}


def test_a_dry_run_publishes_plans_and_counts_no_change(even: Served) -> None:
    options = ("--dry-run", *QUICK, "--min-gain", "0", *THREE, "--metrics-port", "0")
    with Traffic(even.report["grpc"], "tiny", SHORT), controller(even.environment, *options) as running:
        assert running.wait_for("metrics")
        (address,) = [event["address"] for event in running.of("metrics")]
        wanted = {"16": 2, "32": 0, "64": 1}
        assert until(lambda: of(read(address), "planned_instances", model="tiny") == wanted), running.events
        found = read(address)
        assert running.end() == 0
    assert of(found, "plans_total", model="tiny", trigger="period")["allocate"] >= 1
    assert of(found, "instances", model="tiny") == {"16": 1, "32": 1, "64": 1}
    assert of(found, "changes_total", model="tiny") == {"done": 0, "failed": 0}
    assert of(found, "moved_instances_total") == {"tiny": 0}


def test_without_traffic_it_keeps_the_allocation(even: Served) -> None:
    before, kept = allocation(even), "tiny: keep 16=1 32=1 64=1: there were no queries"
    # A busy machine publishes the counters of earlier queries seconds later: they must not justify a change.
    once = ("--once", "--min-gain", "0.99", *QUICK, *THREE)
    answers = []

    def idle() -> bool:
        answers.append(even.tidal("controller", *once))
        return kept in answers[-1].stdout

    assert until(idle), answers[-1]
    assert all(each.returncode == 0 for each in answers), answers
    assert allocation(even) == before


def test_shifting_lengths_are_followed_without_a_failed_request(even: Served) -> None:
    served, sent = even, 0
    with controller(served.environment, *QUICK, *THREE, "--metrics-port", "0") as running:
        assert running.wait_for("metrics")
        (address,) = [event["address"] for event in running.of("metrics")]
        for words, wanted in (
            (SHORT, {16: 2, 32: 0, 64: 1}),
            (MIDDLE, {16: 0, 32: 2, 64: 1}),
        ):
            with Traffic(served.report["grpc"], "tiny", words) as traffic:
                assert until(lambda w=wanted: used(served) == w and allocation(served) == w, 90), running.events[-5:]  # type: ignore[misc]
                aim = traffic.answered + 100
                assert until(lambda t=traffic, a=aim: t.answered >= a)  # type: ignore[misc]
                assert until(lambda: measured(read(address)))
            assert traffic.failures == []
            assert traffic.answered == traffic.sent
            sent += traffic.sent
        found = read(address)
        second = served.tidal("controller", "tiny", "--once", *QUICK)
        assert running.end() == 0
    assert sent >= 200
    changes = running.of("changed", model="tiny")
    assert len(changes) >= 2
    print(f"{sent} requests through {len(changes)} changes, none failed")
    decisions = running.of("decision", action="allocate")
    assert all(each["reason"] and each["before"] != each["after"] for each in decisions)
    assert of(found, "nodes", state="serves") == {"": 1}
    assert of(found, "instances", model="tiny") == {"16": 0, "32": 2, "64": 1}
    assert of(found, "change_seconds_count") == {"tiny": len(changes)}
    assert of(found, "changes_total", model="tiny") == {"done": len(changes), "failed": 0}
    moved = sum(abs(each["before"][n] - each["after"][n]) for each in decisions for n in each["before"])
    assert of(found, "moved_instances_total") == {"tiny": moved}
    assert of(found, "plans_total", model="tiny", action="allocate")["period"] == len(decisions)
    assert of(found, "planning_blocked") == {"tiny": 0}
    assert second.returncode == 1
    assert f"'tiny' is already controlled by process {running.process.pid}" in second.stderr


def test_bounds_add_and_release_instances(even: Served) -> None:
    served, before = even, used(even)
    with controller_thread(served.environment, period_s=600, min_instances=4, max_instances=4) as running:
        assert running.wait_for("changed")
        assert until(lambda: used(served) == {**before, 64: before[64] + 1})
    (decision,) = running.of("decision")
    assert decision["action"] == "add"
    assert decision["reason"] == "3 instances are below the minimum of 4"
    with controller_thread(served.environment, period_s=600, **FIXED) as running:
        assert running.wait_for("changed")
        assert sum(used(served).values()) == 3
    assert running.of("decision")[0]["action"] == "release"


def test_a_host_of_two_cores_has_two_instances_and_loses_no_request(even: Served) -> None:
    """One process for each of three runtimes would share two cores."""
    served, server = even, even.state["server_pid"]
    cores = os.sched_getaffinity(server)
    if len(cores) < 2:
        pytest.skip("needs two cores")
    os.sched_setaffinity(server, sorted(cores)[:2])
    try:
        planned = served.tidal("controller", "--once", "--dry-run", "--json", *QUICK)
        with (
            Traffic(served.report["grpc"], "tiny", SHORT) as short,
            Traffic(served.report["grpc"], "tiny", MIDDLE) as middle,
            controller_thread(served.environment, period_s=2) as running,
        ):
            assert running.wait_for("changed"), running.events
            assert running.wait_for("decision", 2), running.events
            counts = used(served)
            aims = [traffic.answered + 50 for traffic in (short, middle)]
            assert until(lambda: short.answered >= aims[0] and middle.answered >= aims[1])
    finally:
        os.sched_setaffinity(server, cores)
    released = [json.loads(line) for line in planned.stdout.splitlines() if '"release"' in line]
    assert [(each["before"], each["after"]) for each in released] == [
        ({"16": 1, "32": 1, "64": 1}, {"16": 0, "32": 1, "64": 1})
    ]
    assert running.of("decision")[0]["reason"] == "3 instances are above the 2 that devices hold"
    assert sum(counts.values()) == 2
    assert counts[64] >= 1
    assert short.failures == middle.failures == []
    assert (short.answered, middle.answered) == (short.sent, middle.sent)


def test_an_interrupted_change_is_completed(served: Served) -> None:
    folder = Path(served.report["repository"]) / "tiny"
    write_allocation(folder, make_allocation({16: 1, 32: 1, 64: 1}, loaded=used(served)))
    with controller_thread(served.environment, period_s=600, **FIXED) as running:
        assert running.wait_for("completed")
        assert used(served) == allocation(served) == {16: 1, 32: 1, 64: 1}
    assert running.of("decision") == running.of("failed") == []


def test_a_failed_change_is_logged_once_and_retried(even: Served) -> None:
    served, folder = even, Path(even.report["repository"]) / "tiny"
    traffic = Traffic(served.report["grpc"], "tiny", LONG)
    with controller_thread(served.environment, period_s=1, **FIXED) as running, traffic:
        with exclusive_change(folder):  # as another process would
            assert running.wait_for("failed")
            assert running.wait_for("decision", 2, action="allocate")
            assert used(served) == {16: 1, 32: 1, 64: 1}
        assert running.wait_for("changed")
        assert used(served) == {16: 0, 32: 0, 64: 3}
    # On a busy machine counters come late, so that it decides to keep in between: then the error is logged again.
    failures = running.of("failed")
    assert len(failures) <= 1 + len(running.of("decision", action="keep"))
    (message,) = {failure["message"] for failure in failures}
    assert "allocate was not completed: the instances of 'tiny' are being changed already" in message
    assert traffic.failures == []


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--period", "0"], 2, "--period must be between 1 and 86,400 seconds, got 0"),
        (["--min-gain", "1.5"], 2, "--min-gain must be at least 0 and less than 1, got 1.5"),
        (["--min-instances", "3", "--max-instances", "2"], 2, "--min-instances 3 exceeds --max-instances 2"),
        (["--metrics-port", "70000"], 2, "less than or equal to 65535"),
        (["--frequency", "3"], 2, "No such option"),
        (["nosuch"], 1, "model 'nosuch' has no published version"),
        (["tiny_len16"], 1, "model 'tiny_len16' is a runtime of 'tiny'"),
        (["--once", "--server", "1"], 3, "no server answers at 127.0.0.1:1"),
        (["--metrics-port", "0", "--host", "192.0.2.1"], 1, "--metrics-port 0 cannot be used on --host 192.0.2.1: "),
    ],
)
def test_bad_arguments_are_named(served: Served, arguments: list[str], code: int, sentence: str) -> None:
    answer = served.tidal("controller", *arguments)
    assert sentence in " ".join(answer.stderr.replace("│", " ").split())
    assert answer.returncode == code


def test_a_taken_metrics_port_is_named(served: Served) -> None:
    port = served.report["metrics"].rpartition(":")[2]
    answer = served.tidal("controller", "--metrics-port", port)
    assert answer.returncode == 1
    assert answer.stderr == f"error: --metrics-port {port} is in use: choose another port, or 0 for a free one\n"


def test_latencies_at_the_slo_add_an_instance_of_the_longest(
    repository_in: Callable[[Path], Path], tmp_path: Path
) -> None:
    repository, runtime = repository_in(tmp_path), tmp_path / "run"
    config = repository / "tiny" / "config.pbtxt"
    text = config.read_text()
    assert 'key: "slo_ms" value: { string_value: "400" }' in text
    config.write_text(text.replace('string_value: "400"', 'string_value: "0.3"'))  # no response is that fast
    with (
        serving(repository, runtime) as served,
        controller_thread(served.environment, period_s=600, min_instances=3, max_instances=4) as running,
        Traffic(served.report["grpc"], "tiny", SHORT) as traffic,
    ):
        assert running.wait_for("changed")
        assert used(served) == {16: 1, 32: 1, 64: 2}
        answered = traffic.answered
        assert until(lambda: traffic.answered > answered + 100)
    (decision,) = running.of("decision")
    assert decision["action"] == "add"
    assert decision["reason"] == "the 98th percentile of the latency reached 95 % of the SLO"
    observed = decision["observed"]
    assert observed["requests"] == observed["above_half_slo"] == observed["above_95_percent_of_slo"] > 20
    assert traffic.failures == []


def test_a_runtime_published_without_instances_serves_once_it_is_allocated(
    repository_in: Callable[[Path], Path], tmp_path: Path
) -> None:
    """As `tidal build` publishes where there are fewer devices than runtimes."""
    repository = repository_in(tmp_path)
    for length in (16, 32):
        with (repository / f"tiny_len{length}" / "config.pbtxt").open("a") as config:
            config.write('parameters { key: "deployed" value { string_value: "false" } }\n')
    with serving(repository, tmp_path / "run") as served:
        with Traffic(served.report["grpc"], "tiny", SHORT) as traffic:
            assert until(lambda: traffic.answered > 50)
            assert used(served) == {16: 0, 32: 0, 64: 1}
            answer = served.tidal("models", "allocate", "tiny", "16=1")
            assert answer.returncode == 0, answer.stderr
            assert used(served) == {16: 1, 32: 0, 64: 1}
            aim = traffic.answered + 50
            assert until(lambda: traffic.answered >= aim)
        assert traffic.failures == []


def test_without_a_server_once_says_so(tmp_path: Path) -> None:
    answer = tidal_in_process("controller", "--once", environment=environment_in(tmp_path))
    assert answer.returncode == 3
    assert "no server is running" in answer.stderr


def test_waits_for_a_restarted_server_and_follows_it_to_its_new_ports(
    repository_in: Callable[[Path], Path], tmp_path: Path
) -> None:
    repository, runtime = repository_in(tmp_path), tmp_path / "run"
    with controller_thread(environment_in(runtime), period_s=1, **FIXED) as running:
        assert running.wait_for("away")
        with serving(repository, runtime) as first:
            assert running.wait_for("connected")
            with Traffic(first.report["grpc"], "tiny", SHORT) as before:
                assert running.wait_for("changed"), running.events
            assert before.failures == []
            first_state = first.state
        assert running.wait_for("away", 2)
        with serving(repository, runtime) as second:
            assert (second.report["http"], second.state["key"]) != (first_state["http"], first_state["key"])
            assert running.wait_for("connected", 2)
            assert used(second) == {16: 2, 32: 0, 64: 1}
            with Traffic(second.report["grpc"], "tiny", LONG) as after:
                assert running.wait_for("changed", 2), running.events
                assert until(lambda: used(second) == {16: 0, 32: 0, 64: 3})
            assert after.failures == []
    assert "no server is running" in running.of("away")[0]["message"]
    assert running.of("failed") == []
    # Counters of the second server are not compared with those of the first.
    observed = [decision["observed"] for decision in running.of("decision")]
    assert all(1 <= each["seconds"] < 30 for each in observed)
    counts = [count for each in observed for count in each["queries"].values()]
    assert min(counts) >= 0
    assert 0 < sum(counts) <= before.sent + after.sent
