"""The options of a request, parsed and checked in one place.

Every backend checks all options and uses those that it knows how to use. An ensemble passes the same parameters to
all its models, so an option that a system does not use is accepted; an unknown name is always an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidal.errors import InvalidArgument, did_you_mean
from tidal.options.traceparent import TRACEPARENT_NAMES
from tidal.options.values import (
    MAX_TEXT_CHARS,
    Biases,
    Choices,
    EarlyStopping,
    Flag,
    Integer,
    JsonObject,
    Number,
    Texts,
    TokenIds,
)

# Sent by a model that calls another model of its server, and by clients in streams: error messages have to contain
# the code, see `tidal.serving.coded_errors`.
CODED_ERRORS = "tidal_coded_errors"
# Sent by a model that calls another model of its server, for the request log.
FROM_MODEL = "tidal_from_model"
# Parameters that Triton or its HTTP frontends add to those of the client.
_TRITON_OWN = frozenset({"id", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "headers"})
_NO_OPTIONS = _TRITON_OWN | {CODED_ERRORS, FROM_MODEL, *TRACEPARENT_NAMES}
_TRITON_PREFIX = "triton_"
# Limit on all parameters of a request together, as JSON: more than the longest accepted options, a grammar and the
# arguments of a chat template, of which JSON may write a character as 12.
MAX_OPTIONS_CHARS = 2 << 20


class RequestOptions(BaseModel):
    """Options of one request. An option that was not sent is None, which a backend replaces by its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str | None = Field(None, min_length=1, max_length=256, description="task that the query belongs to")
    latency_ms: Number | None = Field(None, gt=0, le=3_600_000, description="deadline in milliseconds after arrival")
    utility: Number | None = Field(None, ge=0, le=1e6, description="utility of an answer within the deadline")
    accuracy: Number | None = Field(None, ge=0, le=1, description="lowest accepted score, by the model's own metric")
    max_level: Integer | None = Field(None, ge=1, le=1000, description="last level of a cascade that may run, from 1")
    max_tokens: Integer | None = Field(None, ge=1, le=1_000_000, description="maximum number of tokens to generate")
    temperature: Number | None = Field(None, ge=0, le=100, description="sampling temperature; 0 is greedy decoding")
    top_k: Integer | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="sample from the k most likely tokens, 0 for no limit; for questions and masked words: number of "
        "answers, at least 1",
    )
    top_p: Number | None = Field(
        None, gt=0, le=1, description="sample from the most likely tokens that together have this probability"
    )
    min_p: Number | None = Field(
        None, ge=0, le=1, description="sample from tokens with at least this share of the most likely one's probability"
    )
    repetition_penalty: Number | None = Field(
        None, gt=0, le=100, description="above 1 makes repeated tokens less likely, below 1 more likely"
    )
    presence_penalty: Number | None = Field(
        None, ge=-2, le=2, description="subtracted from the logits of tokens that occur in the generated text"
    )
    frequency_penalty: Number | None = Field(
        None, ge=-2, le=2, description="subtracted from the logits of tokens, times their number in the generated text"
    )
    logit_bias: Biases | None = Field(None, description="added to the logits of tokens: JSON object by token id")
    seed: Integer | None = Field(None, ge=0, lt=2**63, description="random seed for sampling")
    n: Integer | None = Field(None, ge=1, le=1024, description="number of texts to generate for each prompt")
    best_of: Integer | None = Field(
        None, ge=1, le=1024, description="number of texts to generate for each prompt, of which the n best are answered"
    )
    stop: Texts | None = Field(None, description="text that ends generation, or a JSON list of such texts")
    stop_token_ids: TokenIds | None = Field(
        None, description="token id that ends generation, or a JSON list of such ids"
    )
    min_tokens: Integer | None = Field(
        None, ge=0, le=1_000_000, description="number of tokens to generate before the text may end by itself"
    )
    ignore_eos: Flag | None = Field(None, description="whether to continue after an end-of-text token")
    echo: Flag | None = Field(None, description="whether the text begins with the prompt")
    logprobs: Flag | None = Field(None, description="whether to return the log probability of each generated token")
    top_logprobs: Integer | None = Field(
        None, ge=0, le=20, description="number of most likely tokens to return for each token, with log probabilities"
    )
    guided_json: JsonObject | None = Field(None, description="JSON schema, as JSON text, that the text conforms to")
    guided_regex: str | None = Field(
        None, min_length=1, max_length=MAX_TEXT_CHARS, description="regular expression that the whole text matches"
    )
    guided_choice: Choices | None = Field(None, description="JSON list of texts, one of which is generated")
    guided_grammar: str | None = Field(
        None, min_length=1, max_length=MAX_TEXT_CHARS, description="grammar of the text, in Lark's format"
    )
    chat_template_kwargs: JsonObject | None = Field(
        None, description="JSON object of further variables of the chat template"
    )
    num_beams: Integer | None = Field(None, ge=1, le=1024, description="number of beams in beam search")
    length_penalty: Number | None = Field(
        None, ge=-2, le=10, description="above 0 makes beam search prefer long texts, below 0 short ones"
    )
    threshold: Number | None = Field(
        None, ge=0, le=1, description="lowest probability of a label to be listed; default 0.5"
    )
    prompt: str | None = Field(
        None, min_length=1, max_length=256, description="name of the prompt to put in front of a text"
    )
    dimensions: Integer | None = Field(
        None, ge=1, le=1_000_000, description="number of components of an embedding, from the first"
    )
    aggregation: Literal["none", "simple", "first", "average", "max"] | None = Field(
        None, description="how tokens become entities; default simple"
    )
    early_stopping: EarlyStopping | None = Field(None, description="when beam search ends: true, false or 'never'")


_NONE = RequestOptions()


def parse_options(raw: Mapping[str, Any] | None) -> RequestOptions:
    """Check a request's parameters.

    Args:
        raw: Value by parameter name as Triton passes them: int, float, bool or text.

    Returns:
        The options; None for each that was not sent.

    Raises:
        InvalidArgument: An option is unknown, of a wrong type or out of range; names the option and what is accepted.
    """
    if not raw:
        return _NONE
    own = {k: v for k, v in raw.items() if k not in _NO_OPTIONS and not k.startswith(_TRITON_PREFIX)}
    if not own:
        return _NONE
    for name in own:
        if name == "stream":  # `generate` sends a name that is not an input of the model as an option
            raise InvalidArgument(
                "unknown request option 'stream': this model does not generate text, and only those that do have this "
                "input; leave it out"
            )
        if name not in RequestOptions.model_fields:
            raise InvalidArgument(
                f"unknown request option '{name[:80]}': {did_you_mean(name, RequestOptions.model_fields)}"
            )
    try:
        return RequestOptions.model_validate(own)
    except ValidationError as error:
        raise InvalidArgument("; ".join(map(_sentence, error.errors()))) from None


def _sentence(problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    message = str(problem["msg"]).removeprefix("Value error, ")
    meaning = RequestOptions.model_fields[name].description
    return f"request option '{name}': {message[0].lower()}{message[1:]} ({meaning})"
