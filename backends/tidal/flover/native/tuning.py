"""Measures which choices of the kernels are the fastest on this machine."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeVar

import torch

from tidal.flover.native.library import kernel_level, library
from tidal.flover.native.matrix import Format, PackedMatrix
from tidal.flover.native.tiling import NEVER, PREFETCHES, KernelChoice, Tiling

# A weight that exceeds the caches of a core and its share of the last one: 50 MB in bfloat16.
_INPUTS, _OUTPUTS = 2048, 12_288
# Rows whose times are compared: a stream, a few, and many.
_ROWS = (1, 8, 32)
_TILES = ((32, 12), (32, 8), (48, 8), (48, 6), (64, 6), (64, 4))
_BYTE_ROWS = (1, 2, 4, 8, 16, 32)
_ROUNDS = 5
# Time after which no further round starts, for each of the three comparisons: other load makes calls slow.
_BUDGET_S = 1.5
# Rows keep 16 bits unless 8 bits save this share of the time.
_LEAST_GAIN = 0.1

Key = TypeVar("Key")


def measure_kernels(threads: int) -> KernelChoice | None:
    """Measure prefetch, panels, tiles and the bits of rows, once in a process; it takes about two seconds.

    Args:
        threads: Number of threads of a product.

    Returns:
        The fastest choices; None without the native library.
    """
    loaded, level = library(), kernel_level()
    return None if loaded is None or level is None else _measured(loaded, level, threads)


@cache
def _measured(loaded: ctypes.CDLL, level: str, threads: int) -> KernelChoice:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        trial = _Trial(loaded.tidal_linear, threads)
        zeros = torch.zeros(_OUTPUTS, _INPUTS, dtype=torch.bfloat16)
        packed = {
            panel: PackedMatrix(loaded, Format.HALF, zeros, _INPUTS, None, Tiling(panel=panel))
            for panel in sorted({panel for panel, _ in _TILES})
        }
        prefetched = {name: Tiling(prefetch=name) for name in PREFETCHES}
        seconds = trial.times({name: (packed[48], each, 1) for name, each in prefetched.items()})
        prefetch = min(seconds, key=seconds.__getitem__)
        tiles = {
            (panel, rows): Tiling(prefetch=prefetched[prefetch].prefetch, panel=panel, tile_rows=rows)
            for panel, rows in _TILES
        }
        by_tile = trial.times(
            {(tile, rows): (packed[tile[0]], each, rows) for tile, each in tiles.items() for rows in _ROWS}
        )
        tile = fastest_overall(by_tile, list(tiles), _ROWS)
        bytes_read = packed[tile[0]].bytes
        del packed
        byte_rows = _byte_rows(trial, loaded, tiles[tile])
        return KernelChoice(
            **tiles[tile].model_copy(update={"byte_rows": byte_rows}).model_dump(),
            level=level,
            gigabytes_per_s=bytes_read / by_tile[tile, 1] / 1e9,
        )
    finally:
        torch.set_num_threads(before)


def fastest_overall(seconds: Mapping[tuple[Key, int], float], choices: Sequence[Key], rows: Sequence[int]) -> Key:
    """Return the choice with the lowest sum of times, each relative to the best choice for its number of rows.

    Args:
        seconds: Time by choice and number of rows.
        choices: The choices.
        rows: Numbers of rows.
    """
    best = {count: min(seconds[choice, count] for choice in choices) for count in rows}
    return min(choices, key=lambda choice: sum(seconds[choice, count] / best[count] for count in rows))


def first_faster(wide: Mapping[int, float], narrow: Mapping[int, float]) -> int:
    """Return the number of rows from which on 8 bits are faster than 16 by the least gain; `NEVER` if they are not.

    Args:
        wide: Time with 16 bits by number of rows.
        narrow: Time with 8 bits by number of rows.
    """
    faster = itertools.takewhile(
        lambda rows: narrow[rows] <= (1 - _LEAST_GAIN) * wide[rows], sorted(wide, reverse=True)
    )
    return min(faster, default=NEVER)


def _byte_rows(trial: _Trial, loaded: ctypes.CDLL, tiling: Tiling) -> int:
    """Number of rows from which on 8 bits are faster, over products of int8 and int4 weights."""
    values, total = torch.zeros(_OUTPUTS, _INPUTS, dtype=torch.uint8), dict[tuple[int, int], float]()
    scales = {Format.INT8: torch.zeros(_OUTPUTS), Format.INT4: torch.zeros(_OUTPUTS, _INPUTS // 64, 2).bfloat16()}
    for format, group in ((Format.INT8, 128), (Format.INT4, 64)):
        matrix = PackedMatrix(loaded, format, values, _INPUTS, None, tiling, scales=scales[format], group=group)
        seconds = trial.times(
            {
                (first, rows): (matrix, tiling.model_copy(update={"byte_rows": first}), rows)
                for first in (1, NEVER)
                for rows in _BYTE_ROWS
            }
        )
        for key, value in seconds.items():
            total[key] = total.get(key, 0.0) + value
    return first_faster(*({rows: total[first, rows] for rows in _BYTE_ROWS} for first in (NEVER, 1)))


class _Trial:
    """Times products with the same rows."""

    def __init__(self, run: Callable[..., None], threads: int) -> None:
        self._run, self._threads = run, threads
        self._rows, self._result = torch.ones(32, _INPUTS), torch.empty(32, _OUTPUTS)

    def times(self, cases: Mapping[Key, tuple[PackedMatrix, Tiling, int]]) -> dict[Key, float]:
        """Time cases (weight, choices, number of rows) in turn, in seconds: the shortest time of each."""
        seconds, start = dict.fromkeys(cases, float("inf")), time.perf_counter()
        for _ in range(_ROUNDS):
            if time.perf_counter() - start > _BUDGET_S:
                break
            for key, (matrix, tiling, rows) in cases.items():
                matrix.retile(tiling)
                begin = time.perf_counter()
                self._run(
                    *(matrix.address, self._threads, rows, self._rows.data_ptr(), None, 0, self._result.data_ptr())
                )
                seconds[key] = min(seconds[key], time.perf_counter() - begin)
        return seconds
