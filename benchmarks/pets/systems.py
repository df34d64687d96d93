"""The repository of the compared models: Tidal's with its tasks, and full models in several forms."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import benchmarks
from benchmarks.pets.prepare import MODEL, PetsArtefacts
from tidal.tasks.folder import tasks_folder

SEQS, PARS = "SeqS", "ParS"


@dataclass(frozen=True, slots=True)
class FullForm:
    """One configuration of full models, one per task.

    Attributes:
        system: SeqS, which runs one model at a time, or ParS, which runs several.
        instances: Number of processes, each with all models.
        workers: Number of models that run concurrently in each process.
        threads: Number of threads per model.
        together: Whether Triton's dynamic batcher may pass several requests at a time.
    """

    system: str
    instances: int
    workers: int
    threads: int
    together: bool

    @property
    def label(self) -> str:
        """Name in tables."""
        form = f"{self.instances} process{'es' * (self.instances > 1)} x {self.workers} x {self.threads} threads"
        return form if self.together else f"{form}, request by request"


def forms(cores: int) -> dict[str, FullForm]:
    """Return the forms to search, by model name; the fastest form of a system represents it."""
    return {
        "seqs": FullForm(SEQS, 1, 1, cores, together=True),
        "seqs_single": FullForm(SEQS, 1, 1, cores, together=False),
        "pars_processes": FullForm(PARS, cores, 1, 1, together=False),
        "pars_pool": FullForm(PARS, 1, cores, 1, together=True),
        "pars_all": FullForm(PARS, 1, 16, 1, together=True),
    }


def write_tidal(repository: Path, artefacts: PetsArtefacts, tasks: Sequence[Path], name: str = MODEL) -> None:
    """Add the base with tasks as a model of the repository; engine files are linked.

    Args:
        repository: Model repository.
        artefacts: Artefacts of the benchmark.
        tasks: Folders of the tasks.
        name: Name of the model.
    """
    source = artefacts.version
    target = repository / name
    shutil.copytree(source, target / source.name, copy_function=_link)
    config = (source.parent / "config.pbtxt").read_text().replace(f'"{MODEL}"', f'"{name}"')
    (target / "config.pbtxt").write_text(config)
    for folder in tasks:
        shutil.copytree(folder, tasks_folder(target) / folder.name)


def write_full(repository: Path, name: str, form: FullForm, artefacts: PetsArtefacts, tasks: Sequence[Path]) -> None:
    """Add full models of tasks in one form.

    Args:
        repository: Model repository.
        name: Name of the model.
        form: Configuration of the full models.
        artefacts: Artefacts of the benchmark.
        tasks: Folders of the tasks.
    """
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(Path(__file__).with_name("full_model_backend.py").read_text())
    (folder / "tasks.txt").write_text("".join(f"{task}\n" for task in tasks))
    given = {
        "code": Path(benchmarks.__path__[0]).parent,
        "version_dir": artefacts.version,
        "full": artefacts.full,
        "tasks": folder / "tasks.txt",
        "threads": form.threads,
        "workers": form.workers,
    }
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in given.items()
    )
    batching = "dynamic_batching {}\n" if form.together else ""
    (folder / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: 64\n'
        'input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }\n'
        'output { name: "logits" data_type: TYPE_FP32 dims: [ -1 ] }\n'
        'output { name: "label" data_type: TYPE_STRING dims: [ 1 ] }\n'
        f"instance_group {{ kind: KIND_CPU count: {form.instances} }}\n{batching}{parameters}"
    )


def _link(source: str, target: str) -> None:
    if Path(source).suffix in (".bin", ".safetensors"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)
