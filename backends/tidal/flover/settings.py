"""Settings of beam search and sampling from the options of a request."""

from __future__ import annotations

from tidal.errors import InvalidArgument
from tidal.flover.beams import BeamSettings
from tidal.flover.sampling import SamplingParams
from tidal.options import RequestOptions

# Options that beam search does not use, with the value that is accepted beside it.
_NOT_WITH_BEAMS = {
    "temperature": 0, "top_k": None, "top_p": None, "min_p": None, "presence_penalty": 0, "frequency_penalty": 0,
    "logit_bias": None, "seed": None, "n": 1, "best_of": 1, "stop": None, "stop_token_ids": None, "min_tokens": 0,
    "ignore_eos": False, "logprobs": False, "top_logprobs": 0, "guided_json": None, "guided_regex": None,
    "guided_choice": None, "guided_grammar": None,
}  # fmt: skip


def beam_settings(options: RequestOptions) -> BeamSettings | None:
    """Return the settings of the beam search; None if the request does not request one.

    Raises:
        InvalidArgument: Options exclude each other; names them.
    """
    if options.num_beams is None or options.num_beams == 1:
        for name in ("length_penalty", "early_stopping"):
            if getattr(options, name) is not None:
                raise InvalidArgument(f"request option '{name}' requires num_beams above 1")
        return None
    for name, neutral in _NOT_WITH_BEAMS.items():
        if getattr(options, name) not in (None, neutral):
            raise InvalidArgument(
                f"request option '{name}' cannot be combined with num_beams {options.num_beams}: beam search does not "
                "sample; accepted with it are max_tokens, length_penalty, early_stopping, repetition_penalty and echo"
            )
    return BeamSettings(
        options.num_beams,
        length_penalty=1.0 if options.length_penalty is None else options.length_penalty,
        early_stopping=False if options.early_stopping is None else options.early_stopping,
        repetition_penalty=1.0 if options.repetition_penalty is None else options.repetition_penalty,
    )


def sample_counts(options: RequestOptions, *, streaming: bool) -> tuple[int, int]:
    """Return the numbers of texts to generate and to answer for each prompt.

    Args:
        options: Options of the request.
        streaming: Whether the text is sent in parts.

    Raises:
        InvalidArgument: Options exclude each other; names them.
    """
    answered = options.n or 1
    generated = options.best_of or answered
    if generated < answered:
        raise InvalidArgument(f"request option 'best_of' is {generated}; must be at least n, {answered}")
    if generated > answered and streaming:
        raise InvalidArgument(
            f"request option 'best_of': {generated} texts of which {answered} are answered cannot be streamed; leave "
            "stream or best_of out"
        )
    if generated > 1 and _sampling_defaults(options).greedy:
        raise InvalidArgument(
            f"request option '{'best_of' if options.best_of else 'n'}' is {generated}, and greedy decoding generates "
            "the same text each time; send a temperature above 0 or a seed"
        )
    return generated, answered


def sampling_params(options: RequestOptions, number: int, vocabulary: int) -> SamplingParams:
    """Return the settings of one text: greedy, unless the request sets an option of sampling.

    Each text of a request has its own seed, so that equal prompts get different texts.

    Args:
        options: Options of the request.
        number: Number of the text in its request.
        vocabulary: Size of the vocabulary.

    Raises:
        InvalidArgument: `logit_bias` or `stop_token_ids` names a token that the model does not have.
    """
    biases = options.logit_bias or ()
    for name, ids in (("logit_bias", [token for token, _ in biases]), ("stop_token_ids", options.stop_token_ids or ())):
        for token in ids:
            if not 0 <= token < vocabulary:
                raise InvalidArgument(
                    f"request option '{name}' has the token id {token}; accepted are 0 to {vocabulary - 1}"
                )
    defaults = _sampling_defaults(options)
    return SamplingParams(
        temperature=defaults.temperature,
        top_k=defaults.top_k,
        top_p=1.0 if options.top_p is None else options.top_p,
        repetition_penalty=1.0 if options.repetition_penalty is None else options.repetition_penalty,
        seed=None if options.seed is None else options.seed + number,
        min_p=options.min_p or 0.0,
        presence_penalty=options.presence_penalty or 0.0,
        frequency_penalty=options.frequency_penalty or 0.0,
        logit_bias=biases,
        min_tokens=options.min_tokens or 0,
    )


def top_logprobs(options: RequestOptions) -> int | None:
    """Return the number of most likely tokens to answer for each token; None: no log probabilities.

    Raises:
        InvalidArgument: `top_logprobs` is set without `logprobs`.
    """
    if options.logprobs:
        return options.top_logprobs or 0
    if options.top_logprobs:
        raise InvalidArgument("request option 'top_logprobs' requires logprobs: true")
    return None


def _sampling_defaults(options: RequestOptions) -> SamplingParams:
    """Temperature and top-k with their defaults."""
    samples = any(each is not None for each in (options.top_k, options.top_p, options.min_p, options.seed))
    temperature = (1.0 if samples else 0.0) if options.temperature is None else options.temperature
    return SamplingParams(temperature=temperature, top_k=options.top_k or 0)
