"""The cache of tasks in memory: its budget, tasks in use, and futures that always complete."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for

import pytest

from testing.waiting import until
from tests.tasks.caches import SIZE, Engine, Task, cache_of, stamps, task, use
from tidal.errors import Internal, InvalidArgument, Unavailable
from tidal.tasks.cache import TaskCache
from tidal.tasks.lease import Lease


class TestUsing:
    def test_loads_once_and_keeps(self) -> None:
        engine = Engine()
        with cache_of(engine, stamps("a", "b"), 2) as cache:
            assert cache.state().resident == 0
            for name in ("a", "b", "a", "b"):
                use(cache, name)
            assert engine.loads() == ["a", "b"]
            assert (cache.state().resident, cache.state().bytes, cache.state().known) == (2, 2 * SIZE, 2)
        assert not engine.loaded

    def test_completes_at_once_for_a_task_in_memory(self) -> None:
        with cache_of(Engine(), stamps("a"), 1) as cache:
            use(cache, "a")
            future = cache.acquire("a")
            assert future.done()
            future.result().release()

    def test_concurrent_requests_share_one_load(self) -> None:
        engine, go = Engine(), threading.Event()

        def read(name: str) -> Task:
            go.wait(10)
            return task(name)

        with cache_of(engine, stamps("a"), 1, read) as cache:
            waiting = [cache.acquire("a") for _ in range(20)]
            assert not any(future.done() for future in waiting)
            go.set()
            handles = {future.result(10).handle for future in waiting}
            assert handles == {"a#0"}
            for future in waiting:
                future.result().release()

    def test_an_unknown_name_is_refused_with_a_suggestion(self) -> None:
        with cache_of(Engine(), stamps("mood", "topic"), 1) as cache:
            with pytest.raises(InvalidArgument, match="unknown task 'moood': did you mean 'mood'"):
                cache.acquire("moood")
            assert (cache.knows("mood"), cache.knows("moood"), cache.names()) == (True, False, ["mood", "topic"])

    def test_releasing_twice_counts_once(self) -> None:
        engine = Engine()
        with cache_of(engine, stamps("a", "b"), 1) as cache:
            first, second = cache.acquire("a").result(10), cache.acquire("a").result(10)
            first.release()
            first.release()
            pending = cache.acquire("b")
            assert engine.inside() == {"a"}  # the second lease still holds it
            second.release()
            pending.result(10).release()

    def test_a_cancelled_request_holds_no_task(self) -> None:
        engine, go = Engine(), threading.Event()

        def read(name: str) -> Task:
            go.wait(10)
            return task(name)

        with cache_of(engine, stamps("a", "b"), 1, read) as cache:
            assert cache.acquire("a").cancel()
            go.set()
            assert until(lambda: engine.inside() == {"a"})
            use(cache, "b")
            assert until(lambda: engine.inside() == {"b"})


class TestBudget:
    def test_the_least_recently_used_task_is_evicted(self) -> None:
        engine = Engine()
        with cache_of(engine, stamps("a", "b", "c"), 2) as cache:
            for name in ("a", "b", "a", "c"):
                use(cache, name)
            assert engine.inside() == {"a", "c"}
            assert cache.state().evictions == 1

    def test_a_task_in_use_is_not_evicted(self) -> None:
        engine = Engine()
        with cache_of(engine, stamps("a", "b", "c"), 2) as cache:
            held = cache.acquire("a").result(10)
            use(cache, "b")
            use(cache, "c")
            assert engine.inside() == {"a", "c"}
            held.release()

    def test_a_request_waits_while_all_memory_is_in_use(self) -> None:
        engine = Engine()
        with cache_of(engine, stamps("a", "b"), 1) as cache:
            held = cache.acquire("a").result(10)
            pending = cache.acquire("b")
            wait_for([pending], 0.05)
            assert not pending.done()
            held.release()
            pending.result(10).release()
            assert engine.inside() == {"b"}

    def test_a_task_that_is_always_in_use_does_not_block_others(self) -> None:
        """A request for a task that is being evicted waits behind the request that needs its memory."""
        engine = Engine()
        with cache_of(engine, stamps("a", "b"), 1) as cache:
            held = cache.acquire("a").result(10)
            other = cache.acquire("b")
            assert until(lambda: cache.state().resident == 0)
            again = cache.acquire("a")
            assert not again.done()
            held.release()
            other.result(10).release()
            again.result(10).release()
            assert engine.loads() == ["a", "b", "a"]

    def test_a_task_larger_than_the_budget_is_refused(self) -> None:
        with cache_of(Engine(), stamps("a"), 1, lambda name: task(name, 2 * SIZE)) as cache:
            with pytest.raises(InvalidArgument, match="task 'a' takes 80 bytes in memory, the model's budget"):
                cache.acquire("a").result(10)
            assert cache.state().bytes == 0

    def test_a_large_task_evicts_several(self) -> None:
        engine = Engine()
        sizes = {"a": SIZE, "b": SIZE, "c": SIZE, "large": 2 * SIZE}
        with cache_of(engine, stamps(*sizes), 3, lambda name: task(name, sizes[name])) as cache:
            for name in ("a", "b", "c", "large"):
                use(cache, name)
            assert engine.inside() == {"c", "large"}


class TestFailing:
    def test_to_read_fails_all_requests_until_the_files_change(self) -> None:
        engine, reads, go = Engine(), [0], threading.Event()

        def read(name: str) -> Task:
            reads[0] += 1
            go.wait(10)
            if reads[0] == 1:
                raise InvalidArgument("it is damaged")
            return task(name)

        with cache_of(engine, stamps("a"), 1, read) as cache:
            waiting = [cache.acquire("a") for _ in range(3)]
            go.set()
            for future in waiting:
                with pytest.raises(InvalidArgument, match="it is damaged"):
                    future.result(10)
            with pytest.raises(InvalidArgument, match="it is damaged"):
                cache.acquire("a").result(10)
            cache.update(stamps("a"))
            with pytest.raises(InvalidArgument, match="it is damaged"):
                cache.acquire("a").result(10)
            assert (reads[0], cache.state().failures) == (1, 1)
            cache.update(stamps("a", version=1))
            use(cache, "a")

    def test_to_load_frees_the_reserved_memory(self) -> None:
        def load(found: Task) -> str:
            if found.name == "a":
                raise MemoryError("too much")
            return Engine.load(engine, found)

        engine = Engine()
        with cache_of(engine, stamps("a", "b"), 1, load=load) as cache:
            with pytest.raises(Internal, match="task 'a' could not be loaded: MemoryError: too much"):
                cache.acquire("a").result(10)
            use(cache, "b")  # the memory of the failed load is free

    def test_to_unload_frees_the_memory(self) -> None:
        def unload(_handle: str) -> None:
            raise RuntimeError("no")

        cache = TaskCache(task, Engine().load, unload, SIZE)
        cache.update(stamps("a", "b"))
        use(cache, "a")
        use(cache, "b")
        cache.close()


class TestChanging:
    def test_a_removed_task_is_unknown_and_unloaded_after_its_last_use(self) -> None:
        engine = Engine()
        with cache_of(engine, stamps("a", "b"), 2) as cache:
            held = cache.acquire("a").result(10)
            use(cache, "b")
            cache.update({})
            with pytest.raises(InvalidArgument, match="unknown task 'a'"):
                cache.acquire("a")
            assert engine.inside() == {"a"}
            held.release()
            assert not engine.inside()

    def test_a_changed_task_is_reloaded_while_the_old_one_is_in_use(self) -> None:
        engine = Engine()
        with cache_of(engine, stamps("a"), 2) as cache:
            held = cache.acquire("a").result(10)
            cache.update(stamps("a", version=1))
            with cache.acquire("a").result(10) as lease:
                assert lease.handle != held.handle
            held.release()
            assert until(lambda: len(engine.loaded) == 1)

    def test_a_task_that_changes_while_it_loads_is_reloaded(self) -> None:
        engine, go = Engine(), threading.Event()

        def read(name: str) -> Task:
            go.wait(10)
            return task(name)

        with cache_of(engine, stamps("a"), 2, read) as cache:
            first = cache.acquire("a")
            cache.update(stamps("a", version=1))
            second = cache.acquire("a")
            go.set()
            assert first.result(10).handle != second.result(10).handle
            first.result().release()
            second.result().release()
            assert until(lambda: len(engine.loaded) == 1)


class TestClosing:
    def test_fails_waiting_requests_and_does_not_block(self) -> None:
        engine = Engine()
        with cache_of(engine, stamps("a", "b", "c"), 1) as cache:
            held = cache.acquire("a").result(10)
            waiting = [cache.acquire("b"), cache.acquire("c"), cache.acquire("b")]
            cache.close()
            for future in waiting:
                with pytest.raises(Unavailable, match="the model is being unloaded"):
                    future.result(10)
            with pytest.raises(Unavailable):
                cache.acquire("a")
            assert engine.inside() == {"a"}
            held.release()
            assert not engine.inside()


@pytest.mark.parametrize("seed", range(3))
def test_concurrent_use_keeps_the_budget_and_completes(seed: int) -> None:
    """Ten tasks share memory for three while tasks are removed, added again, changed and fail."""
    engine, names = Engine(), [f"t{number}" for number in range(10)]
    budget, over = 3 * SIZE, []

    def read(name: str) -> Task:
        if random.random() < 0.05:
            raise InvalidArgument("by chance")
        return task(name, SIZE if random.random() < 0.8 else 2 * SIZE)

    def load(found: Task) -> str:
        handle = engine.load(found)
        with engine.lock:
            if sum(engine.loaded.values()) > budget:
                over.append(dict(engine.loaded))
        return handle

    cache = TaskCache(read, load, engine.unload, budget, loaders=3)
    cache.update(stamps(*names))
    answers: list[str] = []

    def query(draw: random.Random) -> None:
        for _ in range(60):
            name = draw.choice(names)
            try:
                future: Future[Lease[str]] = cache.acquire(name)
                if draw.random() < 0.1 and future.cancel():
                    answers.append("cancelled")
                    continue
                lease = future.result(30)
            except InvalidArgument as error:
                answers.append(str(error))
                continue
            with engine.lock:
                engine.in_use[lease.handle] = engine.in_use.get(lease.handle, 0) + 1
                if lease.handle not in engine.loaded:
                    engine.problems.append(f"{lease.handle} is not loaded")
            threading.Event().wait(draw.random() * 0.002)
            with engine.lock:
                engine.in_use[lease.handle] -= 1
            lease.release()
            answers.append("answered")

    def change(draw: random.Random, stop: threading.Event) -> None:
        version = 0
        while not stop.wait(0.002):
            version += 1
            kept = draw.sample(names, 8)
            known = stamps(*kept) | stamps(*kept[:2], version=version)
            cache.update(known)

    stop = threading.Event()
    threads = [threading.Thread(target=query, args=(random.Random(seed * 100 + each),)) for each in range(8)]
    changer = threading.Thread(target=change, args=(random.Random(seed), stop))
    for thread in (*threads, changer):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    changer.join()
    assert len(answers) == 8 * 60
    assert answers.count("answered") > 100
    assert not over
    assert not engine.problems
    cache.close()
    assert not engine.loaded
    assert cache.state().bytes == 0
