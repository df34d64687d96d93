"""Measures which choices of the kernels are the fastest on this machine."""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeVar

import torch

from tidal.flover.native.library import kernel_level, library
from tidal.flover.native.matrix import Format, PackedMatrix
from tidal.flover.native.tiling import MATRIX_LEVEL, NEVER, PREFETCHES, KernelChoice, Tiling

# A weight that exceeds the caches of a core and its share of the last one: 50 MB in bfloat16.
_INPUTS, _OUTPUTS = 2048, 12_288
# Rows whose times are compared: a stream, a few, and many.
_ROWS = (1, 8, 32)
_TILES = ((32, 12), (32, 8), (48, 8), (48, 6), (64, 6), (64, 4))
_BYTE_ROWS = (1, 2, 4, 8, 16, 32)
_ROUNDS = 5
# Time after which no further round starts, for each of the three comparisons: other load makes calls slow.
_BUDGET_S = 1.5
# Rows keep 16 bits unless 8 bits save this share of the time. AMX may take that much longer with few rows: with it for
# all of them, what a generation computes does not depend on the others.
_LEAST_GAIN = 0.1
_MOST_LOSS = 0.1

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
        # Values of `matrix_rows` that are compared.
        first_rows = (NEVER, 1) if level == MATRIX_LEVEL else (NEVER,)
        prefetched = [Tiling(prefetch=name, matrix_rows=first) for name in PREFETCHES for first in first_rows]
        by_prefetch = trial.times({each: (packed[each.panel], each, 1) for each in prefetched})
        prefetch = min(by_prefetch, key=by_prefetch.__getitem__).prefetch
        tiles = {
            (panel, rows): Tiling(prefetch=prefetch, panel=panel, tile_rows=rows, matrix_rows=NEVER)
            for panel, rows in _TILES
        }
        by_vectors = trial.times(
            {(tile, rows): (packed[tile[0]], each, rows) for tile, each in tiles.items() for rows in _ROWS}
        )
        by_matrices = dict.fromkeys(by_vectors, math.inf)
        if level == MATRIX_LEVEL:
            # They do not depend on the rows of a tile of vectors.
            by_panel = trial.times(
                {
                    (panel, rows): (each, Tiling(prefetch=prefetch, panel=panel, matrix_rows=1), rows)
                    for panel, each in packed.items()
                    for rows in _ROWS
                }
            )
            by_matrices = {(tile, rows): by_panel[tile[0], rows] for tile, rows in by_vectors}
        fastest = {key: min(by_vectors[key], by_matrices[key]) for key in by_vectors}
        tile = fastest_overall(fastest, list(tiles), _ROWS)
        vectors, matrices = ({rows: times[tile, rows] for rows in _ROWS} for times in (by_vectors, by_matrices))
        matrix_rows = first_faster(vectors, matrices, -_MOST_LOSS)
        bytes_read = packed[tile[0]].bytes
        del packed
        rows = {"matrix_rows": matrix_rows, **_integer_rows(trial, loaded, tiles[tile], first_rows)}
        return KernelChoice(
            **tiles[tile].model_copy(update=rows).model_dump(),
            level=level,
            gigabytes_per_s=bytes_read / fastest[tile, 1] / 1e9,
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


def first_faster(usual: Mapping[int, float], other: Mapping[int, float], least_gain: float) -> int:
    """Return the number of rows from which on another way is faster than the usual one; `NEVER` if it is not.

    Args:
        usual: Time of the usual way by number of rows.
        other: Time of the other way by number of rows.
        least_gain: Share of the time that the other way has to save; negative: that it may add.
    """
    faster = itertools.takewhile(
        lambda rows: other[rows] <= (1 - least_gain) * usual[rows], sorted(usual, reverse=True)
    )
    return min(faster, default=NEVER)


def _integer_rows(
    trial: _Trial, loaded: ctypes.CDLL, tiling: Tiling, first_matrix_rows: Sequence[int]
) -> dict[str, int]:
    """Measure from how many rows on AMX and 8 bits are faster, over products of int8 and int4 weights.

    Returns:
        The choices by field of `Tiling`.
    """
    values, total = torch.zeros(_OUTPUTS, _INPUTS, dtype=torch.uint8), dict[tuple[int, int, int], float]()
    scales = {Format.INT8: torch.zeros(_OUTPUTS), Format.INT4: torch.zeros(_OUTPUTS, _INPUTS // 64, 2).bfloat16()}
    for format, group in ((Format.INT8, 128), (Format.INT4, 64)):
        matrix = PackedMatrix(loaded, format, values, _INPUTS, None, tiling, scales=scales[format], group=group)
        choices = {
            (matrices, first): tiling.model_copy(update={"byte_rows": first, "integer_matrix_rows": matrices})
            for matrices in first_matrix_rows
            for first in (1, NEVER)
        }
        seconds = trial.times(
            {(*key, rows): (matrix, each, rows) for key, each in choices.items() for rows in _BYTE_ROWS}
        )
        for key, value in seconds.items():
            total[key] = total.get(key, 0.0) + value

    def times(first_matrix_row: Callable[[int], int], first_byte_row: int) -> dict[int, float]:
        return {rows: total[first_matrix_row(rows), first_byte_row, rows] for rows in _BYTE_ROWS}

    matrix_rows = NEVER
    if 1 in first_matrix_rows:
        matrix_rows = first_faster(times(lambda _: NEVER, NEVER), times(lambda _: 1, NEVER), -_MOST_LOSS)

    def fastest(rows: int) -> int:
        return 1 if rows >= matrix_rows else NEVER

    byte_rows = first_faster(times(fastest, NEVER), times(fastest, 1), _LEAST_GAIN)
    return {"integer_matrix_rows": matrix_rows, "byte_rows": byte_rows}


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
