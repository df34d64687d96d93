"""The only node of `tidal controller`, without a server: what it reports, waits for, and assumes in a dry run."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import NoReturn

import pytest

from tests.controller.pages import page
from tidal.catalog.graph import PartitionedModel
from tidal.controller import host_node, local_node
from tidal.controller.agents import LocalAgents, check_answers
from tidal.controller.event_log import EventLog
from tidal.controller.fronts import ServedFront
from tidal.controller.host_journal import Outcome
from tidal.controller.host_node import DryNode, HostNode
from tidal.controller.reports import ModelProfile
from tidal.controller.series import parse_series
from tidal.errors import Internal, NotFound, Unavailable
from tidal.server.allocate import LiveFront
from tidal.server.control import ServerControl


def away() -> NoReturn:
    raise Unavailable("no server is running")


def node(kind: type[HostNode] = HostNode, *models: str) -> HostNode:
    return kind(away, models, EventLog(lambda line: None), Outcome())


def test_a_server_that_is_away_is_reported_and_ends_nothing() -> None:
    one = node(HostNode, "nosuch")
    report = one.report()
    assert (report.node, report.state, report.reason) == ("", "away", "no server is running")
    assert not one._outcome.over.is_set()


def test_a_model_without_metrics_is_waited_for_but_not_one_that_serves_other_runtimes() -> None:
    series = parse_series(page(slo_s=0.5, model="m", version=2))
    assert node()._blocked({"m": 2}, series) is None
    assert node()._blocked({"m": 2, "n": 1}, series) == "'n' has not published its metrics yet"
    assert node()._blocked({"m": 3}, series) == "'m' has not published its metrics yet"
    assert node()._blocked({}, series) is None


def test_only_named_models_are_reported() -> None:
    assert node()._controls("m")
    assert node(HostNode, "m", "n")._controls("n")
    assert not node(HostNode, "m", "n")._controls("o")


def test_a_dry_run_assumes_another_number_until_the_real_one_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = {16: 1, 32: 1, 64: 1}
    monkeypatch.setattr(local_node, "wanted_now", lambda repository, model: dict(real))
    live = LiveFront(ServerControl("127.0.0.1:1", None), "", tmp_path, PartitionedModel("m", 1, (16, 32, 64)))
    front = ServedFront(live, (1,), ModelProfile((16, 32, 64), (0.1, 0.2, 0.3), 0.4), "cpu", Fraction(1))
    one = node(DryNode)
    assert one._wanted(front) == real
    one.allocate("m", {16: 2, 32: 0, 64: 1})  # as many: the same decision follows after a period
    assert one._wanted(front) == real
    one.allocate("m", {16: 0, 32: 1, 64: 1})
    assert one._wanted(front) == {16: 0, 32: 1, 64: 1}
    real[64] = 2  # by hand
    assert one._wanted(front) == {16: 1, 32: 1, 64: 2}
    assert one._lock(tmp_path / "m") is None
    assert list(tmp_path.iterdir()) == []


def test_a_defect_of_an_agent_is_an_answer() -> None:
    class Agent:
        def report(self) -> NoReturn:
            raise ZeroDivisionError("made up")

        def plans(self) -> NoReturn:
            raise NotFound("made up too")

    agents = LocalAgents({"": Agent(), "b": Agent()})
    answers = agents.call({"": ("report",), "b": ("plans",)}, 1.0)
    assert [type(each) for each in answers.values()] == [Internal, NotFound]
    with pytest.raises(Unavailable) as error:
        check_answers(answers)
    assert str(error.value) == "the agent failed: ZeroDivisionError('made up'); b: made up too"
    assert host_node.NODE in agents.names()
