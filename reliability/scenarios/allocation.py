"""The controller moves instances between runtimes as lengths shift, under load."""

from __future__ import annotations

from reliability.rows import MIN_REQUESTS, Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest
from testing.controller import Traffic, controller

# Words of a query that fits the shortest runtime, and of one that fits only the longest.
_SHORT, _LONG = 10, 50
_PHASES = (_SHORT, _LONG, _SHORT, _LONG)
_WITHIN_S = 120.0


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Alternate short and long queries until each has changed the allocation."""
    phases = _PHASES[:1] if target.quick else _PHASES
    served = target.served
    requests, failures, changed = 0, list[str](), 0
    with (
        target.load(uncounted={"split"}) as load,
        controller(served.environment, "split", "--period", "2", "--min-gain", "0") as controller_process,
    ):
        for words in phases:
            with Traffic(served.report["grpc"], "split", words) as traffic:
                if not controller_process.wait_for("changed", changed + 1, _WITHIN_S):
                    last = controller_process.of("decision")[-1:]
                    failures.append(f"no change within {_WITHIN_S:g} s of queries of {words} words: {last}")
                changed = len(controller_process.of("changed"))
            requests += traffic.sent
            failures += traffic.failures
        missing = 20 if target.quick else MIN_REQUESTS - requests - len(load.sent)
        load.wait_for(missing)
        controller_process.end()
    failures += [f"a change failed: {event}" for event in controller_process.of("failed")]
    failures += load.failures()
    what = "instances moved by the controller"
    return [none_failed(what, requests + len(load.sent), changed, failures, quick=target.quick)]
