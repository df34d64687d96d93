"""Opens a published base as its manifest describes it, and starts services on it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from tidal import device
from tidal.errors import InvalidArgument
from tidal.pets.base import load_base_layers
from tidal.pets.copies import MergingOptions
from tidal.pets.engine.contract import LoadedTask, PetsEngine, PetsLane, lanes_of
from tidal.pets.kinds.kind import unmergeable_kinds
from tidal.pets.library import open_library
from tidal.pets.manifest import ENGINE_FOLDER, load_pets_manifest
from tidal.pets.merging import unmerged
from tidal.pets.opening import PETS_ENGINES, open_pets_engine
from tidal.pets.parameters import PetsParameters
from tidal.pets.policies import PetsScheduler
from tidal.pets.policies.merging import MergeRule
from tidal.pets.service import PetsService
from tidal.pets.terms import TaskTerms
from tidal.pets.texts import TaskTexts
from tidal.service import Service, ServiceContext
from tidal.tasks.folder import tasks_folder


def load(context: ServiceContext, parameters: PetsParameters) -> Callable[[ServiceContext], Service]:
    """Open the published base once, and return a function that starts a service on it, also after a failure.

    Tasks are loaded on their first use, separately for every service.

    Args:
        context: Context of the model that is being loaded.
        parameters: Parameters from config.pbtxt.

    Raises:
        InvalidArgument: The version does not fit its files, this device, the engine library or the parameters.
        NotFound: The library of graph operations is not built.
        Unsupported: The engine's library, or its GPU, is missing.
    """
    manifest = load_pets_manifest(context.version_dir)
    if parameters.merged_copies and not PETS_ENGINES[manifest.engine].merges:
        accepted = " or ".join(kind for kind, entry in PETS_ENGINES.items() if entry.merges)
        raise InvalidArgument(f"config.pbtxt has merged_copies, which are only accepted with engine {accepted}")
    manifest.check(context.version_dir, device.here(manifest.device.kind))
    batching = parameters.strategy(manifest.profile)
    tables = manifest.profile.tables(max_batch=parameters.max_batch, memory_bytes=parameters.batch_bytes)
    texts = TaskTexts(
        context.version_dir / manifest.tokenizer.file,
        min(manifest.max_length, tables.max_length),
        truncate=parameters.truncate,
        stride=parameters.stride,
    )
    base = load_base_layers(context.version_dir)
    narrow = manifest.threads if manifest.threads > 1 and PETS_ENGINES[manifest.engine].narrow else 0
    open_engine = partial(
        open_pets_engine,
        manifest.engine,
        context.version_dir / ENGINE_FOLDER,
        threads=manifest.threads,
        device=manifest.device.kind,
        precision=manifest.precision,
        narrow=narrow,
    )
    engine = open_engine(profile=manifest.profile)
    _warm_up(engine, [length for length in manifest.profile.shared.lengths if length <= tables.max_length])

    def open_copy(terms: TaskTerms) -> tuple[PetsEngine, LoadedTask]:
        copy = open_engine(merged=terms)
        return copy, copy.add(unmerged(terms))

    def start(fresh: ServiceContext) -> Service:
        library = open_library(
            tasks_folder(fresh.model_dir), base, engine, texts.tokenizer, parameters.task_bytes, fresh.metrics
        )
        scheduler = PetsScheduler(tables, batching, by_utility=parameters.by_utility, narrow=narrow)
        merging = MergingOptions(
            open_copy, tables, MergeRule(parameters.merged_copies, unmergeable=unmergeable_kinds())
        )
        return PetsService(
            fresh,
            texts,
            engine,
            library,
            scheduler,
            merging,
            type_ids=manifest.tokenizer.type_ids,
            attention=manifest.attention_received,
            lengths=manifest.profile.shared.lengths,
        )

    return start


def _warm_up(engine: PetsEngine, lengths: list[int]) -> None:
    """Run the base alone at each measured length on all lanes at once, so that no query pays for its first pass."""

    def run(lane: PetsLane) -> None:
        for length in lengths:
            lane.run([None], np.zeros((1, length), np.int32), np.array([length], np.int32))

    lanes = lanes_of(engine)
    with ThreadPoolExecutor(len(lanes)) as threads:
        list(threads.map(run, lanes))
