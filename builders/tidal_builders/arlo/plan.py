"""Plans the build of an encoder, without loading the source model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.encoder_tasks.entries import TASKS
from tidal.engines import choose_device, engine_entry
from tidal.errors import InvalidArgument
from tidal.repository.entries import ModelEntry
from tidal_builders.arlo.learned_lengths import LEARNED_FILE
from tidal_builders.arlo.runtimes import missing_runtimes
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arlo.workers import default_workers
from tidal_builders.encoder_tasks.detect import choose_task
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.encoder_tasks.sentence_files import served_prompts
from tidal_builders.fingerprint import code_hash, source_folder
from tidal_builders.long_texts import check_long_texts
from tidal_builders.planning import BuildPlan, compare, ingredients, text_file, text_ingredient

_LIBRARIES = ("torch", "transformers", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArloPlan(BuildPlan[ArloManifest]):
    """What the build of a text classifier would publish; see `BuildPlan`.

    `missing` lists what the models of a partitioned model's runtimes lack, which is restored from the newest version.

    Attributes:
        source: Folder of the source model.
        task: Task that the model is built for.
        samples: File of the spec's own texts, if it names one.
        lengths_like: File of texts whose lengths are those to expect, if the spec names one.
        learned: File with the lengths that a server has seen, if there is one and the spec says nothing else.
    """

    source: Path
    task: str
    samples: Path | None
    lengths_like: Path | None
    learned: Path | None


def plan_arlo(spec: ArloSpec, repository: Path, base: Path) -> ArloPlan:
    """Compare what is published with the current spec, source, code, libraries and device.

    Args:
        spec: Spec of the classifier.
        repository: Model repository; it need not exist.
        base: Folder that relative paths of the spec start from.

    Raises:
        InvalidArgument: The source model or a file of texts does not exist, the task is not served or not clear, a
            field is for another task, the default prompt is unknown, or the task cannot treat long texts as the spec
            says.
        Unsupported: The engine's library is not installed, or this machine has no GPU.
    """
    source = source_folder(spec.model, spec.revision, base)
    task = choose_task(source, spec.task, spec.kind)
    _check_fields(spec, task, source)
    samples = text_file("samples", spec.samples, base)
    like = spec.lengths_like
    lengths_like = text_file("lengths_like", like, base) if isinstance(like, Path) else None
    entry = ModelEntry(repository / spec.name)
    learned = entry.folder / LEARNED_FILE
    known = learned if like is None and spec.chooses_by_length and learned.is_file() else None
    parts = arlo_ingredients(spec, source, task, samples, lengths_like or known)
    published, reasons = compare(entry, load_arlo_manifest, parts)
    missing: list[str] = []
    if published is not None and not reasons:
        missing = missing_runtimes(entry, published, entry.versions()[-1])
    return ArloPlan(
        entry=entry,
        ingredients=parts,
        published=published,
        reasons=reasons,
        missing=tuple(missing),
        source=source,
        task=task,
        samples=samples,
        lengths_like=lengths_like,
        learned=known,
    )


# Fields that only some tasks use: the models of the others would be as without them.
_EMBEDDING = ("pooling", "normalize", "prompts", "default_prompt", "similarity")
_ANSWERS = ("max_answer_tokens", "impossible_answers")
_FIELD_TASKS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_EMBEDDING, ("embedding",)),
    **dict.fromkeys(_ANSWERS, ("question-answering",)),
    "labels": tuple(name for name, task in TASKS.items() if task.labelled),
}


def _check_fields(spec: ArloSpec, task: str, source: Path) -> None:
    """Refuse fields of the spec that are for other tasks, and a default prompt that the model does not have."""
    for name, tasks in _FIELD_TASKS.items():
        given = name in spec.model_fields_set and getattr(spec, name) is not None
        if given and task not in tasks:
            raise InvalidArgument(
                f"field '{name}' is for task {' or '.join(tasks)}, and this model is built for {task}; remove it"
            )
    if spec.default_prompt is not None:
        served_prompts(source, spec.prompts, spec.default_prompt)
    # Without lengths in the spec, the longest input is known when the source model has been read.
    check_long_texts(spec, task, sys.maxsize if spec.lengths == "auto" else spec.lengths[-1])


def arlo_ingredients(
    spec: ArloSpec, source: Path, task: str, samples: Path | None, lengths_like: Path | None
) -> dict[str, str]:
    """Everything that a version of a text classifier is made of.

    Args:
        spec: Spec of the classifier.
        source: Folder of the source model.
        task: Task that the model is built for.
        samples: File of the spec's own texts, if it names one.
        lengths_like: File with the lengths to expect, if there is one.
    """
    engine, workers = engine_entry(spec.engine), default_workers(spec)
    engine_libraries = (engine.distribution, *engine.build_libraries, *engine.int8_libraries)
    return ingredients(
        spec,
        source=source,
        code=code_hash("tidal_builders.arlo.build", engine.module, *BUILD_TASKS[task].modules),
        device_kind=choose_device(spec.engine, spec.device),
        libraries=tuple(dict.fromkeys((*_LIBRARIES, *engine_libraries))),
        more={
            "task": task,
            "workers": f"{workers.contexts} of {workers.threads} threads",
            **text_ingredient("samples file", samples),
            **text_ingredient("lengths file", lengths_like),
        },
    )
