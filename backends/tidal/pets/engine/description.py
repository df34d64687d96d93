"""`encoder.json`: the layers of an encoder that tasks may change, and where their weights are in the file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from tidal.errors import InvalidArgument
from tidal.manifest import Strict

GRAPH_FILE = "encoder.xml"
WEIGHTS_FILE = "encoder.safetensors"
DESCRIPTION_FILE = "encoder.json"
# Name of the output of the graph and of the model.
ATTENTION_RECEIVED = "attention_received"
# Name of the word embeddings among the weights.
WORDS = "words"


class LinearSpec(Strict):
    """A linear layer: rows `first` to `first + outputs` of the tensors `weight` [.., inputs] and `bias`."""

    path: str
    outputs: int = Field(ge=1)
    inputs: int = Field(ge=1, le=65536)
    weight: str
    bias: str
    first: int = Field(0, ge=0)
    norm: str | None = Field(
        None, description="path of the normalisation of the sum of the layer's outputs and the residual; None: no such"
    )


class NormSpec(Strict):
    """A normalisation: the tensors `weight` and `bias`, [width] each."""

    path: str
    width: int = Field(ge=1)
    weight: str
    bias: str


class BlockPaths(Strict):
    """Paths of the layers of one block, by which tasks name them."""

    query: str
    key: str
    value: str
    attention_output: str
    attention_norm: str
    inner: str
    outer: str
    output_norm: str


class EncoderForm(Strict):
    """How an encoder computes from its layers, for engines that do not read a graph."""

    heads: int = Field(ge=1)
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"]
    epsilon: float = Field(gt=0)
    embedding_norm: str
    blocks: tuple[BlockPaths, ...] = Field(min_length=1)
    pooler: str | None = Field(description="path of the linear layer on the first token; None: no such layer")
    pooler_activation: Literal["tanh", "relu"] | None


class Description(Strict):
    """An encoder. A layer's number is its index in `linear` or `norm`."""

    format: Literal[1] = 1
    digest: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="digest of the base's weights, by which tasks name their base"
    )
    model_type: str = Field(description="model type in Hugging Face's configuration, for example 'bert'")
    width: int = Field(ge=1, description="size of the pooled vector")
    vocabulary: int = Field(ge=1, description="number of token ids")
    longest: int = Field(ge=1, description="largest number of tokens of a row")
    types: int = Field(ge=0, description="number of token types, if the encoder reads them; else 0")
    linear: tuple[LinearSpec, ...]
    norm: tuple[NormSpec, ...]
    form: EncoderForm | None = Field(None, description="form of an encoder without a graph")
    attention: bool = Field(False, description="whether the graph returns the attention that tokens receive")
    hidden: bool = Field(False, description="whether hidden states are outputs, and not only pooled vectors")
    packed: bool = Field(False, description="whether the graph takes the tokens of all rows without padding")


def read_description(folder: Path) -> Description:
    """Read `encoder.json`.

    Args:
        folder: Folder of the exported encoder.

    Raises:
        InvalidArgument: The file is missing or not valid.
    """
    path = folder / DESCRIPTION_FILE
    try:
        return Description.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])) or "file"
        raise InvalidArgument(f"{path} is not valid: {field}: {problem['msg']}") from None
