"""The draft model of a decoder: check that it fits, convert, profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel
from transformers import AutoConfig, AutoTokenizer

from tidal.errors import InvalidArgument
from tidal.flover.form import DecoderForm
from tidal.flover.manifest import DRAFT_FILE, INTEGERS, DraftManifest, FloverPrecision, FloverProfile
from tidal.flover.memory.available import available_bytes
from tidal.flover.models.weights_file import load_weights
from tidal.flover.native.tiling import KernelChoice
from tidal.flover.runner import FloverRunner
from tidal.manifest import Source
from tidal_builders.flover.converting import SourceTensors, write_weights
from tidal_builders.flover.plan import FloverPlan
from tidal_builders.flover.profiling import measure_profile
from tidal_builders.flover.quality import TextReference, text_agreement
from tidal_builders.flover.source import decoder_files
from tidal_builders.flover.spec import DraftFields, FloverSpec
from tidal_builders.quiet import quiet_transformers
from tidal_builders.runner import BuildRun

# Its share of the time for profiling.
_PROFILE_SHARE = 1 / 4


class DraftFacts(BaseModel):
    """Properties of a draft model that serving needs."""

    architecture: str
    form: DecoderForm
    tied: bool


class _Agreement(BaseModel):
    agreement: float


def draft_facts(folder: Path, source: Path) -> DraftFacts:
    """Return the properties of a draft model.

    Args:
        folder: Folder of the draft model.
        source: Folder of the model that it drafts for.

    Raises:
        InvalidArgument: It is not a decoder with the same vocabulary; names the field.
    """
    form, tokenizer = decoder_files(folder, "draft.model")
    with quiet_transformers():
        config = AutoConfig.from_pretrained(folder)
        wanted = AutoTokenizer.from_pretrained(source, use_fast=True).get_vocab()
    found = tokenizer.get_vocab()
    if others := sorted(token for token in found.keys() | wanted.keys() if found.get(token) != wanted.get(token)):
        first = others[0]
        raise InvalidArgument(
            f"field 'draft.model': the vocabulary of {folder} differs from that of the model in {len(others)} tokens, "
            f"such as {first!r} (id {found.get(first, 'none')} instead of {wanted.get(first, 'none')}); accepted is a "
            "model with the same tokens and ids, such as a smaller one of the same family"
        )
    return DraftFacts(
        architecture=(config.architectures or [config.model_type])[0],
        form=form,
        tied=bool(config.tie_word_embeddings),
    )


class DraftStages:
    """The stages of a draft model, each run at its first use unless an earlier process finished it.

    Args:
        run: The build.
        draft: Fields of the spec.
        folder: Folder of the draft model.
        max_length: Number of tokens of a sequence of the model that it drafts for.
        kernels: Choices of the CPU kernels; None if they are not used.
        device: Device that it runs on.
    """

    def __init__(
        self, run: BuildRun[FloverSpec, FloverPlan], draft: DraftFields, folder: Path, *, max_length: int,
        kernels: KernelChoice | None, device: torch.device,
    ) -> None:  # fmt: skip
        self._run, self._draft, self._folder = run, draft, folder
        self._longest, self._kernels, self._device = max_length, kernels, device

    @cached_property
    def facts(self) -> DraftFacts:
        """Properties of the draft model."""
        return draft_facts(self._folder, self._run.plan.source)

    @property
    def max_length(self) -> int:
        """Number of tokens of a sequence up to which it drafts."""
        return min(self._longest, self.facts.form.positions)

    @cached_property
    def chosen(self) -> FloverPrecision:
        """The spec's precision, or the fastest one."""
        if self._draft.precision != "auto":
            return self._draft.precision
        if self._kernels is None:
            return "bf16"
        return min(("bf16", "int8"), key=self._step_ms)

    def weights(self, precision: FloverPrecision) -> Path:
        """Folder with the weights in a precision, in the layout of a version."""
        return self._run.work.directory(f"draft-weights-{precision}", partial(self._convert, precision))

    def profile(self, precision: FloverPrecision) -> FloverProfile:
        """Cost of a precision on this machine."""
        return self._run.work.record(f"draft-profile-{precision}", FloverProfile, partial(self._measure, precision))

    def manifest(self, references: Callable[[], Sequence[TextReference]]) -> DraftManifest:
        """What the manifest of the version says of it.

        Args:
            references: Returns texts with the logits of the model that it drafts for.
        """
        precision, size = self.chosen, self._run.spec.group_size

        def agree() -> _Agreement:
            return _Agreement(agreement=text_agreement(self._runner(precision), references()))

        runner = self._runner(precision)
        return DraftManifest(
            source=Source(
                model=self._draft.model,
                architecture=self.facts.architecture,
                sha256=self._run.plan.ingredients["draft files"],
            ),
            precision=precision,
            form=self.facts.form,
            group_size=(self._tensors(precision).kept_group or size) if precision == "int4" else None,
            tokens=self._draft.tokens,
            max_length=self.max_length,
            memory_bytes=runner.memory_bytes,
            agreement=self._run.work.record(f"draft-agreement-{precision}", _Agreement, agree).agreement,
            profile=self.profile(precision),
        )

    def _step_ms(self, precision: FloverPrecision) -> float:
        """Time of a decode step of one slot in milliseconds, as a mean over lengths."""
        return float(np.mean([row[0] for row in self.profile(precision).step.median_ms]))

    def _tensors(self, precision: FloverPrecision) -> SourceTensors:
        return SourceTensors(self._folder, self.facts.form.family, INTEGERS.get(precision))

    def _convert(self, precision: FloverPrecision, folder: Path) -> None:
        path = folder / DRAFT_FILE
        path.parent.mkdir()
        try:
            write_weights(
                self._tensors(precision), self.facts.form, path, precision, self._run.spec.group_size,
                tied=self.facts.tied, progress=partial(self._run.progress, f"convert the draft model to {precision}"),
            )  # fmt: skip
        except InvalidArgument as error:
            raise InvalidArgument(f"field 'draft.model': {error}") from None

    def _runner(self, precision: FloverPrecision) -> FloverRunner:
        spec = self._run.spec
        torch.set_num_threads(self._run.plan.threads)
        return FloverRunner(
            self.facts.form,
            load_weights(self.weights(precision) / DRAFT_FILE, self.facts.form, self._device),
            slots=spec.max_concurrency,
            max_length=self.max_length,
            available=available_bytes(self._device),
            tiling=self._kernels,
            kv_cache_dtype=spec.kv_cache_dtype,
        )

    def _measure(self, precision: FloverPrecision) -> FloverProfile:
        return measure_profile(
            self._runner(precision),
            threads=self._run.plan.threads,
            seconds=self._run.spec.profile_seconds * _PROFILE_SHARE,
            progress=partial(self._run.progress, "profile the draft model"),
        )
