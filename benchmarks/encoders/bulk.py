"""Throughput of `tidal embed` as a share of the server's, on the same texts."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.encoders.cells import measure_closed
from benchmarks.encoders.claims import CLAIMED
from benchmarks.encoders.prepare import EncoderArtefacts, model_name
from benchmarks.encoders.run import EncoderRun
from benchmarks.encoders.search import MOST_PER_SECOND
from benchmarks.encoders.sides import TidalSide, warm_up
from benchmarks.encoders.workload import Workload
from benchmarks.report import Claim, progress
from tidal.server.child import RunningServer, tidal_serve
from tidal_client import Client
from tidal_client.bulk.run import Paths, embed_file
from tidal_client.bulk.state import BulkSettings
from tidal_client.bulk.texts import open_texts, scan
from tidal_client.row_runs import CONCURRENCY

_IN_FLIGHT, _WARM_S, _SEED = 64, 0.7, 4_000_000


@dataclass(frozen=True)
class BulkBench:
    """Compares `tidal embed` with a closed loop of requests of one text each.

    Args:
        artefacts: Prepared artefacts.
        run: Run that receives the results.
        workload: Generator of texts.
        rounds: Number of rounds.
        seconds: Length of a closed loop in seconds.
        texts: Number of texts of a file.
    """

    artefacts: EncoderArtefacts
    run: EncoderRun
    workload: Workload
    rounds: int
    seconds: float
    texts: int

    def measure(self) -> None:
        """Measure what the run has no results of: texts per second by round, of the server and of `tidal embed`."""
        if "bulk" in self.run.facts:
            return
        rates: dict[str, list[float]] = {"server": [], "embed": []}
        with (
            tidal_serve(self.artefacts.repository, "--model", model_name("embed")) as server,
            tempfile.TemporaryDirectory() as folder,
        ):
            side = TidalSide(server, "embed")
            requests = self.workload.requests(CLAIMED["embed"], round(2 * MOST_PER_SECOND * _WARM_S), _SEED)
            warm_up(side, requests, in_flight=_IN_FLIGHT, seconds=_WARM_S)
            for at in range(self.rounds):
                progress(f"round {at + 1} of {self.rounds}: tidal embed against requests of one text")
                for name in rates if at % 2 else reversed(list(rates)):
                    rate = self._server(side, at) if name == "server" else self._embed(server, Path(folder), at)
                    rates[name].append(rate)
        self.run.fact("bulk", lambda: rates)

    def _server(self, side: TidalSide, at: int) -> float:
        count = round((self.seconds + _WARM_S) * MOST_PER_SECOND)
        requests = self.workload.requests(CLAIMED["embed"], count, _SEED + 1 + at)
        given = {"seconds": self.seconds, "warm_s": _WARM_S}
        return measure_closed(side, requests, in_flight=_IN_FLIGHT, **given).per_second

    def _embed(self, server: RunningServer, folder: Path, at: int) -> float:
        """Texts per second of what the command does once it has read the file."""
        file = folder / f"{at}.txt"
        requests = self.workload.requests(CLAIMED["embed"], self.texts, _SEED + 1 + at)
        file.write_text("".join(f"{rows[0]}\n" for rows in requests), encoding="utf-8")
        texts = open_texts(file)
        found = scan(texts)
        with Client(f"http://{server.state.http}", timeout_s=120.0) as client:
            versions = client.metadata(model_name("embed")).versions
            settings = BulkSettings(found.texts, found.digest, model_name("embed"), versions, None, None, "float32")
            begin = time.perf_counter()
            embed_file(
                client, texts, settings, Paths(folder / f"{at}.npy"), concurrency=CONCURRENCY, report=lambda _: None
            )
            return found.texts / (time.perf_counter() - begin)


def make_claims(run: EncoderRun) -> list[Claim]:
    """Return `bulk_embed_share` if the run has its result, the median ratio within the rounds."""
    rates = run.facts.get("bulk")
    if not rates:
        return []
    ratios = [ours / theirs for ours, theirs in zip(rates["embed"], rates["server"], strict=True)]
    note = f"against {_IN_FLIGHT} requests of one text in flight; rounds {min(ratios):.2f} to {max(ratios):.2f}"
    return [Claim("bulk_embed_share", ">= 0.95", statistics.median(ratios), note=note)]
