"""`encoder.json`: which layers of the graph beside it tasks may change, and where their weights are in it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from tidal.errors import InvalidArgument
from tidal.manifest import Strict

GRAPH_FILE = "encoder.xml"
DESCRIPTION_FILE = "encoder.json"


class LinearPlace(Strict):
    """A linear layer: rows `first` to `first + outputs` of the graph's constants `weight` [.., inputs] and `bias`."""

    path: str
    outputs: int = Field(ge=1)
    inputs: int = Field(ge=1, le=65536)
    weight: str
    bias: str
    first: int = Field(0, ge=0)


class NormPlace(Strict):
    """A normalisation: the graph's constants `weight` and `bias`, [width] each."""

    path: str
    width: int = Field(ge=1)
    weight: str
    bias: str


class Description(Strict):
    """An encoder's graph. A layer's number in the graph's operations is its place in these lists."""

    format: Literal[1] = 1
    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="of the base's weights: what tasks name as their base")
    model_type: str = Field(description="as Hugging Face names it, for example 'bert'")
    width: int = Field(ge=1, description="of the pooled vector")
    vocabulary: int = Field(ge=1, description="token ids are below it")
    longest: int = Field(ge=1, description="tokens of the longest row")
    types: int = Field(ge=0, description="token types that the graph has an input for; 0: none")
    linear: tuple[LinearPlace, ...]
    norm: tuple[NormPlace, ...]


def read_description(folder: Path) -> Description:
    """Read `encoder.json`.

    Raises:
        InvalidArgument: it is missing or not valid.
    """
    path = folder / DESCRIPTION_FILE
    try:
        return Description.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "file"
        raise InvalidArgument(f"{path} is not valid: {place}: {problem['msg']}") from None
