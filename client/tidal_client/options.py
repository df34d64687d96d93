"""Request options as keyword arguments. They are sent as Triton request parameters; the server validates them."""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from tidal_client.errors import InvalidArgument

Parameter = str | int | float


class Options(TypedDict, total=False):
    """Options of Tidal's models; absent or None: the model's default."""

    #: Name of the task.
    task: str | None
    #: Deadline in milliseconds after the request's arrival; a missed deadline ends in `Unavailable`.
    latency_ms: float | None
    #: Utility of a response that meets the deadline.
    utility: float | None
    #: Cascades: minimum score to reach, in the metric that the cascade was built with.
    accuracy: float | None
    #: Cascades: highest level to use, from 1.
    max_level: int | None
    #: Embeddings: number of dimensions to keep, for models trained for it; the vectors are normalised again.
    dimensions: int | None
    #: Several labels for each text: minimum probability of a label, 0 to 1.
    threshold: float | None
    #: Entities: how tokens are joined, as in transformers' pipeline.
    aggregation: Literal["none", "simple", "first", "average", "max"] | None
    #: Maximum number of tokens to generate.
    max_tokens: int | None
    #: Sampling temperature; 0: greedy decoding.
    temperature: float | None
    #: Sample from the k most likely tokens; answers and masks: number of candidates to return.
    top_k: int | None
    #: Sample from the most likely tokens whose probabilities sum to this, above 0 and up to 1.
    top_p: float | None
    #: Sample from tokens with at least this share of the most likely token's probability.
    min_p: float | None
    #: Penalty on tokens that already occur in the text: above 1 less likely, below 1 more likely.
    repetition_penalty: float | None
    #: Subtracted from the logits of tokens that occur in the generated text.
    presence_penalty: float | None
    #: Subtracted from the logits of tokens, times their number in the generated text.
    frequency_penalty: float | None
    #: Added to the logits of tokens, by token id, from -100 to 100.
    logit_bias: Mapping[int, float] | None
    #: Seed of the sampling.
    seed: int | None
    #: Number of texts for each prompt.
    n: int | None
    #: Number of texts to generate for each prompt, of which the `n` with the highest mean log probability are returned.
    best_of: int | None
    #: Text or texts that end the generation; not part of the result.
    stop: str | Sequence[str] | None
    #: Token ids that end the generation.
    stop_token_ids: Sequence[int] | None
    #: Number of tokens to generate before the text may end by itself.
    min_tokens: int | None
    #: Whether to continue after an end-of-text token.
    ignore_eos: bool | None
    #: Whether the text begins with the prompt.
    echo: bool | None
    #: Whether to return the log probability of each generated token.
    logprobs: bool | None
    #: Number of most likely tokens to return for each token.
    top_logprobs: int | None
    #: JSON schema that the text conforms to.
    guided_json: Mapping[str, Any] | None
    #: Regular expression that the whole text matches.
    guided_regex: str | None
    #: Texts, one of which is generated.
    guided_choice: Sequence[str] | None
    #: Grammar of the text, in Lark's format.
    guided_grammar: str | None
    #: Further variables of the chat template.
    chat_template_kwargs: Mapping[str, Any] | None
    #: Number of beams; above 1: beam search.
    num_beams: int | None
    #: Beam search: above 0 favors long texts, below 0 short ones.
    length_penalty: float | None
    #: Beam search: stop condition, see docs/flover.md.
    early_stopping: bool | Literal["never"] | None
    #: W3C trace context that the server's spans of the request continue; None: the current span of OpenTelemetry.
    traceparent: str | None


class CallOptions(Options, total=False):
    """Keyword arguments of every call: those below and the request options."""

    #: Id of the request in the server's logs; a call with several requests gives it to each.
    request_id: str
    #: Timeout in seconds of each request, retries included; of a stream: of each part, and of the start of the last
    #: retry. Absent or None: the client's.
    timeout_s: float | None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _stops(value: object) -> str:
    """Return one stop text as is, unless it begins like a JSON list; several as a JSON list."""
    texts = [value] if isinstance(value, str) else list(map(_text, value)) if isinstance(value, Sequence) else None
    if texts is None:
        raise TypeError
    one = texts[0] if len(texts) == 1 else None
    return json.dumps(texts) if one is None or one.startswith("[") else one


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _biases(value: object) -> str:
    if not isinstance(value, Mapping):
        raise TypeError
    return json.dumps({str(_whole(token)): _number(bias) for token, bias in value.items()})


def _token_ids(value: object) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError
    return json.dumps(list(map(_whole, value)))


def _choices(value: object) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError
    return json.dumps(list(map(_text, value)))


def _object(value: object) -> str:
    if not isinstance(value, Mapping):
        raise TypeError
    return json.dumps(value)


def _early_stopping(value: object) -> Parameter:
    if not isinstance(value, bool) and value != "never":
        raise TypeError
    return value if isinstance(value, bool) else "never"


# tritonclient accepts exactly these Python types, so numpy's numbers are converted.
_KINDS: dict[str, tuple[Callable[[Any], Parameter], str]] = {
    "task": (_text, "text"),
    "latency_ms": (_number, "a number"),
    "utility": (_number, "a number"),
    "accuracy": (_number, "a number"),
    "max_level": (_whole, "a whole number"),
    # An argument of methods that embed; generation has another one of this name.
    "prompt": (_text, "text"),
    "dimensions": (_whole, "a whole number"),
    "threshold": (_number, "a number"),
    "aggregation": (_text, "text"),
    "max_tokens": (_whole, "a whole number"),
    "temperature": (_number, "a number"),
    "top_k": (_whole, "a whole number"),
    "top_p": (_number, "a number"),
    "min_p": (_number, "a number"),
    "repetition_penalty": (_number, "a number"),
    "presence_penalty": (_number, "a number"),
    "frequency_penalty": (_number, "a number"),
    "logit_bias": (_biases, "a mapping from token ids to numbers"),
    "seed": (_whole, "a whole number"),
    "n": (_whole, "a whole number"),
    "best_of": (_whole, "a whole number"),
    "stop": (_stops, "a text or a list of texts"),
    "stop_token_ids": (_token_ids, "a list of whole numbers"),
    "min_tokens": (_whole, "a whole number"),
    "ignore_eos": (_flag, "True or False"),
    "echo": (_flag, "True or False"),
    "logprobs": (_flag, "True or False"),
    "top_logprobs": (_whole, "a whole number"),
    "guided_json": (_object, "a JSON schema as a mapping"),
    "guided_regex": (_text, "text"),
    "guided_choice": (_choices, "a list of texts"),
    "guided_grammar": (_text, "text"),
    "chat_template_kwargs": (_object, "a mapping of JSON values"),
    "num_beams": (_whole, "a whole number"),
    "length_penalty": (_number, "a number"),
    "early_stopping": (_early_stopping, "True, False or 'never'"),
    "traceparent": (_text, "text"),
}


def request_parameters(options: Mapping[str, object]) -> dict[str, Parameter]:
    """Return the Triton request parameters of options.

    Args:
        options: Values by option name; None: not sent.

    Raises:
        TypeError: A name is not an option.
        InvalidArgument: A value has a wrong type.
    """
    parameters: dict[str, Parameter] = {}
    for name, value in options.items():
        if name not in _KINDS:
            raise TypeError(f"unexpected keyword argument '{name}'; options are {', '.join(_KINDS)}")
        if value is None:
            continue
        convert, kind = _KINDS[name]
        try:
            parameters[name] = convert(value)
        except (TypeError, ValueError):
            raise InvalidArgument(f"option '{name}': expected {kind}, got {value!r}") from None
    if "traceparent" not in parameters and (current := _current_traceparent()) is not None:
        parameters["traceparent"] = current
    return parameters


def _current_traceparent() -> str | None:
    """Return the W3C trace context of the current span of OpenTelemetry; None if this program does not trace."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    flags = int(context.trace_flags) & 1
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}" if context.is_valid else None
