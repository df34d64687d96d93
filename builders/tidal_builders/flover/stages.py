"""The stages of a decoder's build: read the source, convert, verify, profile."""

from __future__ import annotations

import shutil
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from tidal import device
from tidal.engines import choose_device
from tidal.errors import InvalidArgument
from tidal.flover.chat import CHAT_FILE, ChatTemplate
from tidal.flover.manifest import (
    INTEGERS,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    DraftManifest,
    FloverManifest,
    FloverPrecision,
    FloverProfile,
    FloverTrial,
    GenerationVerification,
    TextVerification,
)
from tidal.flover.memory.available import available_bytes
from tidal.flover.memory.buffers import buffer_bytes, cache_dtype
from tidal.flover.models.weights_file import load_weights
from tidal.flover.native.tiling import KernelChoice
from tidal.flover.native.tuning import measure_kernels
from tidal.flover.runner import FloverRunner
from tidal.manifest import Source
from tidal_builders.flover.converting import SourceTensors, write_weights
from tidal_builders.flover.draft import DraftStages
from tidal_builders.flover.plan import FloverPlan
from tidal_builders.flover.profiling import measure_profile
from tidal_builders.flover.quality import (
    TextReference,
    default_bounds,
    read_text_references,
    text_misses,
    verify_text,
    write_text_references,
)
from tidal_builders.flover.source import SourceFacts, load_decoder
from tidal_builders.flover.spec import LONGEST_DEFAULT, FloverSpec
from tidal_builders.flover.verify import misses, read_references, verify, write_references
from tidal_builders.publishing import VersionFields
from tidal_builders.runner import BuildRun
from tidal_builders.samples import sample_texts
from tidal_builders.source_tokenizer import write_tokenizer

_FACTS = "facts.json"
_REFERENCES, _TEXTS = "references.npz", "texts.npz"
_MIB = 1 << 20
# Precisions that `auto` compares; the last one only with native kernels.
_AUTOMATIC: tuple[FloverPrecision, ...] = ("fp32", "bf16", "int8")


class FloverStages:
    """The stages of a build, each run at its first use unless an earlier process finished it."""

    def __init__(self, run: BuildRun[FloverSpec, FloverPlan]) -> None:
        self.spec, self.plan, self.progress = run.spec, run.plan, run.progress
        self._run, self._work = run, run.work

    @property
    def candidates(self) -> tuple[FloverPrecision, ...]:
        """Precisions to try."""
        if self.spec.precision != "auto":
            return (self.spec.precision,)
        if self.kernels is None:
            return _AUTOMATIC[:2]
        scheme = self._tensors("int4").scheme
        # Integers of 4 bits are served as they are: converting them would lose what others gain.
        return (*_AUTOMATIC, "int4") if scheme is not None and scheme.bits == INTEGERS["int4"] else _AUTOMATIC

    @cached_property
    def folder(self) -> Path:
        """Folder with the tokenizer, properties and reference generations of the source model."""
        return self._work.directory("source", self._read_source)

    @cached_property
    def facts(self) -> SourceFacts:
        """Properties of the source model."""
        return SourceFacts.model_validate_json((self.folder / _FACTS).read_bytes())

    @cached_property
    def sound(self) -> tuple[FloverPrecision, ...]:
        """Candidates that are within their tolerance."""
        return tuple(each for each in self.candidates if not self.misses(each))

    @cached_property
    def chosen(self) -> FloverPrecision:
        """The fastest of those candidates."""
        return min(self.sound, key=self.step_ms)

    def weights(self, precision: FloverPrecision) -> Path:
        """Folder with the weights in a precision, in the layout of a version."""
        return self._work.directory(f"weights-{precision}", partial(self._convert, precision))

    def verified(self, precision: FloverPrecision) -> GenerationVerification:
        """Comparison of a precision with the source model."""
        return self._work.record(f"verified-{precision}", GenerationVerification, partial(self._verify, precision))

    def verified_on_text(self, precision: FloverPrecision) -> TextVerification:
        """Comparison of a precision's next-token distributions with the source model's."""
        return self._work.record(f"text-{precision}", TextVerification, partial(self._verify_text, precision))

    def misses(self, precision: FloverPrecision) -> tuple[str, ...]:
        """Reasons that keep a precision from being published."""
        generated = misses(self.verified(precision), self.spec.least_match(precision))
        return (*generated, *text_misses(self.verified_on_text(precision)))

    def profile(self, precision: FloverPrecision) -> FloverProfile:
        """Cost of a precision on this machine."""
        return self._work.record(f"profile-{precision}", FloverProfile, partial(self._measure, precision))

    def step_ms(self, precision: FloverPrecision) -> float:
        """Time of a decode step of all slots in milliseconds, as a mean over lengths."""
        return float(np.mean([row[-1] for row in self.profile(precision).step.median_ms]))

    def trials(self) -> tuple[FloverTrial, ...]:
        """Candidates that were compared; empty if there was only one."""
        if len(self.candidates) == 1:
            return ()
        return tuple(
            FloverTrial(
                precision=each,
                step_ms=self.step_ms(each) if each in self.sound else None,
                max_error=self.verified(each).max_error,
                match_rate=self.verified(each).match_rate,
                text=self.verified_on_text(each),
                verdict=("chosen" if each == self.chosen else "slower" if each in self.sound else "misses tolerance"),
            )
            for each in self.candidates
        )

    @cached_property
    def kernels(self) -> KernelChoice | None:
        """Choices of the CPU kernels, measured; None if they are not used."""
        if self.device != "cpu":
            return None
        self.progress("kernels", 0.0)
        return measure_kernels(self.plan.threads)

    @cached_property
    def draft(self) -> DraftStages | None:
        """Stages of the draft model; None without one."""
        if self.spec.draft is None or self.plan.draft is None:
            return None
        return DraftStages(
            self._run, self.spec.draft, self.plan.draft, max_length=self.facts.max_length, kernels=self.kernels,
            device=self.torch_device,
        )  # fmt: skip

    def draft_manifest(self) -> DraftManifest | None:
        """What the manifest says of the draft model."""
        return None if self.draft is None else self.draft.manifest(self._text_references)

    @property
    def device(self) -> device.DeviceKind:
        """Device that the decoder runs on."""
        return choose_device(self.spec.engine, self.spec.device)

    @property
    def torch_device(self) -> torch.device:
        """The same device as torch names it."""
        return torch.device("cuda" if self.device == "gpu" else "cpu")

    def runner(self, precision: FloverPrecision) -> FloverRunner:
        """Open a runner with the weights in a precision."""
        torch.set_num_threads(self.plan.threads)
        return FloverRunner(
            self.facts.form,
            load_weights(self.weights(precision) / WEIGHTS_FILE, self.facts.form, self.torch_device),
            slots=self.spec.max_concurrency,
            max_length=self.facts.max_length,
            available=available_bytes(self.torch_device),
            tiling=self.kernels,
            kv_cache_dtype=self.spec.kv_cache_dtype,
            kv_cache_bytes=None if self.spec.kv_cache_mb is None else int(self.spec.kv_cache_mb * _MIB),
        )

    def memory_bytes(self, precision: FloverPrecision) -> int:
        """Bytes of all slots' keys and values when they are full."""
        computed = torch.float32 if precision == "fp32" else torch.bfloat16
        dtype = cache_dtype(computed, self.torch_device, self.spec.kv_cache_dtype)
        return buffer_bytes(self.facts.form, self.spec.max_concurrency, self.facts.max_length, dtype)

    def _read_source(self, folder: Path) -> None:
        self.progress("load", 0.0)
        longest = self.spec.max_length
        source = load_decoder(self.plan.source, longest)
        positions = source.form.positions
        if longest is not None and longest > positions:
            raise InvalidArgument(
                f"field 'max_length': {longest} tokens exceed the model's longest sequence of {positions}"
            )
        write_tokenizer(source.tokenizer, folder / TOKENIZER_FILE)
        if (chat := source.chat) is not None:
            ChatTemplate(chat)  # refuse a template that cannot be rendered
            (folder / CHAT_FILE).write_text(chat.model_dump_json(), encoding="utf-8")
        facts = SourceFacts(
            architecture=type(source.model).__name__,
            base=source.digest,
            form=source.form,
            max_length=longest or min(source.form.trained_positions, LONGEST_DEFAULT),
            eos_token_ids=source.eos_token_ids,
            tied=bool(source.model.config.tie_word_embeddings),
        )
        (folder / _FACTS).write_text(facts.model_dump_json())
        self.progress("generate", 0.0)
        samples = None if self.plan.samples is None else self.plan.samples.read_text(encoding="utf-8")
        texts = sample_texts(samples)[0]
        write_text_references(source, texts, facts.max_length, folder / _TEXTS)
        write_references(source, texts, facts.max_length, folder / _REFERENCES)

    def _convert(self, precision: FloverPrecision, folder: Path) -> None:
        facts, path = self.facts, folder / WEIGHTS_FILE
        path.parent.mkdir()
        write_weights(
            self._tensors(precision), facts.form, path, precision, self.spec.group_size,
            tied=facts.tied, progress=partial(self.progress, f"convert to {precision}"),
        )  # fmt: skip

    def _tensors(self, precision: FloverPrecision) -> SourceTensors:
        return SourceTensors(self.plan.source, self.facts.form.family, INTEGERS.get(precision))

    def _verify(self, precision: FloverPrecision) -> GenerationVerification:
        return verify(
            self.runner(precision),
            read_references(self.folder / _REFERENCES),
            self.spec.largest_error(precision),
            partial(self.progress, "verify"),
        )

    def _text_references(self) -> tuple[TextReference, ...]:
        return read_text_references(self.folder / _TEXTS)

    def _verify_text(self, precision: FloverPrecision) -> TextVerification:
        return verify_text(
            self.runner(precision),
            self._text_references(),
            self.spec.quality.bounds(default_bounds(precision, self.spec.kv_cache_dtype)),
            partial(self.progress, "verify on text"),
        )

    def _measure(self, precision: FloverPrecision) -> FloverProfile:
        return measure_profile(
            self.runner(precision),
            threads=self.plan.threads,
            seconds=self.spec.profile_seconds,
            progress=partial(self.progress, "profile"),
        )

    def fill(self, folder: Path) -> None:
        """Write the version's files into `folder`."""
        shutil.copytree(self.weights(self.chosen), folder, dirs_exist_ok=True)
        shutil.copytree(self.folder / "tokenizer", folder / "tokenizer")
        if self.draft is not None:
            shutil.copytree(self.draft.weights(self.draft.chosen), folder, dirs_exist_ok=True)

    def manifest(
        self, profile: FloverProfile, draft: DraftManifest | None, _folder: Path, fields: VersionFields
    ) -> FloverManifest:
        """The manifest of the version."""
        facts, precision = self.facts, self.chosen
        return FloverManifest(
            kind="flover",
            **fields,
            source=Source(
                model=self.spec.model,
                architecture=facts.architecture,
                sha256=self.plan.ingredients["source files"],
            ),
            engine=self.spec.engine,
            precision=precision,
            device=device.here(self.device),
            base=facts.base,
            form=facts.form,
            eos_token_ids=facts.eos_token_ids,
            max_concurrency=self.spec.max_concurrency,
            max_length=facts.max_length,
            memory_bytes=self.memory_bytes(precision),
            threads=self.plan.threads,
            kernels=self.kernels,
            group_size=(self._tensors(precision).kept_group or self.spec.group_size) if precision == "int4" else None,
            kv_cache_dtype=self.spec.kv_cache_dtype,
            kv_cache_mb=self.spec.kv_cache_mb,
            verification=self.verified(precision),
            text=self.verified_on_text(precision),
            trials=self.trials(),
            profile=profile,
            draft=draft,
        )
