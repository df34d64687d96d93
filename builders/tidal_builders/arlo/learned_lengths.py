"""Lengths of the queries that a server has received: read from its metrics, kept with the model, used by its builds."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidal.errors import InvalidArgument
from tidal_builders.arlo.length_distribution import LengthDistribution

#: File in the model's folder.
LEARNED_FILE = "learned_lengths.json"
#: Number of queries below which their lengths say too little.
MIN_QUERIES = 100
_BUCKETS = "tidal_arlo_query_length_tokens_bucket"


class LearnedLengths(BaseModel):
    """Numbers of queries by length; immutable, unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    upto: tuple[int, ...] = Field(min_length=1, description="upper bounds of the lengths in tokens, ascending")
    queries: tuple[float, ...] = Field(
        min_length=1, description="number of queries up to each bound, and above the one before"
    )

    @classmethod
    def of_metrics(cls, page: str, model: str) -> LearnedLengths:
        """Read the lengths of a model's queries, of all its loaded versions together.

        Args:
            page: Text of a server's /metrics page.
            model: Name of the model.

        Raises:
            InvalidArgument: The page has no such model, or it has received fewer than `MIN_QUERIES` queries.
        """
        own = "\n".join(line for line in page.splitlines() if line.startswith(_BUCKETS)) + "\n"
        below: dict[float, float] = {}
        for family in text_string_to_metric_families(own):
            for sample in family.samples:
                if sample.labels.get("model") == model:
                    bound = float(sample.labels["le"])
                    below[bound] = below.get(bound, 0.0) + sample.value
        if not below:
            raise InvalidArgument(
                f"--relearn {model}: the server has no metrics of an arlo model of this name; expected the name of a "
                "loaded arlo model, see `tidal models list`"
            )
        bounds = sorted(below)
        upto = [0.0, *(below[bound] for bound in bounds)]
        counts = [max(0.0, more - less) for less, more in itertools.pairwise(upto)]
        if sum(counts) < MIN_QUERIES:
            raise InvalidArgument(
                f"--relearn {model}: the server has received {sum(counts):.0f} queries since it loaded the model; "
                f"expected at least {MIN_QUERIES}: try again later"
            )
        finite = [int(bound) for bound in bounds if math.isfinite(bound)]
        above = sum(counts[len(finite) :])
        counts = counts[: len(finite)]
        counts[-1] += above
        return cls(upto=tuple(finite), queries=tuple(counts))

    @classmethod
    def read(cls, file: Path) -> LearnedLengths:
        """Read a file that `write` has written.

        Args:
            file: File in the model's folder.

        Raises:
            InvalidArgument: It is damaged.
        """
        try:
            return cls.model_validate_json(file.read_bytes())
        except ValidationError as error:
            raise InvalidArgument(f"{file} is damaged: {error.errors()[0]['msg']}; delete it") from None

    def write(self, file: Path) -> None:
        """Write the lengths, replacing a file of the same name at once."""
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_name(f".{file.name}.new")
        made.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        made.replace(file)

    def distribution(self, max_length: int) -> LengthDistribution:
        """Return the distribution of the lengths, even between two bounds.

        Args:
            max_length: Longest input in tokens; longer queries count as that.
        """
        return LengthDistribution.of_histogram(self.upto, self.queries, max_length)
