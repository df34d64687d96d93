"""Switching between models under load, as INFaaS does in the live benchmark of OTAS."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as messages

from benchmarks.otas.live.switching import Switch, SwitchingSender, sent_to
from testing.waiting import until
from tests.benchmarks.otas_control import FakeControl
from tidal.errors import Internal


def refuse() -> None:
    raise Internal("no such model")


class FakeSender:
    """Remembers where queries went, and their time."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, str, float]] = []

    def send(self, number: int, payload: bytes) -> None:
        request = messages.ModelInferRequest.FromString(payload)
        self.sent.append((number, request.model_name, request.parameters["latency_ms"].double_param))

    def close(self) -> None:
        pass


def a_payload(latency_ms: float = 600.0) -> bytes:
    request = messages.ModelInferRequest(model_name="middle")
    request.parameters["latency_ms"].double_param = latency_ms
    request.raw_input_contents.append(b"an image")
    return bytes(request.SerializeToString())


class TestSwitching:
    @pytest.fixture
    def control(self) -> FakeControl:
        return FakeControl()

    def start(self, control: FakeControl, *, resident: bool) -> tuple[SwitchingSender, FakeSender, list[Any]]:
        self.now = 100.0
        sender, ended = FakeSender(), list[Any]()
        switch = Switch(("fast", "middle", "slow"), (100.0, 10.0, 1.0), resident)
        finish = lambda number, error: ended.append((number, str(error)))  # noqa: E731
        return SwitchingSender(switch, sender, control, finish, clock=lambda: self.now), sender, ended  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def crowd(self, switching: SwitchingSender) -> None:
        """30 queries a second until it is time to look at the rate."""
        for number in range(31):
            self.now = 100 + number / 30
            switching.send(number, a_payload())

    def test_all_resident_just_changes_the_model(self, control: FakeControl) -> None:
        switching, sender, _ = self.start(control, resident=True)
        self.crowd(switching)
        assert [model for _, model, _ in sender.sent] == ["middle"] * 30 + ["fast"]
        assert control.calls == []

    def test_queries_wait_for_the_model_that_is_loaded(self, control: FakeControl) -> None:
        switching, sender, ended = self.start(control, resident=False)
        control.loading = lambda: self.wait(0.5)
        self.crowd(switching)
        assert until(lambda: len(control.calls) == 2)
        assert sender.sent[-1] == (30, "fast", pytest.approx(100))
        assert control.calls == [("load", "fast"), ("unload", "middle")]
        assert [(each.model, each.at, each.seconds) for each in switching.loadings] == [("fast", 1.0, 0.5)]
        switching.send(31, a_payload())
        assert sender.sent[-1] == (31, "fast", 600.0)
        switching.close()
        assert ended == []

    def test_a_deadline_may_pass_meanwhile(self, control: FakeControl) -> None:
        switching, sender, ended = self.start(control, resident=False)
        control.loading = lambda: self.wait(0.7)
        self.crowd(switching)
        switching.close()
        assert len(sender.sent) == 30
        assert ended == [(30, "its deadline passed while fast was loaded")]

    def test_a_model_that_cannot_be_loaded_ends_what_waits(self, control: FakeControl) -> None:
        switching, sender, ended = self.start(control, resident=False)
        control.loading = refuse
        self.crowd(switching)
        switching.close()
        assert (len(sender.sent), ended) == (30, [(30, "fast cannot be loaded: no such model")])

    def test_only_model_and_time_of_a_request_change(self) -> None:
        found = messages.ModelInferRequest.FromString(sent_to(a_payload(), "other", 0.25) or b"")
        assert (found.model_name, found.parameters["latency_ms"].double_param) == ("other", 350.0)
        assert list(found.raw_input_contents) == [b"an image"]
