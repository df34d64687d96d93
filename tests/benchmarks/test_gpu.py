"""The visit of a GPU: every step runs on a CPU with tiny sizes, and one that hangs or crashes stops no other."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from benchmarks.gpu import __main__ as visit
from benchmarks.gpu.document import NOT_MEASURED, as_text, document
from benchmarks.gpu.encoder import TINY, batch_of, make_encoder
from benchmarks.gpu.machine import LIBRARIES, describe_machine, install_carried, library, missing
from benchmarks.gpu.plot import draw
from benchmarks.gpu.recording import Record, Setting
from benchmarks.gpu.running import ROOT, StepResult, run_step
from benchmarks.gpu.steps import GOALS, STEPS, Step
from testing.waiting import until
from tidal.engines import available_kinds

pytestmark = pytest.mark.slow

RUN_HERE = [step.name for step in STEPS if not missing(step.requires) and step.name != "gpu_tests"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that the steps share, in their order, as in a visit."""
    return tmp_path_factory.mktemp("visit")


@pytest.mark.parametrize("name", RUN_HERE)
def test_every_step_runs_on_a_cpu(folder: Path, name: str) -> None:
    record = Record(folder / f"{name}.json")
    importlib.import_module(f"benchmarks.gpu.{name}").measure(Setting(folder, dry_run=True), record)
    assert "failed cases" not in record.measured
    assert record.tables
    assert json.loads(record.file.read_text())["measured"] == json.loads(json.dumps(record.measured))


def test_all_steps_that_need_no_other_library_are_run_here() -> None:
    left = {step.name for step in STEPS} - set(RUN_HERE) - {"gpu_tests"}
    assert left == (set() if "tensorrt" in available_kinds() else {"plans"})


def test_each_goal_belongs_to_a_step() -> None:
    assert {goal.step for goal in GOALS} <= {step.name for step in STEPS}
    assert len({goal.name for goal in GOALS}) == len(GOALS)


def test_a_visit_reports_the_tests_that_were_skipped_and_measures_no_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert visit.main(["--dry-run", "--out", str(tmp_path), "--steps", "gpu_tests"]) == 0
    results = json.loads((tmp_path / "gpu.json").read_text())
    (name, step), *others = results["measured"].items()
    assert (name, step["status"], others) == ("gpu_tests", "done", [])
    tests = step["measured"]["tests"]
    assert sum(tests.values()) > 10
    assert all(claim["measured"] is None for claim in results["claims"])
    assert NOT_MEASURED in capsys.readouterr().out


def child(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_step_that_hangs_is_killed_with_what_it_started_and_keeps_what_it_recorded(tmp_path: Path) -> None:
    code = (
        "import json, subprocess, time, pathlib; p = subprocess.Popen(['sleep', '600']);"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(p.pid));"
        f"pathlib.Path({str(tmp_path / 'hung.json')!r}).write_text(json.dumps({{'measured': {{'a': 1}}}}));"
        "time.sleep(600)"
    )
    result = run_step(child(code), "hung", tmp_path, 3.0)
    assert result.status == "timed out"
    assert result.reason == "not finished after 3 s"
    assert result.measured == {"a": 1}
    assert until(lambda: _ended(int((tmp_path / "pid").read_text())))


def test_a_step_that_crashes_is_reported_with_its_last_line(tmp_path: Path) -> None:
    result = run_step(child("import os; print('CUDA error', flush=True); os.abort()"), "crashed", tmp_path, 60.0)
    assert result.status == "failed"
    assert "CUDA error" in result.reason


def test_an_old_record_is_not_taken_for_that_of_a_crashed_step(tmp_path: Path) -> None:
    (tmp_path / "again.json").write_text('{"measured": {"old": 1}}')
    assert run_step(child("raise SystemExit(3)"), "again", tmp_path, 60.0).measured == {}


def test_the_rest_goes_on_and_results_are_written_after_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = tuple(Step(name, name, 60.0, ()) for name in ("first", "second", "third"))
    written: list[list[str]] = []

    def run(command: list[str], name: str, folder: Path, limit_s: float) -> StepResult:
        if (folder / "gpu.json").exists():
            written.append(list(json.loads((folder / "gpu.json").read_text())["measured"]))
        return StepResult("failed", reason="crashed") if name == "second" else StepResult("done")

    monkeypatch.setattr(visit, "STEPS", steps)
    monkeypatch.setattr(visit, "run_step", run)
    assert visit.main(["--dry-run", "--out", str(tmp_path)]) == 1
    assert written == [["first"], ["first", "second"]]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("third")] == ["third"]


def test_steps_are_skipped_with_the_reason() -> None:
    machine: dict[str, object] = {"gpus": []}
    lacking = Step("a", "a", 60.0, ("no_such_module",))
    assert visit._run(lacking, Path(), 1e9, machine, dry_run=True).reason == "not installed: no_such_module"
    without_gpu = visit._run(Step("a", "a", 60.0, ()), Path(), 1e9, machine, dry_run=False)
    assert (without_gpu.status, "--dry-run" in without_gpu.reason) == ("skipped", True)
    late = visit._run(Step("a", "a", 60.0, ()), Path(), 0.0, machine, dry_run=True)
    assert (late.status, "--minutes" in late.reason) == ("skipped", True)


def test_claims_that_were_measured_are_compared_with_their_goals() -> None:
    results = {
        "tasks": StepResult("timed out", claims={"gpu_pets_vs_seqs[32]": 1.7}),
        "live_arlo": StepResult("done", claims={"gpu_arlo_mean_vs_dt[90]": 0.9, "gpu_arlo_mean_vs_dt[40]": 0.5}),
    }
    content = document(describe_machine(), results, dry_run=False)
    holds = {claim["name"]: claim["holds"] for claim in content["claims"]}
    assert holds["gpu_pets_vs_seqs[32]"] is True
    assert holds["gpu_arlo_mean_vs_dt[90]"] is False
    assert holds["gpu_static_vs_dynamic"] is None
    text = as_text(content)
    assert text.count(NOT_MEASURED) == len(GOALS) - 2


def test_libraries_are_detected_without_importing_them() -> None:
    assert library("torch") is not None
    assert library("no_such_module") is None
    assert library("no_such_package.module") is None
    found = describe_machine()
    assert set(found["absent"]) == {name for name in LIBRARIES if library(name) is None}


def test_what_watches_the_steps_needs_the_standard_library_only() -> None:
    """On a bare machine the steps must be reported as skipped, and not fail before the first result."""
    names = ("torch", "numpy", "pydantic", "tidal")
    code = f"import benchmarks.gpu.__main__, sys; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def _ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_rows_without_padding_have_the_answers_of_padded_rows() -> None:
    module, lengths = make_encoder(TINY), [5, 64, 1, 17]
    batch = batch_of(TINY, lengths)
    with torch.no_grad():
        padded = module(**{name: torch.from_numpy(array) for name, array in batch.items()})["logits"]
        ids = np.concatenate([row[:length] for row, length in zip(batch["input_ids"], lengths, strict=True)])
        positions = np.concatenate([np.arange(length) for length in lengths])
        offsets = torch.from_numpy(np.cumsum([0, *lengths]))
        packed = module.packed(torch.from_numpy(ids), torch.from_numpy(positions), offsets, max(lengths))
    assert torch.allclose(packed, padded, atol=1e-5)


def test_the_figure_shows_what_was_measured(tmp_path: Path) -> None:
    results = {
        "lengths": StepResult("done", measured={"single query, ms": {"static": {"32": 0.4}, "dynamic": {"32": 0.9}}}),
        "live_arlo": StepResult("done", measured={"latency by load": {"40": {"DT": {"mean_ms": 2.0}}}}),
        "gptj": StepResult("timed out", measured={"tokens/s": {"Flover": 900.0}}),
    }
    assert draw(document(describe_machine(), results, dry_run=False), tmp_path / "gpu.svg")
    svg = (tmp_path / "gpu.svg").read_text()
    assert "GPT-J" in svg
    assert not draw(document(describe_machine(), {}, dry_run=False), tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


def test_steps_need_only_the_libraries_that_they_name(tmp_path: Path) -> None:
    """With every other distribution hidden: each step is imported, and the quickest ones run."""
    code = """
import importlib, importlib.metadata as metadata, re, sys
from pathlib import Path
from benchmarks.gpu.steps import STEPS

def normal(name): return re.sub(r"[-_.]+", "-", name).lower()

def needed(name, found):
    if normal(name) not in found:
        found.add(normal(name))
        try:
            wanted = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            return found
        for each in wanted:
            if "extra ==" not in each and normal(name) != "tokenizers":
                needed(re.match(r"[\\w.-]+", each).group(), found)
    return found

steps = [step for step in STEPS if step.name not in ("gpu_tests", "plans")]
kept = set().union(*(needed(name, set()) for step in steps for name in step.requires))
for module, owners in metadata.packages_distributions().items():
    own = module in ("tidal", "tidal_builders", "tidal_client", "tidal_gateway") or module.startswith("_")
    if not own and module not in sys.modules and not {normal(each) for each in owners} & kept:
        sys.modules[module] = None
assert sys.modules["transformers"] is sys.modules["openvino"] is sys.modules["typer"] is None
from benchmarks.gpu.recording import Record, Setting
for step in steps:
    measure = importlib.import_module(f"benchmarks.gpu.{step.name}").measure
    if step.name in ("tasks", "task_memory"):
        record = Record(Path(sys.argv[1]) / f"{step.name}.json")
        measure(Setting(Path(sys.argv[1]), True), record)
        assert "failed cases" not in record.measured, record.measured
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-1000:]


def test_carried_wheels_are_installed_where_their_library_is_missing(tmp_path: Path) -> None:
    wheels, target = tmp_path / "wheels", tmp_path / "packages"
    wheels.mkdir()
    for name in ("carried_of_test", "numpy"):
        with zipfile.ZipFile(wheels / f"{name}-99.0-py3-none-any.whl", "w") as wheel:
            info = f"{name}-99.0.dist-info"
            wheel.writestr(f"{name}.py", "value = 3\n")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    assert install_carried(str(wheels), str(target)) is None
    assert (target / "carried_of_test.py").is_file()
    assert not (target / "numpy.py").exists()  # what the machine has stays
    (wheels / "broken-1.0-py3-none-any.whl").write_bytes(b"no archive")
    assert "broken" in str(install_carried(str(wheels), str(target)))
