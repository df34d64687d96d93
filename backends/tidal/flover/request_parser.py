"""Parsing of a request: its prompts and options become generations, or an error that says what is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tidal.errors import InvalidArgument
from tidal.flover.beams import BeamGroup, BeamSettings
from tidal.flover.generation import Generation
from tidal.flover.responses import FloverResponse
from tidal.flover.sampling import IntArray, Sampler, SamplingParams
from tidal.flover.text import Detokenizer, StopMatcher
from tidal.options import RequestOptions
from tidal.requests import Array, StreamedRequest
from tidal.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class RequestParser:
    """Parser of requests to one model.

    Attributes:
        tokenizer: Tokenizer of the model, limited to the longest prompt.
        vocabulary: Size of the vocabulary; token ids are below it.
        max_length: Largest number of tokens of a prompt and its text together.
        default_max_tokens: Number of tokens to generate if the request has no `max_tokens`.
        slots: Number of slots of the model; a request needs one per prompt and beam.
        eos: Token ids that end a text.
    """

    tokenizer: TextTokenizer
    vocabulary: int
    max_length: int
    default_max_tokens: int
    slots: int
    eos: frozenset[int]

    def parse(self, request: StreamedRequest) -> list[Generation]:
        """Return the generations of a request, one per prompt and in their order.

        Raises:
            InvalidArgument: An input or option is not accepted; names it, the value received and what is accepted.
        """
        inputs, options = request.inputs, request.options
        beams = _beam_settings(options)
        prompts = self._prompts(inputs, 1 if beams is None else beams.beams)
        response = FloverResponse(request, len(prompts), _flag(inputs, "stream"))
        if request.record is not None:
            request.record.tokens = sum(len(ids) for ids in prompts)
        return [self._generation(response, index, ids, beams) for index, ids in enumerate(prompts)]

    def _generation(
        self, response: FloverResponse, index: int, ids: IntArray, beams: BeamSettings | None
    ) -> Generation:
        request, options = response.request, response.request.options
        wanted = self.default_max_tokens if options.max_tokens is None else options.max_tokens
        max_tokens = min(wanted, self.max_length - len(ids))
        method: Sampler | BeamGroup
        if beams is None:
            method = Sampler(_sampling_params(options, index), ids, self.vocabulary)
        else:
            method = BeamGroup(beams, ids.tolist(), max_tokens, self.eos, self.vocabulary)
        return Generation(
            request.arrival,
            math.inf if request.deadline is None else request.deadline,
            len(ids),
            1 if beams is None else beams.beams,
            response=response,
            index=index,
            prompt_ids=ids,
            method=method,
            detokenizer=Detokenizer(self.tokenizer.tokenizer, ids.tolist()),
            stops=StopMatcher(options.stop or ()),
            max_tokens=max_tokens,
            eos=self.eos,
        )

    def _prompts(self, inputs: Mapping[str, Array], beams: int) -> list[IntArray]:
        """Token ids of each prompt, each [tokens] int64."""
        if "text_input" in inputs and "input_ids" in inputs:
            raise InvalidArgument("both text_input and input_ids were sent; accepted is one of them")
        if beams > self.slots:
            raise InvalidArgument(
                f"request option 'num_beams': {beams} beams need {beams} slots; this model has {self.slots}, its "
                "max_concurrency"
            )
        if "input_ids" in inputs:
            return [self._checked_ids(np.asarray(inputs["input_ids"], np.int64))]
        if "text_input" not in inputs:
            raise InvalidArgument("the request has neither text_input nor input_ids; accepted is one of them")
        return self._tokenized(inputs["text_input"], beams)

    def _checked_ids(self, ids: IntArray) -> IntArray:
        if ids.ndim != 1 or not 1 <= len(ids) <= self.tokenizer.max_length:
            raise InvalidArgument(
                f"input_ids has shape {list(ids.shape)}; accepted is [tokens], 1 to {self.tokenizer.max_length}"
            )
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            wrong = int(ids[(ids < 0) | (ids >= self.vocabulary)][0])
            raise InvalidArgument(f"input_ids has the id {wrong}; accepted are 0 to {self.vocabulary - 1}")
        return ids

    def _tokenized(self, texts: Array, beams: int) -> list[IntArray]:
        most = self.slots // beams
        if texts.ndim != 1 or not 1 <= len(texts) <= most:
            each = f" of {beams} beams each" if beams > 1 else ""
            raise InvalidArgument(
                f"text_input has shape {list(texts.shape)}; accepted is [prompts], 1 to {most}{each}: this model has "
                f"{self.slots} slots, its max_concurrency"
            )
        prompts = []
        for row, encoded in enumerate(self.tokenizer.encode_all(list(texts))):
            if not len(encoded.ids):
                raise InvalidArgument(f"text_input row {row} has no tokens; accepted is a text of at least one word")
            if encoded.ids.max() >= self.vocabulary:
                raise InvalidArgument(
                    f"text_input row {row} has the token id {encoded.ids.max()}; accepted are 0 to "
                    f"{self.vocabulary - 1}"
                )
            prompts.append(encoded.ids)
        return prompts


def _beam_settings(options: RequestOptions) -> BeamSettings | None:
    """Settings of the beam search; None if the request does not request one."""
    if options.num_beams is None or options.num_beams == 1:
        for name in ("length_penalty", "early_stopping"):
            if getattr(options, name) is not None:
                raise InvalidArgument(f"request option '{name}' requires num_beams above 1")
        return None
    for name in ("temperature", "top_k", "top_p", "seed", "stop"):
        if getattr(options, name) not in (None, 0 if name == "temperature" else None):
            raise InvalidArgument(
                f"request option '{name}' cannot be combined with num_beams {options.num_beams}: beam search does not "
                "sample; accepted with it are max_tokens, length_penalty, early_stopping and repetition_penalty"
            )
    return BeamSettings(
        options.num_beams,
        length_penalty=1.0 if options.length_penalty is None else options.length_penalty,
        early_stopping=False if options.early_stopping is None else options.early_stopping,
        repetition_penalty=1.0 if options.repetition_penalty is None else options.repetition_penalty,
    )


def _sampling_params(options: RequestOptions, index: int) -> SamplingParams:
    """Greedy, unless the request sets an option of sampling.

    Each prompt of a request has its own seed, so that equal prompts get different texts.
    """
    samples = any(each is not None for each in (options.top_k, options.top_p, options.seed))
    default = 1.0 if samples else 0.0
    return SamplingParams(
        temperature=default if options.temperature is None else options.temperature,
        top_k=options.top_k or 0,
        top_p=1.0 if options.top_p is None else options.top_p,
        repetition_penalty=1.0 if options.repetition_penalty is None else options.repetition_penalty,
        seed=None if options.seed is None else options.seed + index,
    )


def _flag(inputs: Mapping[str, Array], name: str) -> bool:
    values = inputs.get(name)
    if values is None:
        return False
    if values.shape != (1,):
        raise InvalidArgument(f"{name} has shape {list(values.shape)}; accepted is [1]")
    return bool(values[0])
