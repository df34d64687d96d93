"""The service with a fake engine that fails, and its shutdown."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from testing.waiting import Gate, until
from tests.pets.served.serving import Running, ask, running, texts
from tidal.errors import Internal, TidalError, Unavailable
from tidal.pets.policies import Fixed
from tidal.triton.keeper import ServiceKeeper


class TestFailures:
    def test_an_engine_error_fails_only_its_batch(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)

            def fail(number: int) -> None:
                if number == 0:
                    raise RuntimeError("no memory")

            run.engine.before = fail
            first, second = ask("t", "a"), ask("t", "a")
            run.ask(first)
            with pytest.raises(Internal, match="the engine failed: no memory"):
                first.wait()
            run.ask(second)
            assert second.wait()["logits"].shape == (1, 2)
            assert run.metric("service_restarts_total") == 0

    def test_a_failed_service_is_restarted_and_serves_all_tasks(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            for classes in (2, 3):
                run.tasks.add(f"t{classes}", classes)

            def end(number: int) -> None:
                if number == 1:
                    raise SystemExit("a thread ends")

            run.engine.before = end
            first, lost = ask("t2", "a"), ask("t3", "a")
            run.ask(first)
            first.wait()
            run.ask(lost)
            with pytest.raises(TidalError, match="a thread ends"):
                lost.wait()
            assert run.counts("service_restarts_total", 1)

            def classes_of(task: str) -> int:
                request = ask(task, "a")
                run.ask(request)
                try:
                    return int(request.wait()["logits"].shape[1])
                except Unavailable:  # it is still starting
                    return 0

            assert until(lambda: [classes_of(task) for task in ("t2", "t3")] == [2, 3])

    def test_after_a_runner_failed_the_other_runs_no_more_batches(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reported, go_on = threading.Event(), threading.Event()
        report = ServiceKeeper._failed

        def hold(keeper: Any, life: Any, error: BaseException) -> None:
            reported.set()
            assert go_on.wait(20)
            report(keeper, life, error)

        monkeypatch.setattr(ServiceKeeper, "_failed", hold)
        with running(tmp_path, batching=Fixed(2)) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.engine.before = gate
            run.ask(ask("t", "a"))
            assert gate.reached.wait(10)
            planned = threading.Event()
            prepare = run.schedulers[0].prepare
            run.schedulers[0].prepare = lambda: (prepare(), planned.set())  # type: ignore[assignment]
            run.ask(*(ask("t", "a", "a b") for _ in range(4)))
            assert run.counts("waiting_queries", 8)
            assert planned.wait(10)  # from here on the other runner waits

            def fail(_now: float) -> None:
                del run.schedulers[0].next_batch  # only this once
                raise RuntimeError("no plan")

            run.schedulers[0].next_batch = fail  # type: ignore[method-assign, assignment]
            gate.open()
            assert reported.wait(10)
            # The failure has not been reported yet: the other runner ends without running the waiting queries.
            assert until(lambda: sum(each.name == "p-runner" for each in threading.enumerate()) == 1)
            assert len(run.engine.batches) == 1
            between = ask("t", "a")
            run.ask(between)
            with pytest.raises(Unavailable, match="is being unloaded"):
                between.wait()
            go_on.set()
            for request in run.open[:-1]:
                with pytest.raises(Internal, match="the model failed: RuntimeError: no plan"):
                    request.wait()
            assert until(lambda: self._serves(run, "t"))
            assert [request.answers for request in run.open] == [1] * len(run.open)
        assert run.metric("service_restarts_total") == 1

    @staticmethod
    def _serves(run: Running, task: str) -> bool:
        request = ask(task, "a")
        run.ask(request)
        try:
            return request.wait() is not None
        except Unavailable:  # it is still starting
            return False

    def test_accepted_requests_are_answered_before_shutdown(self, tmp_path: Path) -> None:
        with running(tmp_path) as run:
            run.tasks.add("t", 2)
            gate = Gate()
            run.engine.adding = lambda _terms: gate(0)
            requests = [ask("t", *texts(3, 4)) for _ in range(8)]
            run.ask(*requests)
            closing = threading.Thread(target=run.keeper.close, args=(10,))
            closing.start()
            gate.open()
            closing.join(20)
            assert [request.wait()["logits"].shape for request in requests] == [(2, 2)] * 8
            assert until(lambda: all(task.removed for task in run.engine.tasks))
