"""The live part of OTAS's benchmark: what is sent, how it is judged, and a whole run on tiny models."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from benchmarks.otas.live.artefacts import BASE, LARGE, SMALL, OtasArtefacts
from benchmarks.otas.live.bounds import adaptation_gain, expected_utilities, most_earned
from benchmarks.otas.live.load import ON_THE_WAY_S, OtasLoad, make_load, schedule_of, types_of
from benchmarks.otas.live.outcome import Watch, outcome_of
from benchmarks.otas.live.repository import fixed_model, only, write_repository
from benchmarks.otas.live.rounds import OtasRun, OtasSize
from benchmarks.otas.live.run import measure
from benchmarks.otas.live.sending import Answers, sending
from benchmarks.otas.live.systems import INFAAS, PARETO, SYSTEMS, TOME, OtasBench
from benchmarks.report import Report
from testing.tiny_vision import build, random_parameters, write_source
from testing.vits import tiny_vit
from tests.benchmarks.otas_runs import ACCURACIES, TASKS, TYPES
from tests.otas.content import CONTENT
from tests.otas.policies.profiles import LINEAR
from tidal.otas.manifest import OtasManifest, load_otas_manifest
from tidal.otas.policies import ParetoPolicy
from tidal.otas.tasks import OtasProvenance, add_task
from tidal.server.child import tidal_serve
from tidal.simulator.otas import QueryTrace, QueryType, simulate
from tidal.tasks.folder import tasks_folder


class TestLoad:
    def test_the_hardest_task_takes_the_hardest_place(self) -> None:
        assert [(each.task, each.latency_s, each.utility) for each in TYPES] == [
            ("middling", 0.6, 0.3),
            ("middling", 1.0, 0.01),
            ("hard", 0.6, 1.0),
            ("hard", 1.0, 0.2),
            ("easy", 0.6, 0.3),
            ("easy", 1.0, 0.01),
        ]
        assert {each.task for each in types_of({"only": 0.5})} == {"only"}

    def test_each_image_is_sent_once_as_far_as_they_go_and_with_its_own_task(self) -> None:
        load = make_load([100.0, 0.0, 20.0], TYPES, TASKS, seed=3)
        again = make_load([100.0, 0.0, 20.0], TYPES, TASKS, seed=3)
        assert load.images == again.images
        assert load.images != make_load([100.0, 0.0, 20.0], TYPES, TASKS, seed=4).images
        for task in TASKS:
            sent = [image for image, kind in zip(load.images, load.kinds, strict=True) if TYPES[kind].task == task.name]
            assert len(set(sent[:40])) == min(40, len(sent))
            assert set(sent) <= set(task.images)
        truth = dict(
            zip(sum((task.images for task in TASKS), ()), sum((task.truth for task in TASKS), ()), strict=True)
        )
        assert [truth[image] for image in load.images] == load.truth
        with pytest.raises(ValueError, match="too slow"):
            make_load([0.0], TYPES, TASKS, seed=0)

    def test_requests_say_what_their_query_is(self) -> None:
        load = make_load([50.0], TYPES, TASKS, seed=0)
        schedule = schedule_of(load)
        assert len(schedule) == len(load)
        for number, kind in enumerate(load.kinds):
            parameters = schedule.mix[schedule.variants[number]].parameters
            assert parameters["task"] == TYPES[kind].task
            assert parameters["latency_ms"] == pytest.approx(1e3 * (TYPES[kind].latency_s - ON_THE_WAY_S))
            assert parameters["utility"] == TYPES[kind].utility
            assert schedule.inputs[number]["image"].item() == load.images[number]

    def test_a_steady_load_is_never_late(self) -> None:
        load = make_load([20.0], TYPES, TASKS, seed=0)
        steady = load.steady(100, 50.0)
        assert (len(steady), steady.seconds) == (100, pytest.approx(99 / 50))
        assert steady.latency_s.min() > 100
        assert steady.images[: len(load)] == load.images


def a_load(*queries: tuple[float, int, str]) -> OtasLoad:
    """Queries by time, place of the type, and truth."""
    times, kinds, truth = zip(*queries, strict=True)
    return OtasLoad(TYPES, np.array(times), np.array(kinds), [b""] * len(times), list(truth))


def answers_of(seconds: list[float], labels: list[str], gammas: list[int], message: str = "") -> Answers:
    errors = {"UNAVAILABLE": labels.count("")}
    return Answers(np.array(seconds), labels, np.array(gammas), errors, message, "", 0.0, ())


class TestOutcome:
    LOAD = a_load((0.0, 0, "a"), (0.1, 2, "b"), (0.2, 2, "b"), (41.5, 5, "c"), (41.6, 2, "a"))

    def test_by_hand(self) -> None:
        # Right; wrong; right but after 0.6 s; right within 1 s; evicted.
        answers = answers_of([0.5, 0.3, 0.61, 0.99, 0.2], ["a", "x", "b", "c", ""], [0, 0, -4, 2, 0])
        outcome = outcome_of(self.LOAD, answers, Watch())
        assert outcome.types == (2, 1, 1, 1)
        assert (outcome.utility, outcome.offered) == (pytest.approx(0.31), pytest.approx(0.3 + 3 + 0.01))
        assert outcome.by_interval == pytest.approx([0.3, 0.0, 0.01])  # of queries from 0, 20 and 40 s on
        assert outcome.gammas == {0: 2, -4: 1, 2: 1}
        assert outcome.answered == {
            "middling": {"0": (1, 1)},
            "hard": {"0": (1, 0), "-4": (1, 1)},
            "easy": {"2": (1, 1)},
        }
        assert outcome.accuracy == 0.75

    def test_an_end_that_is_none_of_the_four_is_said(self) -> None:
        answers = answers_of([0.1] * 5, [""] * 5, [0] * 5, "INVALID_ARG: task 'x' is not there")
        with pytest.raises(RuntimeError, match="task 'x' is not there"):
            outcome_of(self.LOAD, answers, Watch())


class TestBounds:
    GAMMAS = (-1, 0)
    KNOWN: ClassVar = {task: {-1: share / 2, 0: share} for task, share in ACCURACIES.items()}

    def test_by_hand(self) -> None:
        # Two queries of 0.6 s; one that takes 0.5 s and one at the fast γ have room in 0.7 s, with slots of 0.1 s.
        load = a_load((0.0, 2, ""), (0.0, 2, ""))
        earns = expected_utilities(load, self.KNOWN, list(self.GAMMAS))
        assert most_earned(load, earns, np.array([0.2, 0.5])) == pytest.approx(0.5 + 0.25)
        assert most_earned(load, earns, np.array([0.01, 0.02])) == pytest.approx(1.0)
        assert adaptation_gain(load, earns, 1) == 1
        assert adaptation_gain(load, earns, 0) == 2

    def test_no_policy_earns_more(self) -> None:
        trace = QueryTrace([300.0, 900.0, 700.0], [QueryType("easy", 0.6, 0.3), QueryType("hard", 1.0, 1.0)])
        queries = list(trace)
        kinds = [int(query.task == "hard") for query in queries]
        times = np.array([query.arrival for query in queries])
        load = OtasLoad(tuple(trace.types), times, np.array(kinds), [], [])
        gammas = list(LINEAR.gammas)
        earns = expected_utilities(load, LINEAR.accuracies, gammas)
        seconds = np.array([LINEAR.latency_s(gamma, LINEAR.max_batch) / LINEAR.max_batch for gamma in gammas])
        earned = simulate(ParetoPolicy(LINEAR), LINEAR, trace).utility
        assert 0.8 < earned / most_earned(load, earns, seconds) <= 1


def test_a_model_of_one_gamma_has_no_other_engine() -> None:
    manifest = OtasManifest.model_validate(CONTENT)
    for gamma in manifest.gammas:
        found = only(manifest, gamma)
        assert set(found.gammas) <= set(manifest.gammas)
        assert {0, gamma} <= set(found.gammas)
        assert found.profile.throughput(gamma) == manifest.profile.throughput(gamma)
        assert {each.path for each in found.files} <= {each.path for each in manifest.files}
        for engine in found.engines:
            assert engine in manifest.engines
    assert only(manifest, 0).gammas == (0,)


def picture(row: int) -> bytes:
    """A small one that there is once."""
    file = io.BytesIO()
    values = np.random.default_rng(row).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


IMAGES = tuple(picture(row) for row in range(40))


def artefacts(folder: Path) -> OtasArtefacts:
    """A tiny model with random tasks, which stands for all three sizes."""
    repository = folder / "repository"
    source = write_source(folder / "source", tiny_vit())
    build(repository, source, name=BASE, gammas=[-4, 0, 2], static_batches=[1], profile_seconds=0.005)
    manifest = load_otas_manifest(repository / BASE / "1")
    for task, accuracy in ACCURACIES.items():
        parameters = random_parameters(manifest, [f"{task} {row}" for row in range(3)])
        by_gamma = {gamma: accuracy + gamma / 100 for gamma in manifest.gammas}
        made = OtasProvenance(source="random numbers")
        add_task(tasks_folder(repository / BASE), task, parameters, by_gamma, manifest, made)
    for name in (SMALL, LARGE):
        shutil.copytree(repository / BASE, repository / name)
        config = repository / name / "config.pbtxt"
        config.write_text(config.read_text().replace(BASE, name))
    return OtasArtefacts(folder, repository, tuple(replace(task, images=IMAGES) for task in TASKS), "0123")


@pytest.mark.server
def test_a_load_through_the_server(tmp_path: Path) -> None:
    made = artefacts(tmp_path)
    write_repository(tmp_path / "served", made.repository)
    load = make_load([40.0] * 2, TYPES, made.tasks, seed=0)
    with tidal_serve(tmp_path / "served", "--model", fixed_model(-4)) as server, sending(server) as sender:
        bench = OtasBench(server, sender)
        # The server publishes its counters once a second: beside other work it may do so after so short a load.
        rounds = (bench.measure(TOME, load, gamma=-4) for _ in range(3))
        merged = next(each for each in rounds if each.mean_batch)
        assert merged.gammas == {-4: merged.types[0] + merged.types[1] + merged.types[2]}
        assert merged.types[0] > 0
        assert sum(merged.types) == merged.queries == len(load)
        assert merged.mean_batch is not None
        assert merged.mean_batch >= 1
        # The middle size does not sustain a query a second; after a second the fast one is loaded.
        switched = bench.measure(INFAAS, load, throughputs=(1e6, 1.0, 0.5))
        assert [model for model, _ in switched.loadings] == ["size_small"]
        assert sum(switched.types) == len(load)
        assert set(switched.gammas) == {0}
        assert (switched.mean_batch, switched.busy) == (None, None)
        present = {each.name for each in server.control.index() if each.state == "READY"}
        assert present == {fixed_model(-4)}


@pytest.mark.server
def test_a_whole_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDAL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    size = OtasSize(rounds=1, seconds=2, capacity_s=0.2, scales=(1.4,), searched=False)
    report = Report("otas", True)
    kept = measure(report, artefacts(tmp_path), size)
    assert OtasRun.read(kept).measured == len(SYSTEMS)
    assert {claim.name for claim in report.claims} == {
        "live_utility_vs_pets[1.4]", "live_utility_vs_infaas[1.4]", "live_utility_vs_infaas[1.4, resident]",
        "live_utility_vs_best_fixed[1.4]",
    }  # fmt: skip
    goals = {claim.name: float(claim.goal.split()[1]) for claim in report.claims}
    assert goals["live_utility_vs_pets[1.4]"] <= 1.18
    assert goals["live_utility_vs_best_fixed[1.4]"] <= 1.05
    (found,) = report.measured["live"]["rounds"]
    (most,) = report.measured["live"]["oracle"]["1.4"]
    assert found["capacities"]["1.4"] > 0
    assert 0 < most <= found["outcomes"]["1.4"][PARETO]["offered"]
    assert any("oracle" in str(table.title) for table in report.tables)
