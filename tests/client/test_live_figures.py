"""Figures of the live view from made-up pages of metrics, compared with values computed by hand and by brute force."""

from __future__ import annotations

import bisect
import math
import re
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildtools.reference.metrics import metrics_page
from tidal_client.live.charts import CHARTS, system_of, values_of
from tidal_client.live.display import details, milliseconds, number
from tidal_client.live.figures import Window, quantile
from tidal_client.live.recorder import WINDOW_S, Recorder
from tidal_client.live.scrape import Series, increases, parse
from tidal_client.live.states import states_of

BOUNDS = (1.0, 2.0, 4.0)


def page(model: str = "m", version: int = 1, **values: object) -> str:
    """A page of metrics; a dict is the values of a label by name `label:value`, a list the buckets of a histogram."""
    lines = []
    for name, value in values.items():
        own = f'model="{model}",version="{version}"'
        if isinstance(value, list):
            bounds = ["1", "2", "4", "+Inf"]
            lines.append(f"# TYPE {name}_bucket counter")
            lines += [
                f'{name}_bucket{{{own},le="{bound}"}} {count}' for bound, count in zip(bounds, value, strict=True)
            ]
        elif isinstance(value, dict):
            lines.append(f"# TYPE {name} counter")
            for label, each in value.items():
                key, _, text = label.partition(":")
                lines.append(f'{name}{{{own},{key}="{text}"}} {each}')
        else:
            kind = "counter" if name.endswith(("_total", "_sum", "_count")) else "gauge"
            lines += [f"# TYPE {name} {kind}", f"{name}{{{own}}} {value}"]
    return "\n".join(lines) + "\n"


class TestQuantile:
    @pytest.mark.parametrize(
        ("share", "counts", "expected"),
        [
            (0.5, [0, 10, 10, 10], 1.5),  # all between 1 and 2
            (0.5, [10, 20, 20, 20], 1.0),
            (0.75, [10, 20, 20, 20], 1.5),
            (0.99, [0, 0, 100, 100], 3.98),
            (0.25, [8, 8, 8, 8], 0.25),  # the first bucket begins at 0
            (0.99, [0, 0, 0, 5], 4.0),  # above the last bound: that bound
            (0.5, [0, 0, 0, 0], None),
        ],
    )
    def test_by_hand(self, share: float, counts: list[float], expected: float | None) -> None:
        found = quantile(share, dict(zip(["1", "2", "4", "+Inf"], counts, strict=True)))
        assert found == (expected if expected is None else pytest.approx(expected))

    def test_without_buckets(self) -> None:
        assert quantile(0.5, {}) is None
        assert quantile(0.5, {"1": 5.0}) is None

    @given(st.lists(st.floats(0.001, 8), min_size=1, max_size=50), st.floats(0.01, 1))
    def test_is_in_the_bucket_of_the_true_quantile(self, values: list[float], share: float) -> None:
        counts = {str(bound): float(sum(each <= bound for each in values)) for bound in BOUNDS}
        found = quantile(share, {**counts, "+Inf": float(len(values))})
        true = sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]
        place = bisect.bisect_left(BOUNDS, true)
        lower, upper = (0.0, *BOUNDS)[place], (*BOUNDS, BOUNDS[-1])[place]
        assert found is not None
        assert lower - 1e-9 <= found <= upper + 1e-9


class TestIncreases:
    def test_of_two_readings(self) -> None:
        before, after = parse(page(tidal_arlo_tokens_total=10), 1.0), parse(page(tidal_arlo_tokens_total=25), 2.0)
        assert increases(before, after) == {Series("tidal_arlo_tokens", "m", "1"): 15.0}

    def test_a_counter_that_was_restarted_began_at_0(self) -> None:
        before, after = parse(page(tidal_arlo_tokens_total=100), 1.0), parse(page(tidal_arlo_tokens_total=7), 2.0)
        assert list(increases(before, after).values()) == [7.0]

    def test_a_new_series_began_at_0_and_a_gauge_is_none(self) -> None:
        after = parse(page(tidal_arlo_tokens_total=7, tidal_arlo_waiting_queries=3), 2.0)
        assert increases(parse("", 1.0), after) == {Series("tidal_arlo_tokens", "m", "1"): 7.0}

    def test_versions_are_counted_apart(self) -> None:
        """The end of an old version is not taken for a restart of the new one."""
        before = parse(page(version=1, tidal_arlo_tokens_total=100) + page(version=2, tidal_arlo_tokens_total=5), 1.0)
        after = parse(page(version=2, tidal_arlo_tokens_total=9), 2.0)
        assert sum(increases(before, after).values()) == 4.0

    def test_other_families_and_series_without_a_model_are_left_out(self) -> None:
        text = "# TYPE nv_gpu_utilization gauge\nnv_gpu_utilization 1\ntidal_arlo_x 1\nprocess_cpu_seconds_total 5\n"
        assert not parse(text, 0.0).values


def two(before: str, after: str, seconds: float = 2.0) -> Recorder:
    recorder = Recorder()
    recorder.add("a", parse(before, 10.0))
    recorder.add("a", parse(after, 10.0 + seconds))
    return recorder


class TestRecorder:
    def test_rates_percentiles_and_means(self) -> None:
        recorder = two(
            page(
                tidal_arlo_requests_total={"code:OK": 100, "code:INVALID_ARG": 1},
                tidal_arlo_request_seconds=[50, 50, 50, 50],
                tidal_arlo_batch_size_queries_sum=100,
                tidal_arlo_batch_size_queries_count=50,
                tidal_arlo_waiting_queries=9,
                tidal_arlo_executed_queries_total={"runtime:128": 0, "runtime:64": 0},
            ),
            page(
                tidal_arlo_requests_total={"code:OK": 130, "code:INVALID_ARG": 2},
                tidal_arlo_request_seconds=[50, 60, 60, 60],
                tidal_arlo_batch_size_queries_sum=160,
                tidal_arlo_batch_size_queries_count=70,
                tidal_arlo_waiting_queries=4,
                tidal_arlo_executed_queries_total={"runtime:128": 10, "runtime:64": 20},
            ),
        )
        (model,) = recorder.models()
        assert (model.name, model.system, model.versions) == ("m", "arlo", ("1",))
        assert model.values["throughput"] == {"OK": 15.0, "INVALID_ARG": 0.5}
        # 10 requests between 1 and 2 s.
        assert model.values["latency"] == {"p50": pytest.approx(1500.0), "p99": pytest.approx(1990.0)}
        assert model.values["batch"] == {"all": 3.0}
        assert model.values["queue"] == {"waiting": 4.0}
        assert list(model.values["runtimes"].items()) == [("≤ 64", 10.0), ("≤ 128", 5.0)]
        assert model.as_json()["summary"] == {
            "per_second": 15.5, "p50_ms": pytest.approx(1500.0), "p99_ms": pytest.approx(1990.0), "queue": 4.0,
        }  # fmt: skip

    def test_one_reading_has_gauges_only(self) -> None:
        recorder = Recorder()
        recorder.add("a", parse(page(tidal_pets_requests_total=5, tidal_pets_tasks=3), 1.0))
        (model,) = recorder.models()
        assert model.values["throughput"] == {}
        assert model.values["tasks"] == {"in the folder": 3.0}

    def test_servers_are_added_up(self) -> None:
        recorder = Recorder()
        for time_s, tokens in ((1.0, 0), (2.0, 10)):
            for server in ("a", "b"):
                text = page(tidal_flover_generated_tokens_total=tokens, tidal_flover_running_slots=2)
                recorder.add(server, parse(text, time_s))
        (model,) = recorder.models()
        assert model.values["tokens"] == {"all": 20.0}
        assert model.values["slots"] == {"running": 4.0}

    def test_older_readings_leave_the_window(self) -> None:
        recorder = Recorder()
        for second in range(20):
            recorder.add("a", parse(page(tidal_arlo_requests_total=min(second, 10)), float(second)))
        assert recorder.window().seconds == pytest.approx(WINDOW_S)
        assert recorder.models()[0].values["throughput"] == {"all": 0.0}

    def test_a_server_that_is_gone_has_no_models(self) -> None:
        recorder = two(page(tidal_arlo_requests_total=1), page(tidal_arlo_requests_total=2))
        recorder.drop("a")
        assert recorder.models() == []


class TestCharts:
    def test_every_chart_has_a_name_of_its_own(self) -> None:
        for charts in CHARTS.values():
            assert len({each.name for each in charts}) == len(charts)
            assert {"throughput", "latency", "queue", "batch"} <= {each.name for each in charts}

    def test_charts_are_of_published_families(self) -> None:
        """Every family that a chart reads is one of the reference of metrics."""
        documented = metrics_page()
        asked: set[str] = set()

        class Recording(dict[Any, Any]):
            def get(self, key: tuple[str, str], default: Any = None) -> Any:
                asked.add(key[0])
                return default

        for system in CHARTS:
            values_of(Window(1.0, Recording(), Recording()), "m", system)
        own = {re.sub("_(bucket|sum|count)$", "", name) for name in asked if name.startswith("tidal_")}
        assert len(own) > 30
        for name in own:
            # Levels of a cascade have the families of arlo.
            known = name.replace("tidal_tabi_runtime_", "tidal_arlo_")
            general = re.sub("^tidal_[a-z]+_", "tidal_{system}_", known)
            assert any(f"`{each}{end}`" in documented for each in (known, general) for end in ("", "_total")), name

    def test_system_by_families(self) -> None:
        assert system_of({"nv_inference_count", "tidal_otas_tasks"}) == "otas"
        assert system_of({"nv_inference_count"}) == ""

    def test_tritons_own_metrics(self) -> None:
        def text(count: int) -> str:
            return page(
                nv_inference_request_success_total=count,
                nv_inference_request_duration_us_total=count * 2000,
                nv_inference_count_total=count * 8,
                nv_inference_exec_count_total=count * 2,
                nv_inference_pending_request_count=3,
            ).replace("_total", "")  # Triton's counters have no suffix

        text_before, text_after = text(10).replace("gauge", "counter"), text(20).replace("gauge", "counter")
        pending = "nv_inference_pending_request_count counter"
        (model,) = two(
            text_before.replace(pending, pending.replace("counter", "gauge")),
            text_after.replace(pending, pending.replace("counter", "gauge")),
        ).models()
        assert model.values == {
            "throughput": {"all": 5.0}, "latency": {"mean": 2.0}, "queue": {"waiting": 3.0}, "batch": {"all": 4.0},
        }  # fmt: skip


class TestStates:
    REPORT: ClassVar[dict[str, Any]] = {
        "models": {
            "a": {"ready": True, "wanted": True, "versions": [2, 10], "reason": None},
            "b": {"ready": False, "wanted": True, "versions": [1], "reason": "a process ended"},
            "gone": {"ready": False, "wanted": False, "versions": [], "reason": "unloaded"},
        },
        "server_restarts": 1,
        "restarts": {"b": 2},
        "restarting": ["b"],
    }

    def test_of_one_server(self) -> None:
        found = states_of([self.REPORT], [{"models": {"a": {"engine": "openvino"}}}])
        assert list(found) == ["a", "b"]
        assert (found["a"].state, found["a"].versions, found["a"].restarts) == ("ready", ("2", "10"), 1)
        assert (found["b"].state, found["b"].restarts, found["b"].reason) == ("restarting", 3, "a process ended")
        assert found["a"].as_json()["engine"] == "openvino"

    def test_of_several_servers_the_best(self) -> None:
        up = {**self.REPORT, "models": {"b": {"ready": True, "versions": [2]}}, "restarting": [], "restarts": {}}
        found = states_of([self.REPORT, up])["b"]
        assert (found.state, found.ready_on, found.versions) == ("ready", 1, ("1", "2"))
        assert states_of([up, self.REPORT])["b"].state == "ready"


def test_details_and_numbers() -> None:
    values = {
        "tokens": {"all": 120.4},
        "slots": {"running": 3.0, "waiting": 0.0},
        "first": {},
        "queue": {"waiting": 4.0},
    }
    assert (
        details({"system": "flover", "values": values}) == "slots running 3, waiting 0 · generated tokens 120 tokens/s"
    )
    assert [number(each) for each in (None, 0.0, 1.234, 12.34, 1234.5)] == ["–", "0", "1.23", "12.3", "1,234"]
    assert [milliseconds(each) for each in (None, 1.5, 2500.0)] == ["–", "1.50 ms", "2.50 s"]
