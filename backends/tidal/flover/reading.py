"""A request's prompt and options as a stream, or the error that says what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tidal.errors import InvalidArgument
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
    """

    tokenizer: TextTokenizer
    vocabulary: int
    max_length: int
    default_max_tokens: int

    def read(self, request: StreamedRequest) -> Stream:
        """The stream of a request.

        Raises:
            InvalidArgument: names the input or option, what came and what is accepted.
        """
        inputs, options = request.inputs, request.options
        if options.task is not None:
            raise InvalidArgument(f"the request names the task '{options.task}' in its option 'task': it has no tasks")
        ids = self._prompt(inputs)
        wish = self.default_max_tokens if options.max_tokens is None else options.max_tokens
        return Stream(
            request.arrival,
            math.inf if request.deadline is None else request.deadline,
            len(ids),
            request=request,
            ids=ids,
            sampler=Sampler(_sampling(options), ids, self.vocabulary),
            detokenizer=Detokenizer(self.tokenizer.tokenizer, ids.tolist()),
            stops=StopWatch(options.stop or ()),
            most_tokens=min(wish, self.max_length - len(ids)),
            parts=_flag(inputs, "stream"),
        )

    def _prompt(self, inputs: Mapping[str, Array]) -> IntArray:
        if "text_input" in inputs and "input_ids" in inputs:
            raise InvalidArgument("both text_input and input_ids were sent; accepted is one of them")
        if "input_ids" in inputs:
            ids = np.asarray(inputs["input_ids"], np.int64)
            if ids.ndim != 1 or not 1 <= len(ids) <= self.tokenizer.max_length:
                raise InvalidArgument(
                    f"input_ids has shape {list(ids.shape)}; accepted is [tokens], 1 to {self.tokenizer.max_length}"
                )
        elif "text_input" in inputs:
            texts = inputs["text_input"]
            if texts.shape != (1,):
                raise InvalidArgument(f"text_input has shape {list(texts.shape)}; accepted is [1]")
            found = self.tokenizer.encode([texts[0]])[0]
            if isinstance(found, InvalidArgument):
                raise found
            ids = found.ids
            if not len(ids):
                raise InvalidArgument("text_input has no tokens; accepted is a text of at least one word")
        else:
            raise InvalidArgument("the request has neither text_input nor input_ids; accepted is one of them")
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            wrong = int(ids[(ids < 0) | (ids >= self.vocabulary)][0])
            raise InvalidArgument(f"input_ids has the id {wrong}; accepted are 0 to {self.vocabulary - 1}")
        return ids


def _sampling(options: RequestOptions) -> Sampling:
    """Greedy, unless the request asks for something that goes with sampling only."""
    samples = any(each is not None for each in (options.top_k, options.top_p, options.seed))
    default = 1.0 if samples else 0.0
    return Sampling(
        temperature=default if options.temperature is None else options.temperature,
        top_k=options.top_k or 0,
        top_p=1.0 if options.top_p is None else options.top_p,
        repetition_penalty=1.0 if options.repetition_penalty is None else options.repetition_penalty,
        seed=options.seed,
    )


def _flag(inputs: Mapping[str, Array], name: str) -> bool:
    values = inputs.get(name)
    if values is None:
        return False
    if values.shape != (1,):
        raise InvalidArgument(f"{name} has shape {list(values.shape)}; accepted is [1]")
    return bool(values[0])
