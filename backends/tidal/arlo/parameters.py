"""Parameters of `arlo` models in config.pbtxt."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from tidal.encoder_tasks.long_texts import LongTextParameters

# Default SLO of a partitioned model, as a multiple of its longest runtime's latency (Arlo, Figure 4: an instance
# finishes this many queries within the SLO).
SLO_LATENCIES = 20.0


class ArloParameters(LongTextParameters):
    """Parameters of the `arlo` backend, in addition to those of all backends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str | None = Field(
        None, description="task of the model, for clients to read; refused if the published version has another"
    )
    task_settings: str | None = Field(
        None,
        description="settings of the task as a JSON object, for clients to read, such as the similarity of embeddings; "
        "refused if the published version has others",
    )
    service_weight: float = Field(
        1.0,
        ge=0,
        le=1000,
        description="weight of a query's expected service time in the order of the queue; 0: first come, first served; "
        "large values favor short queries",
    )
    slo_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="latency objective of the model's queries in milliseconds, above 0 and up to 3,600,000; "
        "partitioned only; default: 20 times the latency of the longest runtime",
    )
    dispatch: Literal["completion", "congestion"] = Field(
        "completion",
        description="rule that chooses an instance: 'completion', the one expected to answer first; 'congestion', one "
        "of the shortest runtime that is not congested (Algorithm 1); partitioned only",
    )
    congestion_threshold: float = Field(
        0.85,  # λ
        gt=0,
        le=10,
        description="share of its capacity up to which an instance is preferred over one of a longer runtime (λ); "
        "partitioned only, with dispatch 'congestion'",
    )
    threshold_decay: float = Field(
        0.9,  # α
        gt=0,
        le=1,
        description="factor on the threshold for each longer runtime (α); partitioned only, with dispatch 'congestion'",
    )
    peek_levels: int = Field(
        6,  # L
        ge=1,
        le=1000,
        description="number of runtimes to consider for a query, from the shortest that fits (L); "
        "partitioned only, with dispatch 'congestion'",
    )
