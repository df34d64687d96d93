"""`tidal simulate arlo`: its output, files and errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tidal.commands.simulate import simulate

TABLE = "length,static_ms,dynamic_ms\n64,10,20\n128,20,30\n256,40,50\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "table.csv"
    file.write_text(TABLE)
    return file


def call(table: Path, *arguments: str, slo: str = "400", gpus: str = "4") -> Result:
    return CliRunner().invoke(simulate, ["arlo", str(table), "--gpus", gpus, "--slo-ms", slo, *arguments])


def rows(table: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    result = call(table, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return {row["system"]: row for row in json.loads(result.stdout)}


def test_the_table_lists_the_systems_that_the_latencies_allow(table: Path) -> None:
    result = call(table, "--rate", "50", "--seconds", "5")
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()[1:5]] == ["arlo", "infaas", "st", "dt"]
    assert "requests in 5 s" in result.stdout
    table.write_text("length,static_ms\n64,10\n256,40\n")
    assert set(rows(table, "-r", "50", "-s", "5")) == {"arlo", "infaas", "st"}


def test_json_is_complete_and_repeats_with_a_seed(table: Path) -> None:
    arguments = ("-r", "80", "-s", "30", "--system", "arlo", "--period", "10", "--pattern", "bursty")
    one, again, other = rows(table, *arguments), rows(table, *arguments), rows(table, *arguments, "--seed", "1")
    assert one == again
    assert one["arlo"]["mean_ms"] != other["arlo"]["mean_ms"]
    assert one["arlo"]["mean_ms"] > 10
    assert sum(one["arlo"]["instances"].values()) == one["arlo"]["gpus"] == 4
    assert one["arlo"]["moments"][0][0] == 1.0


def test_a_published_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from tidal.commands import simulate_inputs
    from tidal.profiles import LatencyProfile

    grid = ((10.0, 15.0), (40.0, 60.0))
    profile = LatencyProfile(lengths=(64, 256), batches=(1, 2), median_ms=grid, p95_ms=grid, threads=1)
    runtimes = [SimpleNamespace(max_length=64), SimpleNamespace(max_length=256)]
    manifest = SimpleNamespace(profile=profile, runtimes=runtimes)
    monkeypatch.setattr(simulate_inputs, "load_arlo_manifest", lambda folder: manifest)
    found = rows(tmp_path, "-r", "50", "-s", "5", "--system", "arlo", "--system", "polymorphic")
    assert list(found["arlo"]["instances"]) == ["64", "256"]
    assert found["polymorphic"]["requests"] == found["arlo"]["requests"]


def test_traces(table: Path, tmp_path: Path) -> None:
    rates = tmp_path / "rates.csv.gz"
    with gzip.open(rates, "wt") as file:
        file.write("t,n\n100,20\n101,40\n103,60\n")
    found = rows(table, "--rates", str(rates), "--columns", "t,n", "--system", "arlo")
    assert found["arlo"]["seconds"] == 4
    assert found["arlo"]["requests"] == pytest.approx(120, abs=50)
    rescaled = rows(table, "--rates", str(rates), "--columns", "t,n", "--system", "arlo", "-r", "90", "--start", "1")
    assert rescaled["arlo"]["seconds"] == 3
    assert rescaled["arlo"]["requests"] == pytest.approx(270, abs=60)
    recorded = tmp_path / "requests.csv"
    recorded.write_text("time,length\n5.5,60\n7.0,900\n5.0,60\n")
    found = rows(table, "--requests", str(recorded), "--system", "arlo", "--overhead-ms", "0")
    assert (found["arlo"]["requests"], found["arlo"]["seconds"]) == (3, 3)
    assert found["arlo"]["mean_ms"] == pytest.approx((10 + 10 + 40) / 3)  # 900 tokens are cut to 256


def test_other_runtimes_scaling_failures_and_a_plot(table: Path, tmp_path: Path) -> None:
    plot = tmp_path / "run.png"
    arguments = ("-r", "60", "-s", "20", "--runtimes", "128,256", "--autoscale", "3-9", "--fail-every", "20")
    found = rows(table, *arguments, "--system", "arlo", "--system", "st", "--plot", str(plot), "--repair", "2")
    assert list(found["arlo"]["instances"]) == ["128", "256"]
    assert found["arlo"]["failed_batches"] > 0
    assert 3 <= found["st"]["gpus"] <= 9
    assert plot.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--rate is missing"),
        (("-r", "0"), "--rate must be a positive number"),
        (("-r", "1", "--runtimes", "a,b"), "--runtimes 'a,b': expected lengths"),
        (("-r", "1", "--runtimes", "512"), "of at most 256 tokens"),
        (("-r", "1", "--autoscale", "5"), "--autoscale '5': expected MIN-MAX"),
        (("-r", "1", "--autoscale", "5-2"), "min_gpus must be between 1 and max_gpus"),
        (("-r", "1", "--lengths", "x"), "lengths 'x': expected N, PERCENTILE"),
        (("-r", "1", "--lengths", "0=9,50=3,100=4"), "ascending"),
        (("-r", "1", "--columns", "a", "--rates", "none.csv"), "--columns 'a': expected two names"),
        (("-r", "1", "--rates", "none.csv"), "none.csv: cannot be read"),
        (("-r", "1", "--requests", "none.csv"), "none.csv: cannot be read"),
        (("-r", "1", "--pattern", "bursty", "--burst-factor", "9"), "burst factor must be between 1 and"),
        (("-r", "1", "--fail-every", "0"), "mean time between failures must be"),
        (("-r", "1", "--period", "0"), "allocation period must be at least 1 s"),
        (("-r", "1", "--min-gain", "-1"), "minimum gain must be at least 0 and less than 1"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(table: Path, arguments: tuple[str, ...], message: str) -> None:
    result = call(table, *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_bad_trace_files_name_the_row(table: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    for text, message in (
        ("a,b\n1,2\n", "no column 'second'; the columns are a, b"),
        ("second,requests\n1,x\n", "row 2: expected numbers"),
        ("second,requests\n", "one or more rows"),
        ("second,requests\n1,-4\n", "must not have negative numbers"),
        ("second,requests\n1,4\n", "the file has 1 seconds; 9 from second 0 were requested"),
    ):
        file.write_text(text)
        result = call(table, "--rates", str(file), "-s", "9")
        assert result.exit_code == 1
        assert message in result.stderr
    file.write_text("time,length\n1,0\n")
    assert "whole numbers of at least 1" in call(table, "--requests", str(file)).stderr


def test_wrong_usage() -> None:
    assert call(Path("x"), "-r", "1", "--plot", "x.txt").exit_code == 2
    assert call(Path("x"), "-r", "1", "--system", "other").exit_code == 2
    assert "Algorithm 1" in CliRunner().invoke(simulate, ["arlo", "--help"]).stdout
