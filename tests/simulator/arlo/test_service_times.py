"""Latency tables: read, validated, and derived for other runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidal.errors import InvalidArgument
from tidal.profiles import LatencyProfile
from tidal.simulator.arlo import ServiceTimes, SystemName, from_profile, make_system, read_table

TABLE = "length,static_ms,dynamic_ms\n64,1,3\n128,2,4\n256,4,5\n"


def test_a_table_is_read(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text(TABLE)
    times = read_table(file)
    assert (times.max_lengths, times.static_s) == ((64, 128, 256), (0.001, 0.002, 0.004))
    assert times.longest == 256
    assert times.dynamic_s is not None
    assert [times.dynamic_s[n] for n in (0, 1, 64, 96, 256)] == pytest.approx([0.003, 0.003, 0.003, 0.0035, 0.005])
    file.write_text("length,static_ms\n64,1\n")
    assert read_table(file).dynamic_s is None


def test_other_runtimes_have_the_latency_of_the_next_length() -> None:
    times = ServiceTimes((64, 128, 256), (0.001, 0.002, 0.004), tuple(0.003 + n * 1e-5 for n in range(257)))
    assert times.of_runtimes((32, 64, 96, 256)).static_s == (0.001, 0.001, 0.002, 0.004)
    assert times.of_runtimes((128, 192)).dynamic_s == tuple(0.003 + n * 1e-5 for n in range(193))
    with pytest.raises(InvalidArgument, match="of at most 256 tokens"):
        times.of_runtimes((512,))


def test_service_times_from_a_profile() -> None:
    profile = LatencyProfile(
        lengths=(32, 64), batches=(1, 2), median_ms=((1.0, 1.5), (2.0, 3.0)), p95_ms=((1.0, 1.5), (2.0, 3.0)), threads=1
    )
    times = from_profile(profile, (32, 64))
    assert (times.max_lengths, times.static_s, times.profile) == ((32, 64), (0.001, 0.002), profile)
    with pytest.raises(InvalidArgument, match="dt requires latencies of dynamic shapes"):
        make_system(SystemName.DT, times, gpus=1, slo_s=1.0)
    with pytest.raises(InvalidArgument, match="one dynamic latency per length, got 2"):
        ServiceTimes((32, 64), (0.001, 0.002), (0.001, 0.002))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens,ms\n64,1\n", "expected the columns length, static_ms"),
        ("length,static_ms\n", "one or more ascending numbers of tokens, got"),
        ("length,static_ms\n64,1\n64,2\n", "must be one or more ascending"),
        ("length,static_ms\n64,x\n", "row 2: expected a number for each"),
        ("length,static_ms\n64.5,1\n", "row 2: expected a number"),
        ("length,static_ms\n64\n", "row 2"),
        ("length,static_ms\n64,2\n128,1\n", "static latencies must not fall"),
        ("length,static_ms\n64,0\n", "must be positive"),
        ("length,static_ms\n64,nan\n", "must be positive"),
        ("length,static_ms,dynamic_ms\n64,1,-1\n", "dynamic latencies must be positive"),
    ],
)
def test_bad_tables_are_refused_with_the_file_and_the_reason(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "table.csv"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=f"table.csv.*{message}"):
        read_table(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"none\.csv: cannot be read"):
        read_table(tmp_path / "none.csv")
