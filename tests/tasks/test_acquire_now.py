"""Acquiring tasks that are in memory, without a future."""

from __future__ import annotations

from tests.tasks.caches import Engine, cache_of, stamps, use


def test_acquire_now_gives_only_tasks_in_memory_and_pins_them() -> None:
    engine = Engine()
    with cache_of(engine, stamps("a", "b", "c"), 2) as cache:
        assert cache.acquire_now("a") is None
        assert engine.loads() == []
        use(cache, "a")
        use(cache, "b")
        lease = cache.acquire_now("a")  # now the most recently used
        assert lease is not None
        assert lease.handle == "a#0"
        lease.release()
        use(cache, "c")
        assert engine.inside() == {"a", "c"}
        lease = cache.acquire_now("a")
        assert lease is not None
        cache.update(stamps("b", "c"))
        assert cache.acquire_now("a") is None
        assert "a" in engine.inside()
        lease.release()
        assert engine.inside() == {"c"}
