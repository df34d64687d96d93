"""A published base that answers without a server, to compare tasks with their sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidal import device
from tidal.pets.engine.contract import PetsEngine
from tidal.pets.heads import computed, head_reads, head_task
from tidal.pets.manifest import ENGINE_FOLDER, PetsManifest, load_pets_manifest
from tidal.pets.opening import open_pets_engine
from tidal.pets.terms import FloatArray, TaskTerms
from tidal.text.tokenizer import open_tokenizer

# Rows per batch.
_BATCH = 16


@dataclass(frozen=True, slots=True)
class OfflineBase:
    """A published base with its engine open, which answers as the server does, one batch at a time.

    Attributes:
        version: Folder of the published version.
        manifest: Manifest of the version.
        engine: Engine of the base.
    """

    version: Path
    manifest: PetsManifest
    engine: PetsEngine

    def answers(self, terms: TaskTerms, texts: Sequence[tuple[str, ...]], longest: int) -> list[FloatArray]:
        """Compute what a task's answers are made of.

        Args:
            terms: Terms of the task.
            texts: Texts of one string each, or of two.
            longest: Number of tokens at which texts are truncated.

        Returns:
            For each text float32 [outputs], or [tokens, outputs] for tasks with values per token.
        """
        manifest, engine, head = self.manifest, self.engine, terms.head
        tokenizer = open_tokenizer(self.version / manifest.tokenizer.file)
        tokenizer.enable_truncation(min(longest, manifest.max_length))
        encoded = [tokenizer.encode(text[0], text[1] if len(text) > 1 else None) for text in texts]
        task, per_token = engine.add(terms), head_task(head.task).per_token
        found: dict[int, FloatArray] = {}
        # Batches have texts of similar length, because they are padded.
        order = sorted(range(len(texts)), key=lambda row: len(encoded[row].ids))
        for begin in range(0, len(order), _BATCH):
            rows = order[begin : begin + _BATCH]
            lengths = np.array([len(encoded[row].ids) for row in rows], np.int32)
            ids, types = (np.zeros((len(rows), int(lengths.max())), np.int32) for _ in range(2))
            for position, row in enumerate(rows):
                ids[position, : lengths[position]] = encoded[row].ids
                types[position, : lengths[position]] = encoded[row].type_ids
            kinds = types if manifest.tokenizer.type_ids and head.token_types else None
            outputs = engine.run([task] * len(rows), ids, lengths, kinds, all_tokens=head_reads(head) == "tokens")
            own_ids = [np.array(encoded[row].ids) for row in rows]
            values = computed(task.head, outputs, range(len(rows)), lengths, own_ids)
            for row, length, value in zip(rows, lengths, values, strict=True):
                found[row] = value[:length] if per_token else value
        engine.remove(task)
        return [found[row] for row in range(len(texts))]


def open_offline(version: Path) -> OfflineBase:
    """Open a published version of a base.

    Args:
        version: Folder of the published version.

    Raises:
        InvalidArgument: The version is not valid, or was made for another device.
        TidalError: The engine cannot be opened on this machine.
    """
    manifest = load_pets_manifest(version)
    manifest.check(version, device.here(manifest.device.kind))
    engine = open_pets_engine(
        manifest.engine, version / ENGINE_FOLDER, threads=manifest.threads, device=manifest.device.kind,
        precision=manifest.precision, profile=manifest.profile,
    )  # fmt: skip
    return OfflineBase(version, manifest, engine)
