"""The arithmetic of Flover's comparison on outcomes that were made up, and its baselines without a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.flover import systems
from benchmarks.flover.claims import best_peer, growth, make_claims, speedup
from benchmarks.flover.equality import Equality, compare
from benchmarks.flover.kept_run import FloverRun
from benchmarks.flover.load import FloverLoad, FloverLoadGenerator, constant, poisson, recorded, uniform
from benchmarks.flover.outcome import FloverOutcome, Watched, outcome_of
from benchmarks.flover.plan import FULL, QUICK, REQUESTS, MeasurementPlan, random_lengths, swept, together
from benchmarks.flover.reference import References
from benchmarks.flover.rounds import measure
from benchmarks.flover.sending import Trace
from benchmarks.flover.serving.batches import Batches
from benchmarks.flover.serving.engines import left_padded
from benchmarks.flover.serving.instances import Instances
from benchmarks.flover.serving.outbox import Ids, Outbox
from benchmarks.flover.systems import BATCHES, GENAI, INSTANCES, TIDAL, TRANSFORMERS, UNSHUFFLED, Form
from benchmarks.report import Claim
from testing.waiting import until


def made(total_s: float, *, latency_s: float = 1.0) -> FloverOutcome:
    """An outcome with this total time and latency."""
    return FloverOutcome(
        total_s=total_s,
        latencies_s=[latency_s, latency_s],
        firsts_s=[0.1, 0.1],
        spans=[(0.0, total_s), (0.0, total_s)],
        tokens=20,
        progress=[(0.1, 2), (total_s, 20)],
        calls=9,
        peak_mib=100.0,
        threads=4,
        server=0.5,
        others=0.0,
    )


def made_run(tmp_path: Path, **cases: dict[str, list[float]]) -> FloverRun:
    """A run with these total times by case and system; latencies are the same."""
    outcomes = {
        case: {system: [made(total, latency_s=total) for total in totals] for system, totals in of_case.items()}
        for case, of_case in cases.items()
    }
    return FloverRun(tmp_path / "run.json", outcomes)


# --- figures ---------------------------------------------------------------------------------------------------------


def test_an_outcomes_figures_follow_from_when_tokens_came() -> None:
    traces = [Trace(0.0, [(0.5, 1), (1.0, 1), (2.5, 2)]), Trace(1.0, [(2.0, 1), (2.5, 1)])]
    found = outcome_of(traces, Watched(calls=3, peak_mib=1.0, threads=2, server=0.5, others=0.0))
    assert found.total_s == 2.5
    assert found.latencies_s == [2.5, 1.5]
    assert found.latency_s == 2.0
    assert found.firsts_s == [0.5, 1.0]
    assert found.progress == [(0.5, 1), (1.0, 2), (2.0, 3), (2.5, 4), (2.5, 6)]
    assert found.per_second == pytest.approx(6 / 2.5)
    assert found.token_s == pytest.approx((2.0 + 0.5) / 4)  # four tokens follow a first one
    assert found.fused == pytest.approx(4 / 3)
    # One generates from 0.5 to 2.5, the other from 2.0 to 2.5: 2.5 seconds of generating in 2, of two requests.
    assert found.overlap == pytest.approx(2.5 / 2 / 2)


def test_a_requests_only_token_leaves_nothing_between_tokens() -> None:
    found = outcome_of([Trace(0.0, [(0.5, 1)])], Watched(0, 1.0, 1, 0.0, 0.0))
    assert (found.token_s, found.fused, found.overlap) == (0.0, 0.0, 1.0)


def test_speedup_is_the_median_of_the_rounds_own_ratios(tmp_path: Path) -> None:
    run = made_run(tmp_path, case={TIDAL: [1.0, 2.0, 4.0], INSTANCES: [10.0, 12.0, 16.0]})
    assert speedup(run, "case") == 6.0
    assert speedup(run, "case", GENAI) is None
    assert speedup(run, "another") is None


def test_a_peer_that_was_measured_in_fewer_rounds_is_held_to_those(tmp_path: Path) -> None:
    run = made_run(tmp_path, **{together(8): {TIDAL: [2.0, 100.0], GENAI: [3.0], TRANSFORMERS: [4.0]}})
    peer = best_peer(run, 8)
    assert peer is not None
    assert (peer.model, peer.ratio) == (GENAI, 1.5)
    assert best_peer(run, 32) is None


def test_growth_is_latency_over_that_of_one_alone(tmp_path: Path) -> None:
    run = made_run(tmp_path, **{together(1): {TIDAL: [2.0, 2.0]}, together(8): {TIDAL: [3.0, 4.0]}})
    assert growth(run, 8) == 1.75
    assert growth(run, 32) is None


def test_claims_have_their_names_and_goals(tmp_path: Path) -> None:
    run = made_run(
        tmp_path,
        **{
            together(1): {TIDAL: [1.0]},
            together(8): {TIDAL: [1.5], GENAI: [1.8]},
            together(32): {TIDAL: [5.0], GENAI: [4.0]},
            swept(0.02): {TIDAL: [10.0], INSTANCES: [60.0]},
            random_lengths(FULL.least, FULL.mosts[-1]): {TIDAL: [10.0], UNSHUFFLED: [12.0]},
        },
    )
    claims = {claim.name: claim for claim in make_claims(run, FULL, Equality(64, 63, 1, 1000, 990), 0)}
    assert {name: (claim.goal, claim.measured, claim.holds) for name, claim in claims.items()} == {
        "speedup_vs_instances[32,20ms]": (">= 5", 6.0, True),
        "vs_best_peer[8]": (">= 1.0", pytest.approx(1.2), True),
        "vs_best_peer[32]": (">= 1.0", 0.8, False),
        "latency_growth[8]": ("<= 1.6", 1.5, True),
        "latency_growth[32]": ("<= 4.5", 5.0, False),
        "shuffle_gain": (">= 1.1", 1.2, True),
        "token_equality": ("== 1.0", 1.0, True),
        "slots_lost_after_1000_cancels": ("== 0", 0, True),
    }


def test_without_what_they_are_made_of_there_are_no_claims(tmp_path: Path) -> None:
    claims: list[Claim] = make_claims(FloverRun(tmp_path / "run.json"), FULL, Equality(64, 64, 0, 10, 10), None)
    assert [claim.name for claim in claims] == ["token_equality"]


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_a_first_difference_between_all_but_equal_logits_is_a_tie() -> None:
    tokens = tuple(np.array(each) for each in ([1, 2, 3], [4, 5, 6], [7, 8, 9]))
    leads = tuple(np.array(each, np.float32) for each in ([1, 1, 1], [1, 5e-5, 1], [1, 1, 5e-5]))
    found = compare([[1, 2, 3], [4, 0, 0], [7, 0, 0]], References(tokens, tokens, leads))
    assert found == Equality(prompts=3, equal=1, ties=1, tokens=9, same=5)
    assert found.share == 0.5  # the last one differs first where the lead is clear


# --- loads -----------------------------------------------------------------------------------------------------------


def test_loads_are_made_from_their_seeds() -> None:
    assert constant(3, 0.5) == [0.0, 0.5, 1.0]
    times = poisson(32, 0.02, seed=3)
    assert times == poisson(32, 0.02, seed=3) != poisson(32, 0.02, seed=4)
    assert times[0] == 0
    assert times == sorted(times)
    assert times[-1] == pytest.approx(31 * 0.02)
    lengths = uniform(1000, 16, 64, seed=0)
    assert (min(lengths), max(lengths)) == (16, 64)
    assert uniform(4, 8, 8, seed=0) == [8] * 4
    loads = FloverLoadGenerator(vocabulary=100, prompt=5)
    one, other = (loads.make("load", [0.0, 1.0], [4, 5], seed) for seed in (1, 2))
    assert one.prompts != other.prompts
    assert {len(prompt) for prompt in one.prompts} == {5}
    assert len(one) == 2
    assert one.wanted == (4, 5)


def test_recorded_lengths_are_cut(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "azure_llm_2023").mkdir()
    with gzip.open(tmp_path / "azure_llm_2023" / "conv.csv.gz", "wt") as file:
        file.write("t,ContextTokens,GeneratedTokens\n0.0,5,1\n1.0,5,900\n2.0,5,40\n")
    assert set(recorded(200, 64, 0, tmp_path)) == {2, 40, 64}


# --- the plan --------------------------------------------------------------------------------------------------------


@pytest.fixture
def searched(tmp_path: Path) -> FloverRun:
    """A run whose forms are chosen; transformers is far slower than OpenVINO GenAI."""
    run = FloverRun(tmp_path / "run.json", peers_s={TRANSFORMERS: 5.0, GENAI: 2.0})
    run.forms = {model: Form(model, model) for model in (INSTANCES, TRANSFORMERS, GENAI)}
    run.forms[BATCHES] = systems.batches("openvino")
    return run


def test_the_first_round_measures_everything_and_others_what_claims_need(searched: FloverRun) -> None:
    plan = MeasurementPlan(FULL, FloverLoadGenerator(100), searched, None)
    first, second = ({case.name: case for case in plan.cases(turn)} for turn in (0, 1))
    assert list(second) == [together(1), together(8), together(32), swept(0.02), random_lengths(128, 512)]
    assert set(second) < set(first)
    assert list(second[swept(0.02)].systems) == [TIDAL, INSTANCES]
    assert set(first[swept(0.02)].systems) == {TIDAL, INSTANCES, TRANSFORMERS, GENAI}
    assert set(first[together(32)].systems) == {TIDAL, GENAI}
    assert set(first[together(1)].systems) == {TIDAL}
    assert second[together(8)].load.prompts != first[together(8)].load.prompts
    windows = ["window of 0.5 s", "window of 2 s", "window of 16 s", "batches of 8", "batches of 16"]
    assert list(first["constant, 500 ms"].systems) == [TIDAL, INSTANCES, *windows, GENAI]
    assert all(len(case.load) == REQUESTS for name, case in first.items() if "at once" not in name)


def test_a_quick_plan_has_what_all_claims_are_made_of(searched: FloverRun) -> None:
    names = {
        case.name
        for turn in range(QUICK.rounds)
        for case in MeasurementPlan(QUICK, FloverLoadGenerator(100), searched, None).cases(turn)
    }
    assert names == {together(1), together(8), together(32), swept(0.02), random_lengths(16, 64)}


def test_a_run_goes_on_from_its_file(searched: FloverRun) -> None:
    searched.outcomes = {"case": {TIDAL: [made(1.0), made(2.0)]}}
    searched.searched = [("for", "form", None, False), ("for", "other", 1.0, True)]
    assert searched.fact("cancels", lambda: {"slots_lost": 0}) == {"slots_lost": 0}
    found = FloverRun.open(searched.file)
    assert found == searched
    assert found.count() == 2
    assert found.fact("cancels", lambda: pytest.fail("it is kept")) == {"slots_lost": 0}


class Failing:
    """A bench of which the calls with these numbers fail; it notes what was to be run."""

    def __init__(self, *fails: int) -> None:
        self.asked: list[str] = []
        self._fails = fails

    def run(self, system: str | Form, load: FloverLoad) -> FloverOutcome:
        self.asked.append(system if isinstance(system, str) else system.model)
        if len(self.asked) in self._fails:
            raise RuntimeError("it ended")
        return made(1.0)

    def unload(self, model: str) -> None:
        assert model == GENAI


def test_what_is_kept_is_not_measured_again(searched: FloverRun) -> None:
    searched.save()
    whole: Any = Failing()
    other = FloverRun.open(searched.file)
    other.file = searched.file.with_name("other.json")
    measure(whole, other, MeasurementPlan(QUICK, FloverLoadGenerator(100), other, None))
    first: Any = Failing(4)
    with pytest.raises(RuntimeError, match="it ended"):
        measure(first, searched, MeasurementPlan(QUICK, FloverLoadGenerator(100), searched, None))
    again, rest = FloverRun.open(searched.file), Failing()
    assert again.count() == 3
    second: Any = rest
    measure(second, again, MeasurementPlan(QUICK, FloverLoadGenerator(100), again, None))
    assert first.asked[:3] + rest.asked == whole.asked


def test_a_peer_that_fails_is_left_out_from_then_on(searched: FloverRun) -> None:
    bench: Any = Failing(2)
    measure(bench, searched, MeasurementPlan(QUICK, FloverLoadGenerator(100), searched, None))
    assert bench.asked.count(GENAI) == 1
    assert searched.missing == {GENAI: "8 at once: it ended"}
    assert best_peer(searched, 8) is None


# --- baselines -------------------------------------------------------------------------------------------------------


class Sent:
    """What an outbox sent, by sender."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.outbox = Outbox(self._send, self._refuse, lambda: None)
        self._thread = threading.Thread(target=self.outbox.run)
        self._thread.start()

    def _send(self, sender: Any, tokens: list[int], finish: str) -> None:
        self.tokens.setdefault(sender, []).extend(tokens)
        if finish:
            self.ended[sender] = finish

    def _refuse(self, sender: Any, message: str) -> None:
        self.ended[sender] = message

    def close(self) -> None:
        self.outbox.close()
        self._thread.join(5)


@pytest.fixture
def sent() -> Any:
    made = Sent()
    yield made
    made.close()


class Counting:
    """An engine whose tokens count from the prompt's first id on; it notes the sizes and lengths of its batches."""

    def __init__(self) -> None:
        self.ran: list[tuple[int, int]] = []
        self.proceed: Callable[[], object] = lambda: None

    def worker(self) -> Counting:
        return self

    def generate(self, prompts: Sequence[Ids], steps: int, take: Callable[[Ids], None]) -> None:
        self.ran.append((len(prompts), steps))
        if any(prompt[0] < 0 for prompt in prompts):
            raise ValueError("no such token")
        for step in range(steps):
            self.proceed()
            take(np.array([int(prompt[0]) + step for prompt in prompts]))


def prompt(first: int) -> Ids:
    return np.array([first, 0], np.int64)


def test_tokens_wait_for_later_ones_but_the_first_and_the_end_do_not() -> None:
    parts: list[list[int]] = []
    outbox = Outbox(lambda _sender, tokens, _finish: parts.append(tokens), lambda *_: None, lambda: None)
    thread = threading.Thread(target=outbox.run)
    thread.start()
    outbox._pacer.due = time.monotonic() + 1000
    late, due = outbox.open("a", prompt(0), 4), outbox.open("b", prompt(0), 3)
    late.add(0)
    until(lambda: len(parts) == 1)
    late.add(1)
    late.add(2)
    time.sleep(0.05)
    assert parts == [[0]]
    late.add(3)
    until(lambda: len(parts) == 2)
    outbox._pacer.due = 0.0
    for token in (5, 6):
        due.add(token)
        until(lambda token=token: parts[-1] == [token])  # type: ignore[misc]
    outbox.close()
    thread.join(5)
    assert parts == [[0], [1, 2, 3], [5], [6]]


def test_an_instance_generates_for_one_request(sent: Sent) -> None:
    engine = Counting()
    system = Instances(engine, most=2)
    for name, first, wanted in (("a", 10, 3), ("b", 20, 1), ("c", -1, 5)):
        system.submit(sent.outbox.open(name, prompt(first), wanted))
    until(lambda: len(sent.ended) == 3)
    assert sent.tokens == {"a": [10, 11, 12], "b": [20]}
    assert sent.ended == {"a": "length", "b": "length", "c": "ValueError: no such token"}
    assert sorted(engine.ran) == [(1, 1), (1, 3), (1, 5)]
    assert system.calls == 2  # without those that only read prompts


def test_a_batch_is_formed_when_it_is_full_and_runs_to_its_longest(sent: Sent) -> None:
    engine = Counting()
    system = Batches(engine, most=2, window_s=None)
    for name, first, wanted in (("a", 10, 3), ("b", 20, 1), ("c", 30, 2), ("d", 40, 2)):
        system.submit(sent.outbox.open(name, prompt(first), wanted))
    until(lambda: len(sent.ended) == 4)
    system.close()
    assert engine.ran == [(2, 3), (2, 2)]
    assert sent.tokens == {"a": [10, 11, 12], "b": [20], "c": [30, 31], "d": [40, 41]}
    assert system.calls == 3


def test_a_window_takes_who_came_until_it_closes_or_the_batch_is_full(sent: Sent) -> None:
    engine = Counting()
    system = Batches(engine, most=3, window_s=0.02)
    system.submit(sent.outbox.open("alone", prompt(10), 2))
    until(lambda: "alone" in sent.ended)
    begun, proceed = threading.Event(), threading.Event()
    engine.proceed = lambda: (begun.set(), proceed.wait(5))
    system.submit(sent.outbox.open("runs", prompt(10), 1))
    assert begun.wait(5)
    for name in "abcd":  # they come while a batch runs
        system.submit(sent.outbox.open(name, prompt(20), 1))
    proceed.set()
    until(lambda: len(sent.ended) == 6)
    system.close()
    assert engine.ran == [(1, 2), (1, 1), (3, 1), (1, 1)]


def test_prompts_are_padded_before_their_first_token() -> None:
    ids, mask = left_padded([np.array([5]), np.array([6, 7, 8])])
    assert ids.tolist() == [[0, 0, 5], [6, 7, 8]]
    assert mask.tolist() == [[0, 0, 1], [1, 1, 1]]
