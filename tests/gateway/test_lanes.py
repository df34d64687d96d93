"""Bounded numbers of outstanding requests per model, and when refused clients should come back."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidal_client.errors import Unavailable
from tidal_gateway.errors import Refusal
from tidal_gateway.upstream.lanes import Lanes, create_lane_table


class TestLanes:
    def test_a_full_queue_of_the_model_has_the_measured_time_too(self) -> None:
        """The model refuses at once: what it refuses must not count as what it answers."""
        lanes = Lanes(1000)
        now = 1000.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: now)
            with contextlib.ExitStack() as held:
                for _ in range(60):
                    held.enter_context(lanes.lane("m"))

                def refused() -> int | None:
                    with pytest.raises(Refusal) as found, lanes.lane("m"):
                        raise Unavailable("the request was refused: max_queue_size is 60")
                    assert found.value.status == 429
                    return found.value.retry_after_s

                assert refused() == 1
                for _ in range(40):  # two answers in each of five seconds, and many refusals
                    now += 0.125
                    if int(now * 8) % 4 == 0:
                        with lanes.lane("m"):
                            pass
                    for _ in range(10):
                        refused()
                # 61 are outstanding; the half of them takes 15.25 s at two a second.
                assert refused() == 16
                with pytest.raises(Unavailable), lanes.lane("m"):
                    raise Unavailable("the deadline of 5 ms passed")

    def test_a_check_refuses_what_a_lane_would_refuse_and_counts_nothing(self) -> None:
        lanes = Lanes(2)
        lanes.check("m")
        with contextlib.ExitStack() as held:
            for _ in range(2):
                lanes.check("m")
                held.enter_context(lanes.lane("m"))
            assert lanes.full == set()
            for _ in range(3):
                with pytest.raises(Refusal, match="'m' has 2 outstanding requests"):
                    lanes.check("m")
                lanes.check("other")
            assert (lanes.outstanding(), lanes.full) == ({"m": 2}, {"m"})
        lanes.check("m")
        assert (lanes.outstanding(), lanes.full) == ({"m": 0}, set())

    def test_the_wait_does_not_hang_on_the_load_of_before(self) -> None:
        """A request a second for an hour says nothing about how fast a long queue drains."""
        lanes, now = Lanes(100), 0.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: now)
            for _ in range(3600):
                now += 1.0
                with lanes.lane("m"):
                    pass
            held = [contextlib.ExitStack() for _ in range(100)]
            for each in held:
                each.enter_context(lanes.lane("m"))
            for each in held[:50]:  # 25 a second
                now += 0.04
                each.close()
                each.enter_context(lanes.lane("m"))
            with pytest.raises(Refusal) as found, lanes.lane("m"):
                pass
            assert found.value.retry_after_s == 2
            for each in held:
                each.close()

    def test_workers_share_the_bound(self, tmp_path: Path) -> None:
        create_lane_table(tmp_path / "lanes")
        workers = [Lanes(6, tmp_path / "lanes", 3) for _ in range(3)]
        with contextlib.ExitStack() as held:
            for number in range(6):
                held.enter_context(workers[number % 3].lane("m"))
            for each in workers:
                with pytest.raises(Refusal, match="'m' has 6 outstanding requests"), each.lane("m"):
                    pass
                with each.lane("other"):
                    pass
                assert each.outstanding()["m"] == 2
        with contextlib.ExitStack() as held:
            for _ in range(6):
                held.enter_context(workers[0].lane("m"))
            with pytest.raises(Refusal), workers[1].lane("m"):
                pass

    def test_requests_of_a_killed_worker_count_no_longer(self, tmp_path: Path) -> None:
        create_lane_table(tmp_path / "lanes")
        code = (
            "import os, signal; from pathlib import Path; from tidal_gateway.upstream.lanes import Lanes\n"
            f"lane = Lanes(9, Path({str(tmp_path / 'lanes')!r}), 2).lane('m'); lane.__enter__()\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", code], check=False)
        with Lanes(1, tmp_path / "lanes", 2).lane("m"):  # in the column of the killed one
            pass
