"""A request's prompts and options as streams, or the error that says what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tidal.errors import InvalidArgument
from tidal.flover.answers import Answer
from tidal.flover.beams import BeamGroup, BeamSettings
from tidal.flover.sampling import Sampler, Sampling
from tidal.flover.sampling.sampler import IntArray
from tidal.flover.streams import Stream
from tidal.flover.text import Detokenizer, StopWatch
from tidal.options import RequestOptions
from tidal.requests import Array, StreamedRequest
from tidal.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads requests to one model.

    Attributes:
        tokenizer: the model's, limited to the longest prompt.
        vocabulary: token ids of prompts are below this.
        max_length: tokens of prompt and answer together.
        default_max_tokens: to generate where the request does not say.
        slots: that a request may take, its prompts times its beams.
        eos: tokens that end a generation.
    """

    tokenizer: TextTokenizer
    vocabulary: int
    max_length: int
    default_max_tokens: int
    slots: int
    eos: frozenset[int]

    def read(self, request: StreamedRequest) -> list[Stream]:
        """The streams of a request, one for each prompt, in their order.

        Raises:
            InvalidArgument: names the input or option, what came and what is accepted; of a prompt its row.
        """
        inputs, options = request.inputs, request.options
        beams = _beams(options)
        prompts = self._prompts(inputs, 1 if beams is None else beams.beams)
        answer = Answer(request, len(prompts), _flag(inputs, "stream"))
        if request.record is not None:
            request.record.tokens = sum(len(ids) for ids in prompts)
        return [self._stream(answer, index, ids, beams) for index, ids in enumerate(prompts)]

    def _stream(self, answer: Answer, index: int, ids: IntArray, beams: BeamSettings | None) -> Stream:
        request, options = answer.request, answer.request.options
        wish = self.default_max_tokens if options.max_tokens is None else options.max_tokens
        most_tokens = min(wish, self.max_length - len(ids))
        taker: Sampler | BeamGroup
        if beams is None:
            taker = Sampler(_sampling(options, index), ids, self.vocabulary)
        else:
            taker = BeamGroup(beams, ids.tolist(), most_tokens, self.eos, self.vocabulary)
        return Stream(
            request.arrival,
            math.inf if request.deadline is None else request.deadline,
            len(ids),
            1 if beams is None else beams.beams,
            answer=answer,
            index=index,
            ids=ids,
            taker=taker,
            detokenizer=Detokenizer(self.tokenizer.tokenizer, ids.tolist()),
            stops=StopWatch(options.stop or ()),
            most_tokens=most_tokens,
            eos=self.eos,
        )

    def _prompts(self, inputs: Mapping[str, Array], beams: int) -> list[IntArray]:
        """Token ids of each prompt, each [tokens]."""
        if "text_input" in inputs and "input_ids" in inputs:
            raise InvalidArgument("both text_input and input_ids were sent; accepted is one of them")
        if beams > self.slots:
            raise InvalidArgument(
                f"request option 'num_beams': {beams} beams take as many slots; this model has {self.slots}, its "
                "max_concurrency"
            )
        if "input_ids" in inputs:
            ids = np.asarray(inputs["input_ids"], np.int64)
            if ids.ndim != 1 or not 1 <= len(ids) <= self.tokenizer.max_length:
                raise InvalidArgument(
                    f"input_ids has shape {list(ids.shape)}; accepted is [tokens], 1 to {self.tokenizer.max_length}"
                )
            if ids.min() < 0 or ids.max() >= self.vocabulary:
                wrong = int(ids[(ids < 0) | (ids >= self.vocabulary)][0])
                raise InvalidArgument(f"input_ids has the id {wrong}; accepted are 0 to {self.vocabulary - 1}")
            return [ids]
        if "text_input" not in inputs:
            raise InvalidArgument("the request has neither text_input nor input_ids; accepted is one of them")
        return self._texts(inputs["text_input"], beams)

    def _texts(self, texts: Array, beams: int) -> list[IntArray]:
        most = self.slots // beams
        if texts.ndim != 1 or not 1 <= len(texts) <= most:
            each = f" of {beams} beams each" if beams > 1 else ""
            raise InvalidArgument(
                f"text_input has shape {list(texts.shape)}; accepted is [prompts], 1 to {most}{each}: this model has "
                f"{self.slots} slots, its max_concurrency"
            )
        prompts = []
        for row, found in enumerate(self.tokenizer.encode_all(list(texts))):
            if not len(found.ids):
                raise InvalidArgument(f"text_input row {row} has no tokens; accepted is a text of at least one word")
            if found.ids.max() >= self.vocabulary:
                raise InvalidArgument(
                    f"text_input row {row} has the token {found.ids.max()}; the model knows 0 to {self.vocabulary - 1}"
                )
            prompts.append(found.ids)
        return prompts


def _beams(options: RequestOptions) -> BeamSettings | None:
    """Settings of a beam search, if the request asks for one."""
    if options.num_beams is None or options.num_beams == 1:
        for name in ("length_penalty", "early_stopping"):
            if getattr(options, name) is not None:
                raise InvalidArgument(f"request option '{name}': it goes with num_beams above 1 only")
        return None
    for name in ("temperature", "top_k", "top_p", "seed", "stop"):
        if getattr(options, name) not in (None, 0 if name == "temperature" else None):
            raise InvalidArgument(
                f"request option '{name}': it does not go with num_beams {options.num_beams}, which searches for the "
                "likeliest text and draws nothing"
            )
    return BeamSettings(
        options.num_beams,
        length_penalty=1.0 if options.length_penalty is None else options.length_penalty,
        early_stopping=False if options.early_stopping is None else options.early_stopping,
        repetition_penalty=1.0 if options.repetition_penalty is None else options.repetition_penalty,
    )


def _sampling(options: RequestOptions, index: int) -> Sampling:
    """Greedy, unless the request asks for something that goes with sampling only.

    Each prompt of a request draws by a seed of its own, so that equal prompts get different texts.
    """
    samples = any(each is not None for each in (options.top_k, options.top_p, options.seed))
    default = 1.0 if samples else 0.0
    return Sampling(
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
