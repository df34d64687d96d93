"""Guided output: masks of grammars, refused grammars, and random grammars under a random model."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from benchmarks.flover.guided import fuzz
from testing.decoders import EOS, VOCABULARY, byte_ids, byte_tokenizer
from tidal.errors import InvalidArgument
from tidal.flover.guided import GuidedConstraint, GuidedGrammars, MaskWorker
from tidal.options import parse_options

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def ending_tokenizer() -> Tokenizer:
    """The byte-level tokenizer with its end of text."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


@pytest.fixture(scope="module")
def grammars() -> GuidedGrammars:
    return GuidedGrammars(ending_tokenizer(), VOCABULARY, {EOS})


def options(**values: Any) -> Any:
    return parse_options({k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()})


def accepts(grammars: GuidedGrammars, text: str, **values: Any) -> bool:
    """Whether a text and then the end is allowed, token by token."""
    matcher = grammars.matcher(options(**values))
    assert matcher is not None
    worker = MaskWorker()
    constraint = GuidedConstraint(matcher, VOCABULARY, {EOS}, worker)
    worker.close()
    for token in [*byte_ids(text), EOS]:
        if not constraint.allowed()[token]:
            return False
        if token != EOS:
            constraint.compute(token)
    return True


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ({"guided_json": SCHEMA}, ['{"a":5}', '{ "a": -17 }'], ["", "{}", '{"a":5.5}', '{"a":5}x', '{  "a":5}', "[]"]),
        ({"guided_regex": "[a-c]{2}é?"}, ["ab", "cbé"], ["a", "abc", "é", "ab "]),
        ({"guided_regex": "^x|y$"}, ["x", "y"], ["xy"]),
        (
            {"guided_choice": ["yes", 'n"o\\', "日本\n", "yesterday", "/a/"]},
            ["yes", 'n"o\\', "日本\n", "yesterday", "/a/"],
            ["", "ye", "yesx", "a"],
        ),
        ({"guided_grammar": 'start: "(" start? ")"'}, ["()", "(())"], ["(", ")", "()()"]),
        ({"guided_grammar": 'start: NAME "=" NUMBER\nNAME: /[a-z]+/\nNUMBER: /[0-9]+/'}, ["ab=12"], ["ab", "=1"]),
    ],
    ids=str,
)
def test_texts_of_a_grammar(grammars: GuidedGrammars, grammar: Any, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert accepts(grammars, text, **grammar), text
    for text in bad:
        assert not accepts(grammars, text, **grammar), text


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": {"type": "objec"}}, "'guided_json': Invalid type: objec"),
    ({"guided_json": {"type": "string", "pattern": "("}}, "'guided_json': regex parse error"),
    ({"guided_json": {"$ref": "#/nowhere"}}, "'guided_json': Pointer '/nowhere' does not exist"),
    ({"guided_json": {"not": {}}}, 'Unimplemented keys: ["not"]'),
    ({"guided_json": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, "Unsatisfiable schema"),
    ({"guided_json": "[1]"}, "expected a JSON object"),
    ({"guided_json": "{"}, "expected an object as JSON text"),
    ({"guided_regex": "("}, "unclosed group"),
    ({"guided_regex": "(?=a)b"}, "look-around"),
    ({"guided_choice": []}, "expected 1 to 1024 texts"),
    ({"guided_choice": ["a", 1]}, "expected texts of at least 1 character"),
    ({"guided_choice": "yes"}, "expected a list of texts as JSON text"),
    ({"guided_grammar": 'start: "a" | b'}, 'unknown name: "b"'),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "'guided_regex' and 'guided_choice' were sent"),
]


@pytest.mark.parametrize(("grammar", "message"), REFUSED, ids=str)
def test_refused_grammars(grammars: GuidedGrammars, grammar: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        grammars.matcher(options(**grammar))


def test_models_without_an_end_are_refused() -> None:
    grammars = GuidedGrammars(ending_tokenizer(), VOCABULARY, ())
    assert grammars.matcher(options()) is None
    with pytest.raises(InvalidArgument, match="'guided_regex' requires a model with an end-of-text token"):
        grammars.matcher(options(guided_regex="a"))
    grammars = GuidedGrammars(Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")), VOCABULARY, {1})
    with pytest.raises(InvalidArgument, match="this model's tokenizer cannot be used for guided output"):
        grammars.matcher(options(guided_regex="a"))


def test_masks_of_one_grammar_are_independent(grammars: GuidedGrammars) -> None:
    worker = MaskWorker()
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    matchers = [grammars.matcher(options(guided_regex="ab|cd")) for _ in range(2)]
    one, other = (GuidedConstraint(each, VOCABULARY, {EOS}, worker) for each in matchers if each is not None)
    (a,), (b,), (c,), (d,) = map(byte_ids, "abcd")
    one.advance(a)
    other.advance(c)
    assert np.flatnonzero(one.allowed()).tolist() == [b]
    assert np.flatnonzero(other.allowed()).tolist() == [d]
    one.advance(b)
    assert np.flatnonzero(one.allowed()).tolist() == [EOS]
    other.advance(a)  # not allowed
    assert not other.allowed().any()
    assert other.problem
    worker.close()
    thread.join()


def test_a_model_with_more_ids_than_its_tokenizer_and_several_ends() -> None:
    grammars = GuidedGrammars(ending_tokenizer(), VOCABULARY + 50, {EOS, EOS + 3})
    matcher = grammars.matcher(options(guided_choice=["a"]))
    assert matcher is not None
    constraint = GuidedConstraint(matcher, VOCABULARY + 50, {EOS, EOS + 3}, MaskWorker())
    assert np.flatnonzero(constraint.allowed()).tolist() == byte_ids("a")
    constraint.compute(byte_ids("a")[0])
    assert len(constraint.allowed()) == VOCABULARY + 50
    assert np.flatnonzero(constraint.allowed()).tolist() == [EOS]  # the other one has no token


def test_answers_that_end_are_valid() -> None:
    """A sample of `python -m benchmarks.flover.guided`."""
    result = fuzz(64, seed=3)
    assert result.invalid == ()
    assert result.valid >= 60
