"""Parameters of a `nearest` model's config.pbtxt."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

#: Maximum number of texts of an answer: as many as a request to the other systems has rows.
MAX_TEXTS = 64


class NearestParameters(BaseModel):
    """Parameters of the `nearest` backend, in addition to those of all backends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    texts: int = Field(20, ge=1, le=MAX_TEXTS, description="number of texts for a request without the option `top_k`")
