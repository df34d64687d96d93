"""`tidal build --relearn`: keeps the lengths that a server has seen, for the builds that follow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidal.errors import InvalidArgument, Unavailable, did_you_mean
from tidal.repository.entries import ModelEntry
from tidal.server.gauges import read_metrics
from tidal.server.state import running_servers
from tidal_builders.arlo.learned_lengths import LEARNED_FILE, LearnedLengths
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.spec import ModelSpec


def learn_lengths(names: Sequence[str], specs: Sequence[ModelSpec], repository: Path, metrics: str | None) -> None:
    """Read the lengths of models' queries from a server's metrics, and write them into the models' folders.

    Args:
        names: Names of the models; with none nothing happens.
        specs: Specs to build.
        repository: Model repository.
        metrics: `host:port` of the server's metrics; None for the `tidal serve` of the repository.

    Raises:
        InvalidArgument: A name is not that of a text classifier among the specs, its spec says what the lengths are, or
            the server has received too few queries.
        Unavailable: The server cannot be found, or does not answer.
    """
    if not names:
        if metrics is not None:
            raise InvalidArgument("--metrics is for --relearn, which is not given")
        return
    known = {spec.name: spec for spec in specs if isinstance(spec, ArloSpec)}
    for name in names:
        if name not in known:
            raise InvalidArgument(
                f"--relearn {name}: no given spec of kind arlo has this name; {did_you_mean(name, list(known))}"
            )
        spec = known[name]
        if spec.lengths_like is not None:
            raise InvalidArgument(
                f"--relearn {name}: field 'lengths_like' of its spec says what the lengths are; remove it"
            )
        if not spec.chooses_by_length:
            raise InvalidArgument(
                f"--relearn {name}: no field of this spec depends on received lengths; set one of the fields "
                "'lengths', 'form' and 'precision' to auto"
            )
    page = read_metrics(metrics or _metrics_of(repository))
    for name in names:
        LearnedLengths.of_metrics(page, name).write(ModelEntry(repository / name).folder / LEARNED_FILE)


def _metrics_of(repository: Path) -> str:
    """Return `host:port` of the metrics of the server that serves a repository."""
    found = [state.metrics for state in running_servers() if state.repository == repository.resolve()]
    if len(found) != 1:
        run = f"{len(found)} `tidal serve` of this user run" if found else "no `tidal serve` of this user runs"
        raise Unavailable(f"{run} on {repository}; name the server's metrics by --metrics HOST:PORT")
    return found[0]
