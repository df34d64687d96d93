"""Which measured choices of the kernels are taken."""

from __future__ import annotations

import pytest

from tidal.flover.native import tuning
from tidal.flover.native.library import choose_kernels, kernel_level
from tidal.flover.native.tiling import NEVER, KernelChoice, Tiling


def test_the_choice_is_the_best_over_all_numbers_of_rows() -> None:
    seconds = {("a", 1): 1.0, ("a", 8): 9.0, ("b", 1): 1.2, ("b", 8): 3.0, ("c", 1): 1.3, ("c", 8): 3.3}
    assert tuning.fastest_overall(seconds, ["a", "b", "c"], (1, 8)) == "b"
    assert tuning.fastest_overall(seconds, ["a", "b", "c"], (1,)) == "a"


@pytest.mark.parametrize(
    ("narrow", "first"),
    [
        ((1.0, 1.0, 1.0), NEVER),
        ((0.5, 0.99, 0.5), 32),
        ((1.0, 0.8, 0.5), 8),
        ((0.5, 0.5, 0.5), 1),
        ((0.5, 0.5, 1.0), NEVER),
    ],
)
def test_rows_have_8_bits_where_all_larger_numbers_of_rows_gain(narrow: tuple[float, ...], first: int) -> None:
    rows = (1, 8, 32)
    wide = dict.fromkeys(rows, 1.0)
    assert tuning.first_faster(wide, dict(zip(rows, narrow, strict=True)), 0.1) == first


def test_amx_may_take_a_little_longer() -> None:
    assert tuning.first_faster({1: 1.0, 32: 1.0}, {1: 1.04, 32: 0.1}, -0.05) == 1
    assert tuning.first_faster({1: 1.0, 32: 1.0}, {1: 1.06, 32: 0.1}, -0.05) == 32


@pytest.mark.slow
def test_the_measured_choice_is_one_of_those_compared() -> None:
    choose_kernels("auto")
    choice = tuning.measure_kernels(1)
    assert isinstance(choice, KernelChoice)
    assert (choice.panel, choice.tile_rows) in tuning._TILES
    assert choice.level == kernel_level()
    assert choice is tuning.measure_kernels(1)
    assert str(choice).startswith(choice.level)


def test_choices_are_described() -> None:
    assert str(Tiling()) == "prefetch T0, panels of 48, tiles of 8 rows, 16-bit rows"
    described = str(Tiling(prefetch="none", byte_rows=4))
    assert described == "no prefetch, panels of 48, tiles of 8 rows, 8-bit rows from 4 rows on"


@pytest.mark.parametrize(
    ("level", "bf16", "integers", "words"),
    [
        ("amx", 4, 1, "amx for bf16 rows from 4 on and integer rows from 1 on"),
        ("amx", 1, NEVER, "amx for bf16 rows from 1 on"),
        ("amx", NEVER, NEVER, "amx for nothing"),
        ("avx512bf16", 1, 1, "avx512bf16"),
    ],
)
def test_the_level_is_described_with_the_rows_that_amx_multiplies(
    level: str, bf16: int, integers: int, words: str
) -> None:
    choice = KernelChoice(level=level, matrix_rows=bf16, integer_matrix_rows=integers, gigabytes_per_s=20)
    assert str(choice).startswith(f"{words}, prefetch")


def test_without_the_library_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "library", lambda: None)
    assert tuning.measure_kernels(97) is None
