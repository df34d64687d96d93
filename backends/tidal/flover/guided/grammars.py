"""Grammars of requests, compiled for a model's tokens by llguidance."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from tokenizers import Tokenizer

from tidal.errors import InvalidArgument
from tidal.options import RequestOptions

# Compiled grammars that are kept for later requests; each takes some hundred kB.
_KEPT = 32
# Blanks of JSON: at most one where JSON allows any number, as a model could generate blanks without end.
_JSON_BLANKS = "[ ]?"


class GuidedGrammars:
    """Compiles the grammars of requests to one model; any thread may use it.

    Args:
        tokenizer: Tokenizer of the model.
        vocabulary: Size of the model's vocabulary.
        eos: Token ids that end a text.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, eos: Collection[int]) -> None:
        self._source = tokenizer
        self._vocabulary = vocabulary
        self._eos = frozenset(eos)
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._limits = LLParserLimits(verbose_errors=False)
        self._lock = threading.Lock()

    def matcher(self, options: RequestOptions) -> LLMatcher | None:
        """Return a matcher of the grammar that a request names; None if it names none.

        Raises:
            InvalidArgument: The grammar is not valid, the request names several, or the model cannot be guided; says
                why.
        """
        grammars = {
            "guided_json": options.guided_json, "guided_regex": options.guided_regex,
            "guided_choice": options.guided_choice, "guided_grammar": options.guided_grammar,
        }  # fmt: skip
        named = [name for name, value in grammars.items() if value is not None]
        if not named:
            return None
        if len(named) > 1:
            raise InvalidArgument(f"request options '{named[0]}' and '{named[1]}' were sent; accepted is one of them")
        with self._lock:
            return self._copy(named[0], _grammar(options))

    def _copy(self, name: str, grammar: str) -> LLMatcher:
        known = self._compiled.get(grammar)
        if known is None:
            tokenizer = self._open(name)
            error = LLMatcher.validate_grammar(grammar, tokenizer, limits=self._limits)
            if error and not error.startswith("WARNING"):
                raise InvalidArgument(f"request option '{name}': {_one_line(error)}")
            known = LLMatcher(tokenizer, grammar, log_level=0, limits=self._limits)
            if known.is_error():
                raise InvalidArgument(f"request option '{name}': {_one_line(known.get_error())}")
            self._compiled[grammar] = known
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return known.deep_copy()

    def _open(self, name: str) -> LLTokenizer:
        if self._tokenizer is None:
            ids = frozenset(self._source.get_vocab(with_added_tokens=True).values())
            ends = sorted(self._eos & ids)
            if not ends:
                raise InvalidArgument(
                    f"request option '{name}' requires a model with an end-of-text token; this one has none"
                )
            try:
                # Ids of a tokenizer that exceed the model's are cut off later.
                size = max(self._vocabulary, max(ids) + 1)
                self._tokenizer = LLTokenizer(self._source.to_str(), n_vocab=size, eos_token=ends)
            except ValueError as error:
                raise InvalidArgument(
                    f"request option '{name}': this model's tokenizer cannot be used for guided output: "
                    f"{_one_line(error)}"
                ) from None
        return self._tokenizer


def _grammar(options: RequestOptions) -> str:
    """The request's grammar as llguidance reads it."""
    if options.guided_json is not None:
        schema = json.dumps(options.guided_json)
        return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _JSON_BLANKS})
    if options.guided_regex is not None:
        # `\d` is a digit of ASCII, as in JavaScript; otherwise of any script.
        return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(options.guided_regex, 'd')}/")
    if options.guided_choice is not None:
        choices = (json.dumps(choice, ensure_ascii=False) for choice in options.guided_choice)
        return LLMatcher.grammar_from_lark(f"start: {' | '.join(choices)}")
    assert options.guided_grammar is not None
    return LLMatcher.grammar_from_lark(options.guided_grammar)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
