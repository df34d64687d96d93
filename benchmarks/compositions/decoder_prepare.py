"""Artefacts of the decoder tasks' benchmark: a decoder, a LoRA task of it, and the same task merged into models.

The weights are random, of GPT-2 small's size: speed and memory do not depend on them. All measured tasks are copies of
one task with different names, and so are the models.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.compositions.artefacts import BuiltArtefacts
from benchmarks.flover import source
from benchmarks.flover.prepare import compared_precision
from benchmarks.flover.source import GPT2_SMALL, Shape, open_source, write_source, write_tokenizer
from benchmarks.kept import cache_folder
from benchmarks.report import progress
from tidal.repository.entries import ModelEntry
from tidal.tasks.folder import tasks_folder

BASE, TASK = "base", "task"
RANK, TARGETS = 8, ("c_attn", "c_proj", "c_fc")
#: Concurrent generations of all tasks together, and maximum tokens of each including its prompt.
SLOTS, LONGEST = 16, 96


def merged(threads: int) -> str:
    """Return the name of the model with the task merged into its weights.

    Args:
        threads: Threads of its process.
    """
    return f"merged_{threads}"


def threads_tried() -> tuple[int, ...]:
    """Return the thread counts to try for one process per task: 1, and the number of cores."""
    return tuple(sorted({1, len(os.sched_getaffinity(0))}))


def prepare(shape: Shape = GPT2_SMALL, *, slots: int = SLOTS, profile_seconds: float = 5.0) -> BuiltArtefacts:
    """Create the missing artefacts: some minutes, once.

    Args:
        shape: Shape of the decoder.
        slots: Concurrent generations of all tasks together; a model for a single task has a quarter of them.
        profile_seconds: Time to profile each build, seconds.
    """
    code = "".join(Path(str(file)).read_text() for file in (__file__, source.__file__))
    digest = hashlib.sha256(f"{code}{shape}{slots}{profile_seconds}".encode()).hexdigest()[:12]
    folder = cache_folder() / f"decoder-tasks-{digest}"
    if not (folder / "merged" / "config.json").exists():
        progress("writing a decoder of GPT-2 small's size and a LoRA of it, with random weights")
        write_source(folder / "source", shape)
        _write_lora(folder, shape)
    repository = folder / "repository"
    rows = [(BASE, "source", slots, max(threads_tried()))]
    rows += [(merged(threads), "merged", max(1, slots // 4), threads) for threads in threads_tried()]
    specs = [_write_spec(folder, *row, profile_seconds) for row in rows]
    progress("building (nothing to do when it is up to date)")
    _tidal("build", *map(str, specs), "--repository", str(repository))
    if not (tasks_folder(repository / BASE) / TASK).is_dir():
        _tidal("tasks", "add", BASE, str(folder / "lora"), "--name", TASK, "--repository", str(repository))
    return BuiltArtefacts(repository, digest)


def write_shared(repository: Path, artefacts: BuiltArtefacts, count: int) -> None:
    """Add the base with its tasks to a repository.

    Args:
        repository: Repository to write to.
        artefacts: Built artefacts.
        count: Number of tasks.
    """
    _copy(artefacts.repository / BASE, repository / BASE)
    for number in range(count):
        task = tasks_folder(artefacts.repository / BASE) / TASK
        shutil.copytree(task, tasks_folder(repository / BASE) / f"{TASK}_{number}")


def write_own(repository: Path, artefacts: BuiltArtefacts, count: int, threads: int) -> None:
    """Add one model per task. Weights are copied: processes would share the memory of linked files.

    Args:
        repository: Repository to write to.
        artefacts: Built artefacts.
        count: Number of tasks.
        threads: Threads of each model's process.
    """
    for number in range(count):
        _copy(artefacts.repository / merged(threads), repository / f"{TASK}_{number}")


def _copy(model: Path, target: Path) -> None:
    version = ModelEntry(model).latest()
    assert version is not None
    shutil.copytree(version, target / version.name)
    config = (model / "config.pbtxt").read_text().replace(f'"{model.name}"', f'"{target.name}"')
    (target / "config.pbtxt").write_text(config)


def _write_lora(folder: Path, shape: Shape) -> None:
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=RANK, lora_alpha=RANK, target_modules=list(TARGETS), fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        lora = get_peft_model(open_source(folder / "source", "fp32"), config)
        for name, weight in lora.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn_like(weight) * 0.3)
    lora.save_pretrained(str(folder / "lora"))
    merged: Any = lora.merge_and_unload()
    merged.save_pretrained(folder / "merged")
    write_tokenizer(folder / "merged", shape.vocabulary)


def _write_spec(folder: Path, name: str, model: str, slots: int, threads: int, profile_seconds: float) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(
        f"kind: flover\nname: {name}\nmodel: {folder / model}\nmax_concurrency: {slots}\nmax_length: {LONGEST}\n"
        f"precision: {compared_precision()}\nthreads: {threads}\nprofile_seconds: {profile_seconds}\n"
    )
    return path


def _tidal(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "tidal_client.main", *arguments], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    print(f"artefacts {prepare().digest}")
