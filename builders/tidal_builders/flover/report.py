"""The result of building a decoder, as data and as a table."""

from __future__ import annotations

import itertools

from pydantic import BaseModel
from rich.table import Table

from tidal.flover.form import KeyValueType
from tidal.flover.manifest import DraftManifest, FloverManifest, FloverTrial, GenerationVerification, TextVerification
from tidal.flover.native.tiling import KernelChoice
from tidal_builders.report import BuildReport


class StepRow(BaseModel):
    """Measured cost of one decode step.

    Attributes:
        length: Length of the longest sequence in tokens.
        slots: Number of slots.
        step_ms: Time of the step in milliseconds.
        tokens_per_s: Tokens per second of all slots.
    """

    length: int
    slots: int
    step_ms: float
    tokens_per_s: float


class DraftRow(BaseModel):
    """Draft model of a version.

    Attributes:
        model: Hugging Face id or folder.
        precision: Chosen precision.
        agreement: Share of most likely tokens of texts that are the decoder's.
        step_ms: Time of a pass for one generation in milliseconds, as a mean over lengths.
    """

    model: str
    precision: str
    agreement: float
    step_ms: float


class FloverReport(BuildReport):
    """Result of building a decoder.

    Attributes:
        precision: Chosen precision.
        max_concurrency: Number of slots.
        max_length: Capacity of a slot in tokens.
        memory_bytes: Bytes of all slots' keys and values.
        kv_cache_dtype: Type of keys and values, as in the spec.
        threads: CPU threads of the decoder.
        kernels: Measured choices of the CPU kernels.
        verification: Comparison with the source model.
        text: Comparison of next-token distributions on text.
        trials: Precisions that were compared.
        rows: Measured decode steps.
        draft: Draft model.
    """

    precision: str | None = None
    max_concurrency: int | None = None
    max_length: int | None = None
    memory_bytes: int | None = None
    kv_cache_dtype: KeyValueType = "auto"
    threads: int | None = None
    kernels: KernelChoice | None = None
    verification: GenerationVerification | None = None
    text: TextVerification | None = None
    trials: tuple[FloverTrial, ...] = ()
    rows: tuple[StepRow, ...] = ()
    draft: DraftRow | None = None

    def tables(self) -> list[Table]:
        """The measured decode steps of a new version."""
        return [step_table(self)] if self.outcome == "published" else []


def report_of(manifest: FloverManifest, version: int | None) -> FloverReport:
    """The report of a published version.

    Args:
        manifest: Manifest of the version.
        version: Number of the version.
    """
    step = manifest.profile.step
    return FloverReport(
        name=manifest.name,
        outcome="current",
        version=version,
        precision=manifest.precision,
        max_concurrency=manifest.max_concurrency,
        max_length=manifest.max_length,
        memory_bytes=manifest.memory_bytes,
        kv_cache_dtype=manifest.kv_cache_dtype,
        threads=manifest.threads,
        kernels=manifest.kernels,
        verification=manifest.verification,
        text=manifest.text,
        trials=manifest.trials,
        draft=None if manifest.draft is None else _draft_row(manifest.draft),
        rows=tuple(
            StepRow(length=length, slots=slots, step_ms=median, tokens_per_s=slots / median * 1e3)
            for length, medians in zip(step.lengths, step.median_ms, strict=True)
            for slots, median in zip(step.batches, medians, strict=False)
        ),
    )


def _draft_row(draft: DraftManifest) -> DraftRow:
    steps = [row[0] for row in draft.profile.step.median_ms]
    return DraftRow(
        model=draft.source.model, precision=draft.precision, agreement=draft.agreement, step_ms=sum(steps) / len(steps)
    )


def step_table(report: FloverReport) -> Table:
    """The measured decode steps for the terminal."""
    megabytes = (report.memory_bytes or 0) / 1e6
    kept = "" if report.kv_cache_dtype == "auto" else f" with {report.kv_cache_dtype} keys and values"
    title = f"{report.name}: {report.precision}{kept}, {report.max_concurrency} slots of {report.max_length} tokens in "
    grid = Table(title=f"{title}{megabytes:,.0f} MB, {report.threads} threads", title_justify="left")
    grid.caption, grid.caption_justify = _caption(report), "left"
    for heading in ("longest sequence", "slots", "step ms", "tokens/s"):
        grid.add_column(heading, justify="right")
    for row, following in itertools.zip_longest(report.rows, report.rows[1:]):
        last = following is None or following.length != row.length
        cells = (str(row.length), str(row.slots), f"{row.step_ms:.2f}", f"{row.tokens_per_s:.0f}")
        grid.add_row(*cells, end_section=last)
    return grid


def _caption(report: FloverReport) -> str:
    lines = [] if report.kernels is None else [f"kernels: {report.kernels}"]
    if (text := report.text) is not None:
        lines.append(
            f"on text: perplexity {text.perplexity_ratio:.4f} times the source's, {text.agreement:.1%} of the most "
            f"likely tokens, divergence at most {text.max_kl:.2g} nats"
        )
    if (draft := report.draft) is not None:
        lines.append(
            f"draft model: {draft.model} in {draft.precision}, {draft.step_ms:.2f} ms per token, {draft.agreement:.1%} "
            "of the most likely tokens on text"
        )
    return "\n".join(lines)
