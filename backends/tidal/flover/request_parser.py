"""Parsing of a request: its prompts and options become generations, or an error that says what is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tidal.errors import InvalidArgument
from tidal.flover.beams import BeamGroup, BeamSettings
from tidal.flover.generation import Generation
from tidal.flover.guided import GuidedConstraint, GuidedGrammars, MaskWorker
from tidal.flover.policies import MemoryBudget
from tidal.flover.prompts import Prompt, PromptReader
from tidal.flover.responses import FloverResponse
from tidal.flover.sampling import Sampler
from tidal.flover.settings import beam_settings, sample_counts, sampling_params, top_logprobs
from tidal.flover.text import Detokenizer, StopMatcher, TokenTexts
from tidal.options import RequestOptions
from tidal.requests import StreamedRequest


@dataclass(frozen=True, slots=True)
class RequestParser:
    """Parser of requests to one model.

    Attributes:
        prompts: Reader of their prompts.
        grammars: Compiler of their grammars.
        masks: Worker that computes the masks of guided output.
        max_length: Largest number of tokens of a prompt and its text together.
        default_max_tokens: Number of tokens to generate if the request has no `max_tokens`.
        eos: Token ids that end a text.
        token_texts: Texts of the model's tokens.
        memory: Budget of keys and values; None: all slots fit.
    """

    prompts: PromptReader
    grammars: GuidedGrammars
    masks: MaskWorker
    max_length: int
    default_max_tokens: int
    eos: frozenset[int]
    token_texts: TokenTexts
    memory: MemoryBudget | None = None
    _lengths: dict[int, int] = field(default_factory=dict, init=False)  # number of characters of single tokens

    def parse(self, request: StreamedRequest) -> list[Generation]:
        """Return the generations of a request: of each prompt in their order, one or several.

        Raises:
            InvalidArgument: An input or option is not accepted; names it, the value received and what is accepted.
        """
        inputs, options = request.inputs, request.options
        beams = beam_settings(options)
        streaming = _flag(request, "stream")
        if beams is not None:
            self._check_slots("num_beams", beams.beams, "beams")
            prompts = self.prompts.read(inputs, options, beams.beams, "beams")
            samples = kept = 1
        else:
            samples, kept = sample_counts(options, streaming=streaming)
            self._check_slots("best_of" if options.best_of else "n", samples, "texts")
            prompts = self.prompts.read(inputs, options, samples, "texts")
        texts = None if top_logprobs(options) is None else self.token_texts
        response = FloverResponse(request, len(prompts), streaming, samples=samples, kept=kept, token_texts=texts)
        if request.record is not None:
            request.record.tokens = sum(len(prompt.ids) for prompt in prompts)
        _check_lengths(options, self.default_max_tokens)
        return [
            self._generation(response, number, prompts[number // samples], beams)
            for number in range(len(prompts) * samples)
        ]

    def _check_slots(self, option: str, each: int, unit: str) -> None:
        if each > self.prompts.slots:
            raise InvalidArgument(
                f"request option '{option}': {each} {unit} need {each} slots; this model has {self.prompts.slots}, its "
                "max_concurrency"
            )

    def _check_memory(self, beams: int, tokens: int) -> None:
        """Check that a search fits alone; a single sequence of any length does."""
        if self.memory is not None and not self.memory.fits_alone(beams, tokens):
            taken, most = beams * self.memory.pages.bytes(tokens), self.memory.size
            raise InvalidArgument(
                f"request option 'num_beams': {beams} beams of up to {tokens} tokens, prompt included, take {taken:,} "
                f"bytes of keys and values; the model has {most:,} (kv_cache_mb): lower num_beams or max_tokens"
            )

    def _generation(
        self, response: FloverResponse, number: int, prompt: Prompt, beams: BeamSettings | None
    ) -> Generation:
        request, options = response.request, response.request.options
        wanted = self.default_max_tokens if options.max_tokens is None else options.max_tokens
        max_tokens = min(wanted, self.max_length - len(prompt.ids))
        if beams is not None:
            self._check_memory(beams.beams, len(prompt.ids) + max_tokens)
        eos = frozenset[int]() if options.ignore_eos else self.eos
        stop_ids = frozenset(options.stop_token_ids or ())
        method: Sampler | BeamGroup
        if beams is None:
            method = Sampler(
                sampling_params(options, number, self.prompts.vocabulary),
                prompt.ids,
                eos | stop_ids,
                self._constraint(options),
            )
        else:
            method = BeamGroup(beams, prompt.ids.tolist(), max_tokens, self.eos, self.prompts.vocabulary)
        ranked = response.samples > response.kept
        return Generation(
            request.arrival,
            math.inf if request.deadline is None else request.deadline,
            len(prompt.ids),
            1 if beams is None else beams.beams,
            response=response,
            index=number,
            prompt_ids=prompt.ids,
            method=method,
            detokenizer=Detokenizer(self.prompts.tokenizer.tokenizer, prompt.ids.tolist(), self._lengths),
            stops=StopMatcher(options.stop or ()),
            max_tokens=max_tokens,
            eos=eos,
            stop_ids=stop_ids,
            min_tokens=options.min_tokens or 0,
            top_logprobs=0 if ranked and response.token_texts is None else top_logprobs(options),
            echo=prompt.text if options.echo else "",
        )

    def _constraint(self, options: RequestOptions) -> GuidedConstraint | None:
        matcher = self.grammars.matcher(options)
        if matcher is None:
            return None
        for name in ("ignore_eos", "min_tokens"):
            if getattr(options, name):
                raise InvalidArgument(
                    f"request option '{name}' cannot be combined with guided output: its grammar says where a text ends"
                )
        constraint = GuidedConstraint(matcher, self.prompts.vocabulary, self.eos, self.masks)
        if constraint.problem is not None:
            raise InvalidArgument(f"the grammar of the guided output allows no text: {constraint.problem}")
        return constraint


def _check_lengths(options: RequestOptions, default: int) -> None:
    most = default if options.max_tokens is None else options.max_tokens
    if options.min_tokens is not None and options.min_tokens > most:
        by_default = " by default" if options.max_tokens is None else ""
        raise InvalidArgument(
            f"request option 'min_tokens' is {options.min_tokens}; must be at most max_tokens, {most}{by_default}"
        )


def _flag(request: StreamedRequest, name: str) -> bool:
    values = request.inputs.get(name)
    if values is None:
        return False
    if values.shape != (1,):
        raise InvalidArgument(f"{name} has shape {list(values.shape)}; accepted is [1]")
    return bool(values[0])
