"""The result of building a base, as data and as a table."""

from __future__ import annotations

import itertools

from pydantic import BaseModel
from rich.table import Table

from tidal.manifest import Verification
from tidal.pets.manifest import PetsManifest
from tidal_builders.report import BuildReport


class CostRow(BaseModel):
    """Measured cost of one batch.

    Attributes:
        length: Padded length in tokens.
        batch: Number of queries.
        shared_ms: Time of the base in milliseconds.
        terms_ms: Additional time for the terms of one task in milliseconds, by kind of task.
    """

    length: int
    batch: int
    shared_ms: float
    terms_ms: dict[str, float]


class PetsReport(BuildReport):
    """Result of building a base.

    Attributes:
        base: Digest of the weights, which tasks name.
        max_length: Maximum input length in tokens.
        threads: CPU threads of the engine.
        zeroed: Names of weights that the source lacks and that are 0.
        verification: Comparison of the base, and of tasks of all kinds, with the source model.
        rows: Measured costs.
    """

    base: str | None = None
    max_length: int | None = None
    threads: int | None = None
    zeroed: tuple[str, ...] = ()
    verification: Verification | None = None
    rows: tuple[CostRow, ...] = ()

    def tables(self) -> list[Table]:
        """The measured costs of a new version."""
        return [cost_table(self)] if self.outcome == "published" else []


def report_of(manifest: PetsManifest, version: int | None) -> PetsReport:
    """The report of a published version.

    Args:
        manifest: Manifest of the version.
        version: Number of the version.
    """
    shared, terms = manifest.profile.shared, manifest.profile.terms_ms
    return PetsReport(
        name=manifest.name,
        outcome="current",
        version=version,
        base=manifest.base,
        max_length=manifest.max_length,
        threads=manifest.threads,
        zeroed=manifest.zeroed,
        verification=manifest.verification,
        rows=tuple(
            CostRow(
                length=length,
                batch=batch,
                shared_ms=median,
                terms_ms={kind: grid.at(length, batch) for kind, grid in terms.items()},
            )
            for length, medians in zip(shared.lengths, shared.median_ms, strict=True)
            for batch, median in zip(shared.batches, medians, strict=False)
        ),
    )


def cost_table(report: PetsReport) -> Table:
    """The measured costs for the terminal, in milliseconds per batch."""
    title = f"{report.name}: base {(report.base or '')[:12]}, ms per batch, and for the terms of one task in it"
    grid = Table(title=title, title_justify="left")
    kinds = list(report.rows[0].terms_ms) if report.rows else []
    for heading in ("length", "batch", "base", *kinds):
        grid.add_column(heading, justify="right")
    for row, following in itertools.zip_longest(report.rows, report.rows[1:]):
        cells = [f"{value:.2f}" for value in (row.shared_ms, *row.terms_ms.values())]
        last = following is None or following.length != row.length
        grid.add_row(str(row.length), str(row.batch), *cells, end_section=last)
    return grid
