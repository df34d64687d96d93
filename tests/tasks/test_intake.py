"""The intake of requests with tasks: every request ends once, and every lease is released once."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from testing.requests import FakeRequest
from testing.waiting import Gate, until
from tests.tasks.intake_service import ask, load_all, serving
from tidal.errors import Internal, InvalidArgument, Unavailable


class TestReading:
    def test_requests_whose_tasks_are_in_memory_are_read_and_admitted_together_in_the_calling_thread(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(tmp_path, monkeypatch) as service:
            load_all(service, "a", "b")
            requests = [ask("a"), ask("b"), ask("a")]
            assert service.intake.accept(requests)
            assert service.calls == service.admissions == [requests]
            assert service.threads == [threading.current_thread().name]
            assert [lease and lease.handle for _, lease in service.queued] == ["a", "b", "a"]
            assert service.pins() == 3
            service.finish()
            assert service.pins() == 0

    def test_only_slow_requests_are_read_by_reader_threads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(tmp_path, monkeypatch, readers=1, slow=lambda request: "slow" in request.inputs) as service:
            load_all(service, "a")
            fast, slow = ask("a"), ask("a", slow=True)
            service.intake.accept([slow, fast])
            assert until(lambda: len(service.queued) == 2)
            assert dict(zip(service.threads, service.calls, strict=True)) == {
                threading.current_thread().name: [fast],
                "m-reader": [slow],
            }
            service.finish()

    def test_an_invalid_request_fails_alone_and_keeps_no_task(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = Gate()
        with serving(tmp_path, monkeypatch, lambda name: gate(0) if name == "b" else None) as service:
            load_all(service, "a")
            good, waiting = ask("a"), ask("b")
            bad = {
                "no text": ask("a", error=InvalidArgument("no text")),
                "could not be read: a bug": ask("a", error=ValueError("a bug")),
                "bad and loading": ask("b", error=InvalidArgument("bad and loading")),
                "unknown task 'd'": ask("d"),
                "names no task in its option 'task'; accepted: a, b, c": ask(None),
            }
            service.intake.accept([*bad.values(), good, waiting])
            for message, request in bad.items():
                with pytest.raises((InvalidArgument, Internal), match=message):
                    request.wait()
                assert request.answers == 1
            assert service.refusals() == {"input": 3, "task": 2}
            assert [request for request, _ in service.queued] == [good]
            assert service.pins() == 1
            gate.open()
            assert until(lambda: len(service.queued) == 2)
            service.finish()
            assert until(lambda: service.pins() == 0)
            assert good.answers == waiting.answers == 1

    def test_a_request_that_was_answered_before_is_not_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(tmp_path, monkeypatch) as service:
            load_all(service, "a")
            over = ask("a")
            over.fail(Unavailable("its time is over"))
            service.intake.accept([over])
            assert service.calls == service.admissions == []
            assert service.pins() == 0

    def test_a_request_that_is_answered_while_it_is_read_is_not_admitted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(tmp_path, monkeypatch) as service:
            load_all(service, "a")
            over, good = ask("a"), ask("a")
            read = service.read_one
            service.read_one = lambda request, task: (  # type: ignore[method-assign]
                over.fail(Unavailable("its time is over")) or read(request, task)
            )
            service.intake.accept([over, good])
            assert service.admissions == [[good]]
            assert service.pins() == 1
            service.finish()

    def test_tasks_are_given_back_if_reading_ends_the_thread(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(tmp_path, monkeypatch) as service:
            load_all(service, "a")
            with pytest.raises(SystemExit):
                service.intake.accept([ask("a"), ask("a", error=SystemExit("ends"))])
            assert service.pins() == 0

    def test_requests_without_a_task_are_for_the_base_if_it_is_served(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(tmp_path, monkeypatch, base=True) as service:
            load_all(service, "a")
            base, own = ask(None), ask("a")
            service.intake.accept([base, own])
            assert [(request, lease and lease.handle) for request, lease in service.queued] == [
                (base, None),
                (own, "a"),
            ]
            service.finish()


class TestLoading:
    def test_a_request_waits_for_its_task_and_others_do_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = Gate()
        with serving(tmp_path, monkeypatch, lambda name: gate(0) if name == "b" else None) as service:
            load_all(service, "a")
            slow, fast = ask("b"), ask("a")
            service.intake.accept([slow, fast])
            assert service.admissions == [[fast]]
            assert service.waiting() == 1
            gate.open()
            assert until(lambda: service.admissions == [[fast], [slow]])
            assert until(lambda: service.waiting() == 0)
            service.finish()

    def test_a_task_that_does_not_load_refuses_its_requests(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(name: str) -> None:
            raise InvalidArgument("damaged")

        with serving(tmp_path, monkeypatch, fail) as service:
            requests = [ask("a"), ask("a")]
            service.intake.accept(requests)
            for request in requests:
                with pytest.raises(InvalidArgument, match="damaged"):
                    request.wait()
            assert until(lambda: service.refusals() == {"task": 2} and service.waiting() == 0)

    def test_a_request_answered_at_its_deadline_is_not_admitted_but_counted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = Gate()
        with serving(tmp_path, monkeypatch, lambda name: gate(0)) as service:
            before, during = ask("a"), ask("a")
            before.fail(Unavailable("its time is over"))
            service.intake.accept([before, during])
            assert service.refusals() == {"deadline": 1}
            during.fail(Unavailable("its time is over"))  # while its task loads
            gate.open()
            assert until(lambda: service.refusals() == {"deadline": 2})
            assert until(lambda: service.pins() == 0)
            assert not service.queued

    def test_a_request_that_is_not_queued_gives_its_task_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(tmp_path, monkeypatch) as service:
            load_all(service, "a")
            bad, good = ask("a"), ask("a")
            service.refused = [bad]
            service.intake.accept([bad, good])
            with pytest.raises(InvalidArgument, match="refused"):
                bad.wait()
            assert service.pins() == 1
            service.finish()


class TestStop:
    def test_is_done_after_the_last_request_was_admitted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gate = Gate()
        with serving(tmp_path, monkeypatch, lambda name: gate(0)) as service:
            request = ask("a")
            service.intake.accept([request])
            service.intake.stop()
            service.intake.stop()
            assert not service.intake.accept([ask("a")])
            assert service.done == 0
            gate.open()
            assert until(lambda: service.done == 1)
            assert service.admissions == [[request]]
            service.finish()

    @pytest.mark.parametrize("seed", range(12))
    def test_every_request_ends_once_and_every_lease_is_released_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        """Several threads pass requests of all sorts, tasks load, fail and are evicted, and the intake stops."""
        draw = random.Random(seed)
        names = ("a", "b", "c", "d", "broken", "unknown", None)
        errors = (InvalidArgument("bad"), ValueError("a bug"))

        def load(name: str) -> None:
            threading.Event().wait(0.002)
            if name == "broken":
                raise InvalidArgument("damaged")

        def make() -> FakeRequest:
            error = {"error": draw.choice(errors)} if draw.random() < 0.2 else {}
            slow = {"slow": True} if draw.random() < 0.3 else {}
            return ask(draw.choice(names), **error, **slow)

        calls = [[make() for _ in range(draw.randrange(1, 6))] for _ in range(60)]
        with serving(
            tmp_path, monkeypatch, load, known=("a", "b", "c", "d", "broken"), budget=2,
            readers=draw.randrange(3), slow=lambda request: "slow" in request.inputs,
        ) as service:  # fmt: skip
            every = [request for call in calls for request in call]
            service.refused = draw.sample(every, 10)
            for request in draw.sample(every, 10):
                request.fail(Unavailable("its time is over"))
            stopped = threading.Event()
            rejected: list[FakeRequest] = []

            def send(own: Sequence[Sequence[FakeRequest]]) -> None:
                for call in own:
                    if not service.intake.accept(call):
                        rejected.extend(call)

            def finish() -> None:
                while not stopped.wait(0.001):
                    service.finish()

            threads = [threading.Thread(target=send, args=(calls[start::3],)) for start in range(3)]
            finisher = threading.Thread(target=finish)
            for thread in (*threads, finisher):
                thread.start()
            if seed % 2:
                service.intake.stop()
            for thread in threads:
                thread.join(20)
            service.intake.stop()
            assert until(lambda: service.done == 1)
            stopped.set()
            finisher.join(10)
            service.finish()
            ended = [request for request in every if request not in rejected]
            assert Counter(request.answers for request in ended) == ({1: len(ended)} if ended else {})
            assert service.waiting() == 0
            assert until(lambda: service.pins() == 0)
            service.tasks.close()
            assert service.tasks._cache.state().bytes == 0  # all were unloaded: no lease is left
