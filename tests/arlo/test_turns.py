"""Which engines of a process run at the same time, and which goes first."""

from __future__ import annotations

import random
import threading

from tests.waiting import until
from tidal.arlo.turns import Turns


class Engine(threading.Thread):
    """Takes a turn in a thread of its own, and keeps it until told."""

    def __init__(self, turns: Turns, rank: int, threads: int, order: list[int] | None = None) -> None:
        super().__init__(daemon=True)
        self.running, self.stop = threading.Event(), threading.Event()
        self._turn = turns.taken(rank, threads)
        self._rank, self._order = rank, [] if order is None else order
        self.start()

    def run(self) -> None:
        with self._turn:
            self._order.append(self._rank)
            self.running.set()
            self.stop.wait(20)

    def end(self) -> None:
        self.stop.set()
        self.join(20)


def waiting(turns: Turns) -> int:
    return sum(turns._waiting.values())


def test_what_has_no_room_waits_and_one_thread_each_run_together() -> None:
    turns = Turns(2, longest_wait_s=30)
    one, other = Engine(turns, 0, 1), Engine(turns, 1, 1)
    assert one.running.wait(10)
    assert other.running.wait(10)
    wide = Engine(turns, 1, 2)
    assert until(lambda: waiting(turns) == 1)
    one.end()
    assert not wide.running.is_set()
    other.end()
    assert wide.running.wait(10)
    wide.end()


def test_the_highest_rank_goes_first() -> None:
    turns, order = Turns(2, longest_wait_s=30), list[int]()
    first = Engine(turns, 0, 2, order)
    assert first.running.wait(10)
    engines = []
    for count, rank in enumerate((1, 0, 2), start=1):
        engines.append(Engine(turns, rank, 2, order))
        assert until(lambda count=count: waiting(turns) == count)  # type: ignore[misc]
    for engine in (first, *engines):
        engine.stop.set()
    for engine in engines:
        engine.join(20)
    assert order == [0, 2, 1, 0]


def test_more_threads_than_cores_run_alone() -> None:
    turns = Turns(2, longest_wait_s=30)
    with turns.taken(0, 8):
        small = Engine(turns, 0, 1)
        assert until(lambda: waiting(turns) == 1)
    assert small.running.wait(10)
    small.end()


def test_an_engine_that_hangs_keeps_nobody() -> None:
    turns = Turns(2, longest_wait_s=0.05)
    hangs = Engine(turns, 1, 2)
    assert hangs.running.wait(10)
    with turns.taken(0, 2):
        assert not hangs.stop.is_set()
    hangs.end()


def test_threads_that_run_never_need_more_cores_than_there_are() -> None:
    turns, lock, draw = Turns(3, longest_wait_s=30), threading.Lock(), random.Random(0)
    busy, most, done = 0, 0, 0

    def work(rank: int, threads: int) -> None:
        nonlocal busy, most, done
        for _ in range(50):
            with turns.taken(rank, threads):
                with lock:
                    busy += threads
                    most = max(most, busy)
                with lock:
                    busy -= threads
                    done += 1

    workers = [threading.Thread(target=work, args=(draw.randrange(3), draw.randint(1, 3))) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert done == 400
    assert 1 <= most <= 3
