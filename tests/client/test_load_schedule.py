"""Arrivals, lengths, inputs and mixes of the load generator."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tidal_client import InvalidArgument
from tidal_client.load import (
    RequestVariant,
    Schedule,
    bursty,
    id_inputs,
    mean_rate,
    parse_mix,
    poisson,
    read_mix,
    rescaled,
)
from tidal_client.load.arrivals import Times
from tidal_client.load.inputs import made_texts, read_texts, text_inputs
from tidal_client.load.lengths import draw_lengths
from tidal_client.load.mix import assign
from tidal_client.load.traces import read_trace


def counts(times: Times, window: float, until: float) -> Times:
    """Arrivals in each window."""
    return np.histogram(times, np.arange(0, until + window / 2, window))[0].astype(np.float64)


class TestPoisson:
    @pytest.mark.parametrize("seed", range(5))
    def test_counts_have_the_mean_and_variance_of_a_poisson_process(self, seed: int) -> None:
        rate, until = 40.0, 2000.0
        times = poisson(rate, seconds=until, seed=seed)
        assert (np.diff(times) >= 0).all()
        assert 0 <= times[0] <= times[-1] < until
        # Five standard deviations of the count, and of the variance of 2,000 counts of a Poisson law with mean 40.
        assert abs(len(times) - rate * until) < 5 * np.sqrt(rate * until)
        found = counts(times, 1.0, until)
        assert found.var() / found.mean() == pytest.approx(1.0, abs=5 * np.sqrt(2 / until))

    def test_gaps_are_exponential(self) -> None:
        gaps = np.sort(np.diff(poisson(10.0, count=20_001, seed=3)))
        expected = 1 - np.exp(-10.0 * gaps)
        ranks = np.arange(1, len(gaps) + 1) / len(gaps)
        assert np.abs(ranks - expected).max() < 1.63 / np.sqrt(len(gaps))  # Kolmogorov-Smirnov at 1 %

    def test_a_seed_determines_the_arrivals(self) -> None:
        np.testing.assert_array_equal(poisson(5, count=100, seed=1), poisson(5, count=100, seed=1))
        np.testing.assert_allclose(poisson(5, count=100, seed=1), 2 * poisson(10, count=100, seed=1))
        assert not np.array_equal(poisson(5, count=100, seed=1), poisson(5, count=100, seed=2))
        assert len(poisson(5, count=100)) == 100


class TestBursty:
    def test_rates_within_and_between_bursts(self) -> None:
        # Bursts are much longer than windows, so the counts of a window give the rate of one state.
        rate, factor, share = 100.0, 3.0, 0.2
        times = bursty(rate, burst_factor=factor, burst_s=20.0, burst_share=share, seconds=20_000.0, seed=1)
        found = counts(times, 1.0, 20_000.0)
        lull = rate * (1 - share * factor) / (1 - share)
        between = found < (lull + rate * factor) / 2
        assert found[between].mean() == pytest.approx(lull, rel=0.03)
        assert found[~between].mean() == pytest.approx(rate * factor, rel=0.03)
        assert (~between).mean() == pytest.approx(share, abs=0.05)
        assert mean_rate(times) == pytest.approx(rate, rel=0.1)

    @pytest.mark.parametrize("seed", range(3))
    def test_mean_rate_and_overdispersion(self, seed: int) -> None:
        rate, factor, share, burst, until, window = 50.0, 2.0, 0.2, 1.0, 40_000.0, 1.0
        times = bursty(rate, burst_factor=factor, burst_s=burst, burst_share=share, seconds=until, seed=seed)
        # The autocovariance of the rate decays with the sum of both switching speeds; integrated over a window it
        # gives the variance of the counts beyond Poisson's.
        speed = 1 / burst + share / ((1 - share) * burst)
        spread = rate**2 * share * (factor - (1 - share * factor) / (1 - share)) ** 2 * (1 - share)
        beyond = 2 * spread / speed**2 * (speed * window - 1 + np.exp(-speed * window))
        deviation = np.sqrt((rate + 2 * spread / speed) / until)
        assert abs(len(times) / until - rate) < 5 * deviation
        assert counts(times, window, until).var() == pytest.approx(rate * window + beyond, rel=0.08)

    def test_at_the_largest_factor_nothing_arrives_between_bursts(self) -> None:
        times = bursty(100.0, burst_factor=4.0, burst_s=10.0, burst_share=0.25, seconds=4000.0, seed=1)
        found = counts(times, 1.0, 4000.0)
        assert (found == 0).mean() == pytest.approx(0.7, abs=0.12)
        assert found[found > 100].mean() == pytest.approx(400, rel=0.1)

    def test_count_and_seed(self) -> None:
        first, second = (bursty(50, burst_factor=3, burst_s=1, burst_share=0.2, count=3000, seed=s) for s in (7, 7))
        np.testing.assert_array_equal(first, second)
        assert len(first) == 3000
        assert (np.diff(first) > 0).all()


class TestRescaling:
    def test_keeps_the_shape(self) -> None:
        times = bursty(50, burst_factor=3, burst_s=1, burst_share=0.2, count=500, seed=1) + 7
        faster = rescaled(times, 200.0)
        assert faster[0] == 0
        assert mean_rate(faster) == pytest.approx(200.0)
        np.testing.assert_allclose(np.diff(faster) / np.diff(times), mean_rate(times) / 200.0)


class TestTraces:
    def test_one_time_per_line(self, tmp_path: Path) -> None:
        file = tmp_path / "trace.txt"
        file.write_text("12.5\n12\n\n14\n20\n")
        np.testing.assert_allclose(read_trace(file), [0, 0.5, 2, 8])
        np.testing.assert_allclose(read_trace(file, start_s=1), [1, 7])
        np.testing.assert_allclose(read_trace(file, seconds=2), [0, 0.5])
        np.testing.assert_allclose(read_trace(file, count=3), [0, 0.5, 2])

    def test_csv_and_json_lines_packed_or_not(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text('t,other\n1,"x, y"\n3,z\n')
        (tmp_path / "a.tsv").write_text("t\tother\n1\tx\n3\tz\n")
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"t": 1000, "x": [1]}\n{"t": 3000}\n'))
        for name, unit in (("a.csv", 1.0), ("a.tsv", 1.0), ("a.jsonl.gz", 1e-3)):
            np.testing.assert_allclose(read_trace(tmp_path / name, column="t", unit_s=unit), [0, 2])

    def test_counts_are_spread_over_their_row(self, tmp_path: Path) -> None:
        file = tmp_path / "rate.csv"
        file.write_text("second,requests\n" + "".join(f"{s},{s % 4 * 10}\n" for s in range(100)))
        times = read_trace(file, column="second", count_column="requests")
        np.testing.assert_array_equal(counts(times, 1.0, 100.0), [s % 4 * 10 for s in range(100)])
        assert (np.diff(times) >= 0).all()
        assert len(np.unique(times)) == len(times)
        part = read_trace(file, column="second", count_column="requests", start_s=50, count=70)
        np.testing.assert_array_equal(counts(part, 1.0, 4.0), [20, 30, 0, 10])
        assert len(part) == 70

    @pytest.mark.parametrize(
        ("name", "content", "options", "message"),
        [
            ("a.txt", "1\nx\n", {}, "row 2: expected a time"),
            ("a.txt", "1\nnan\n", {}, "finite"),
            ("a.txt", "", {}, "no times"),
            ("a.csv", "t\n1\n", {}, "name of the column"),
            ("a.csv", "t\n1\n", {"column": "time"}, "no column 'time'; the columns are t"),
            ("a.csv", "t,n\n1,x\n", {"column": "t", "count_column": "n"}, "row 1"),
            ("a.csv", "t,n\n1,-1\n", {"column": "t", "count_column": "n"}, "counts of at least 0"),
            ("a.jsonl", "{\n", {"column": "t"}, "cannot be read"),
            ("a.txt.gz", "no gzip", {}, "cannot be read"),
            ("a.txt", "1\n2\n", {"start_s": 5.0}, "no arrivals in the selected part, which starts at 5 s"),
        ],
    )
    def test_refusals(self, tmp_path: Path, name: str, content: str, options: dict[str, object], message: str) -> None:
        (tmp_path / name).write_text(content)
        with pytest.raises(InvalidArgument, match=message):
            read_trace(tmp_path / name, **options)  # type: ignore[arg-type]


class TestLengths:
    def test_descriptions(self, tmp_path: Path) -> None:
        assert draw_lengths("64", 3) == [64, 64, 64]
        uniform = draw_lengths("8-11", 4000, seed=1)
        assert {n: pytest.approx(1000, abs=150) for n in (8, 9, 10, 11)} == {n: uniform.count(n) for n in set(uniform)}
        drawn = draw_lengths("0=3,50=24,98=64,100=128", 20_000, seed=2)
        assert np.percentile(drawn, [0, 50, 98, 100]) == pytest.approx([3, 24, 64, 128], abs=2)
        table = tmp_path / "lengths.csv"
        table.write_text("tokens,count\n5,3\n9,1\n")
        assert draw_lengths(str(table), 8000, seed=1).count(9) == pytest.approx(2000, abs=250)
        table.write_text("5\n9\n")
        assert set(draw_lengths(str(table), 50)) == {5, 9}

    @pytest.mark.parametrize("wrong", ["", "x", "9-8", "0", "1-2-3", "50=3", "0=3,100=2", "0=1,50=x,100=9", "/no/file"])
    def test_refusals(self, wrong: str) -> None:
        with pytest.raises(InvalidArgument, match="lengths"):
            draw_lengths(wrong, 10)


class TestInputs:
    def test_ids_and_texts_have_the_wanted_lengths(self) -> None:
        lengths = [3, 17, 1]
        ids = id_inputs(lengths, 5000, seed=1)
        assert [each["input_ids"].shape for each in ids] == [(1, 3), (1, 17), (1, 1)]
        assert all(each["input_ids"].dtype == np.int64 and (each["input_ids"] < 5000).all() for each in ids)
        assert [len(text.split()) for text in made_texts(lengths)] == lengths
        assert made_texts([40], seed=1) == made_texts([40], seed=1) != made_texts([40], seed=2)

    def test_texts_of_exact_tokens(self, tmp_path: Path) -> None:
        from tokenizers import Tokenizer

        from testing.models import make_tiny_classifier

        file = make_tiny_classifier(tmp_path) / "tokenizer.json"
        lengths = [3, 20, 64]
        texts = made_texts(lengths, file)
        assert [len(Tokenizer.from_file(str(file)).encode(text).ids) for text in texts] == lengths

    def test_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "texts"
        file.write_bytes("eins\r\n\n zwei\u2028drei\n".encode())
        texts = read_texts(file)
        assert texts == ["eins", " zwei\u2028drei"]
        assert [bytes(each["text_input"].item()).decode() for each in text_inputs(texts)] == texts


class TestMix:
    def test_one_line(self) -> None:
        mix = parse_mix("latency_ms=100:0.7, latency_ms=500 task=1 utility=2.5:0.3,:2")
        assert [v.share for v in mix] == [0.7, 0.3, 2.0]
        assert mix[0].parameters == {"latency_ms": 100.0}
        assert mix[1].parameters == {"latency_ms": 500.0, "task": "1", "utility": 2.5}
        assert [v.name for v in mix] == ["latency_ms=100", "latency_ms=500 task=1 utility=2.5", "-"]
        assert parse_mix("max_tokens=5")[0] == RequestVariant(1.0, {"max_tokens": 5})

    def test_files(self, tmp_path: Path) -> None:
        json_file, yaml_file = tmp_path / "mix.json", tmp_path / "mix.yaml"
        json_file.write_text(json.dumps([{"latency_ms": 100, "share": 0.7}, {"task": "a"}]))
        yaml_file.write_text("- {latency_ms: 100, share: 0.7}\n- task: a\n")
        expected = (RequestVariant(0.7, {"latency_ms": 100.0}), RequestVariant(1.0, {"task": "a"}))
        assert read_mix(json_file) == read_mix(yaml_file) == expected

    def test_shares(self) -> None:
        found = np.bincount(assign(parse_mix("utility=1:3,utility=2:1"), 8000, seed=1))
        assert found == pytest.approx([6000, 2000], abs=200)
        first, second = (
            Schedule(poisson(9, count=50), id_inputs([4]), parse_mix("utility=1,utility=2"), 5) for _ in "ab"
        )
        np.testing.assert_array_equal(first.variants, second.variants)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ("latency_ms", "expected name=value, got 'latency_ms'"),
            ("latency_ms=", "expected name=value"),
            ("latency=5", "'latency'; options are task"),
            ("latency_ms=soon", "option 'latency_ms': expected a number"),
            ("latency_ms=5:x", "expected a share that is a number, got 'x'"),
            ("latency_ms=5:0", "expected a share above 0"),
        ],
    )
    def test_refusals(self, wrong: str, message: str) -> None:
        with pytest.raises(InvalidArgument, match=message):
            parse_mix(wrong)

    @pytest.mark.parametrize("content", ["{", "[]", "{}", "[1]", '[{"share": "x"}]', '[{"speed": 1}]'])
    def test_wrong_files(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "mix.json").write_text(content)
        with pytest.raises(InvalidArgument, match="mix"):
            read_mix(tmp_path / "mix.json")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: poisson(0, count=3), "rate: expected a number above 0"),
        (lambda: poisson(float("nan"), count=3), "rate"),
        (lambda: poisson(1), "either a count or seconds"),
        (lambda: poisson(1, count=1, seconds=1), "either a count or seconds"),
        (lambda: poisson(1, count=0), "count"),
        (lambda: poisson(1, seconds=-1), "seconds"),
        (lambda: bursty(1, burst_factor=6, burst_s=1, burst_share=0.2, count=1), "burst factor: expected 1 to 5"),
        (lambda: bursty(1, burst_factor=2, burst_s=0, burst_share=0.2, count=1), "burst seconds"),
        (lambda: bursty(1, burst_factor=2, burst_s=1, burst_share=1.0, count=1), "burst share"),
        (lambda: rescaled(np.array([1.0]), 5), "two different times"),
        (lambda: id_inputs([0]), "lengths"),
        (lambda: id_inputs([5], 1), "vocabulary"),
        (lambda: Schedule(np.array([]), id_inputs([4])), "at least one arrival"),
        (lambda: Schedule(np.array([1.0, 0.5]), id_inputs([4])), "ascend"),
        (lambda: Schedule(np.array([-1.0]), id_inputs([4])), "ascend"),
    ],
)
def test_wrong_numbers_are_named(make: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make()  # type: ignore[operator]
