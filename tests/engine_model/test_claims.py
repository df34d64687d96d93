"""Claims of processes on cores and GPUs."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tidal.engine_model.claims import CoreClaim, GpuClaim, SlotClaim, claims_folder
from tidal.errors import Unsupported
from tidal.gpus import visible_gpus

CORES = sorted(os.sched_getaffinity(0))[:2]

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")

# Claims a core on each line of its input; prints the core and the cores that its threads, old and new, may run on.
_CLAIMER = """
import os, sys, threading
from pathlib import Path
from tidal.engine_model.claims import CoreClaim

early = threading.Event()
threading.Thread(target=early.wait, daemon=True).start()
os.sched_setaffinity(0, [int(core) for core in sys.argv[2:]])  # of the main thread only
claim = CoreClaim(Path(sys.argv[1]))
for line in sys.stdin:
    if line == "release\\n":
        claim.release()
    else:
        claim.acquire()
    threading.Thread(target=early.wait, daemon=True).start()
    cores = {core for thread in os.listdir("/proc/self/task") for core in os.sched_getaffinity(int(thread))}
    print(claim.core, *sorted(cores), flush=True)
"""


class Claimer:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, what: str = "claim") -> tuple[int | None, list[int]]:
        """The claimed core, and the cores that the process's threads may run on."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        core, *cores = self.process.stdout.readline().split()
        return None if core == "None" else int(core), [int(slot) for slot in cores]


@contextmanager
def claimers(folder: Path, count: int) -> Iterator[list[Claimer]]:
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            command = [sys.executable, "-c", _CLAIMER, str(folder), *map(str, CORES)]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            processes.append(process)
        yield [Claimer(process) for process in processes]


def test_each_process_claims_another_core_and_a_killed_one_frees_it(tmp_path: Path) -> None:
    with claimers(tmp_path, 3) as (first, second, third):
        assert first.send() == (CORES[0], [CORES[0]])
        assert second.send() == (CORES[1], [CORES[1]])
        assert first.send() == (CORES[0], [CORES[0]])
        everywhere = sorted(os.sched_getaffinity(0))
        assert third.send() == (None, everywhere)
        first.process.kill()
        first.process.wait()
        assert third.send() == (CORES[0], [CORES[0]])


def test_a_core_can_be_released(tmp_path: Path) -> None:
    with claimers(tmp_path, 2) as (first, second):
        first.send()
        assert first.send("release")[0] is None
        assert second.send()[0] == CORES[0]


def test_the_folder_must_belong_to_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDAL_CLAIMS", str(tmp_path / "claims"))
    assert claims_folder().stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr("os.getuid", lambda: -1)
    with pytest.raises(Unsupported, match="not a folder of this user"):
        claims_folder()


def test_a_symbolic_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("TIDAL_CLAIMS", str(tmp_path / "link"))
    with pytest.raises(Unsupported, match="not a folder of this user"):
        claims_folder()


def test_instances_claim_different_gpus_and_share_evenly_if_there_are_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks of one process exclude each other as those of several do: each belongs to an open file."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    claims = [GpuClaim(tmp_path, ["0", "GPU-b"]) for _ in range(6)]
    taken = []
    for claim in claims[:4]:
        taken.append(claim.acquire())
        assert os.environ["CUDA_VISIBLE_DEVICES"] == taken[-1]
    assert taken == ["0", "GPU-b", "0", "GPU-b"]
    # After three releases the next claims go to the GPUs with the fewest instances.
    for claim in (claims[0], claims[1], claims[3]):
        claim.release()
    assert [claim.acquire() for claim in claims[4:]] == ["GPU-b", "0"]


def test_a_lock_that_fails_is_reported_and_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(lock: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    claim, before = SlotClaim(tmp_path, ["core0", "core1"]), os.listdir("/proc/self/fd")
    with pytest.raises(Unsupported, match="core0 cannot be locked: No locks available"):
        claim.acquire()
    assert os.listdir("/proc/self/fd") == before
    assert claim.slot is None


def test_a_lock_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    (tmp_path / "gpu-0").mkdir()
    with pytest.raises(Unsupported, match="gpu-0 cannot be locked"):
        GpuClaim(tmp_path, ["0"]).acquire()


def test_a_core_that_threads_cannot_move_to_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: int, cores: set[int]) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    claim = CoreClaim(tmp_path)
    monkeypatch.setattr("os.sched_setaffinity", refused)
    with pytest.raises(Unsupported, match=f"moved to core {CORES[0]}: Invalid argument"):
        claim.acquire()
    assert claim.core is None
    assert SlotClaim(tmp_path, [f"core{CORES[0]}"]).acquire()


def test_a_core_and_a_gpu_of_the_same_number_are_different_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert SlotClaim(tmp_path, ["core0"]).acquire()
    assert GpuClaim(tmp_path, ["0", "1"]).acquire() == "0"


@pytest.mark.parametrize(("named", "gpus"), [("", ()), ("1", ("1",)), ("GPU-a, GPU-b", ("GPU-a", "GPU-b"))])
def test_gpus_that_the_environment_names(monkeypatch: pytest.MonkeyPatch, named: str, gpus: tuple[str, ...]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus.__wrapped__() == gpus


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("ctypes.CDLL", missing)
    assert visible_gpus.__wrapped__() == ()
