"""What an operator may set in an `arlo` model's config.pbtxt."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

# A partitioned model's SLO, where none is named, in latencies of its longest runtime: in Figure 4 an instance of that
# finishes so many queries within the SLO.
SLO_LATENCIES = 20.0


class ArloParameters(BaseModel):
    """Parameters of the `arlo` backend beside those that all backends share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    truncate: bool = Field(False, description="cut a longer text to the model's limit instead of refusing it")
    service_weight: float = Field(
        1.0,
        ge=0,
        le=1000,
        description="how many expected service times a query is held back for in the order of the queue; "
        "0 is first come, first served, large values favour short queries",
    )
    slo_ms: float | None = Field(
        None,
        gt=0,
        le=3_600_000,
        description="latency objective of all the model's queries in milliseconds, above 0 and up to 3,600,000; "
        "partitioned only; default 20 times the latency of the longest runtime",
    )
    congestion_threshold: float = Field(
        0.85,  # λ
        gt=0,
        le=10,
        description="share of its capacity up to which an instance is preferred to one of a longer runtime; "
        "partitioned only",
    )
    threshold_decay: float = Field(
        0.9,  # α
        gt=0,
        le=1,
        description="what the threshold is multiplied with for each longer runtime; partitioned only",
    )
    peek_levels: int = Field(
        6,  # L
        ge=1,
        le=1000,
        description="runtimes that are looked at for a query, from the shortest that fits; partitioned only",
    )
