"""Work of native worker threads is complete when a call returns, also with several callers at once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tidal.flover.models.linear import NativeLinear
from tidal.flover.models.weights import Dense
from tidal.flover.native.library import library, sources
from tidal.flover.native.tiling import DEFAULT_TILING

pytestmark = pytest.mark.usefixtures("native_library")

_INPUTS, _OUTPUTS, _THREADS = 64, 960, (1, 2, 3, 5)


@pytest.fixture
def layers() -> Iterator[dict[int, NativeLinear]]:
    """The same layer, by the number of threads that run it."""
    draw = torch.Generator().manual_seed(7)
    affine = Dense(torch.randn(_OUTPUTS, _INPUTS, generator=draw), torch.randn(_OUTPUTS, generator=draw))
    before, loaded, made = torch.get_num_threads(), library(), {}
    assert loaded is not None
    for threads in _THREADS:
        torch.set_num_threads(threads)
        made[threads] = NativeLinear(affine, None, loaded, DEFAULT_TILING)
    yield made
    torch.set_num_threads(before)


def test_all_parts_are_done_when_a_call_returns(layers: dict[int, NativeLinear]) -> None:
    draw = torch.Generator().manual_seed(8)
    given = [torch.randn(count, _INPUTS, generator=draw) for count in (1, 2, 7, 33)]
    expected = [layers[1](rows) for rows in given]

    def call(caller: int) -> None:
        for turn in range(300):
            number = (caller + turn) % len(given)
            found = layers[_THREADS[turn % len(_THREADS)]](given[number])
            assert torch.equal(found, expected[number]), (caller, turn)

    call(0)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(call, range(3)))


@pytest.mark.slow
def test_threads_have_no_data_race(tmp_path: Path) -> None:
    """Run under ThreadSanitizer; each part is done once."""
    made, flags = tmp_path / "workers", ("-std=c++17", "-O1", "-g1", "-Wall", "-fsanitize=thread", "-pthread")
    files = (Path(__file__).with_name("workers.cpp"), sources() / "workers.cpp")
    subprocess.run(["g++", *flags, f"-I{sources()}", *map(str, files), "-o", str(made)], check=True)
    ran = subprocess.run([made], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "all done once\n"), ran.stderr
