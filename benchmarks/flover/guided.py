"""Guided output: whether every answer that ends by itself is valid under random schemas, and what guiding costs.

Run `python -m benchmarks.flover.guided [--quick] [--json FILE]`. Random JSON schemas and regular expressions constrain
a tiny random model, which would generate noise without them; `jsonschema` and `re` judge its answers. Texts that
`max_tokens` cuts off are counted apart. Then guided and free texts of GPT-2 small's size alternate.
"""

from __future__ import annotations

import json as json_format
import random
import re
import string
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import numpy as np
import typer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.flover.guided_overhead import add_overhead
from benchmarks.report import Claim, Report, progress
from testing.decoders import tiny_model, tiny_runner
from tidal.flover.guided import GuidedConstraint, GuidedGrammars, MaskWorker
from tidal.flover.runner import FloverRunner
from tidal.flover.sampling import UNDEFINED, Sampler, SamplingParams, sample_tokens
from tidal.options import RequestOptions, parse_options

_VOCABULARY, _SLOTS, _MAX_LENGTH, _MAX_TOKENS = 600, 16, 512, 400
_WORDS = ("red", "größe", "日本", 'a "b"', "x\\y", "line\nbreak", "🙂", "")
_PATTERNS = ("[a-c]{2,5}", "(yes|no)!?", r"\d{4}-\d{2}-\d{2}", "[A-Z][a-z]{0,6}( [A-Z][a-z]{0,6})?", r"#[0-9a-f]{6}")


@dataclass(frozen=True, slots=True)
class FuzzResult:
    """Result of a run.

    Attributes:
        valid: Number of answers that ended by themselves and are valid.
        cut: Number of answers that were cut off by their number of tokens.
        invalid: Grammar and text of each answer that ended by itself and is not valid.
        seconds: Duration of the run.
        mask_share: Share of the run that sampling spent waiting for masks.
    """

    valid: int
    cut: int
    invalid: tuple[tuple[str, str], ...]
    seconds: float
    mask_share: float


class _Timed:
    """A constraint that measures how long sampling waits for it."""

    waited = 0.0

    def __init__(self, constraint: GuidedConstraint) -> None:
        self._constraint = constraint
        self.advance = constraint.advance

    @property
    def problem(self) -> str | None:
        return self._constraint.problem

    def allowed(self) -> Any:
        began = time.perf_counter()
        mask = self._constraint.allowed()
        _Timed.waited += time.perf_counter() - began
        return mask


def fuzz(cases: int, seed: int = 0) -> FuzzResult:
    """Generate guided answers from a tiny random model, and check them.

    Args:
        cases: Number of pairs of a grammar and a prompt.
        seed: Seed of all of them.
    """
    rng = random.Random(seed)
    tokenizer = _tokenizer()
    eos = tokenizer.token_to_id("<end>")
    assert eos is not None
    model = tiny_model("llama", seed, vocab_size=_VOCABULARY, eos_token_id=eos, max_position_embeddings=_MAX_LENGTH)
    runner = tiny_runner(model, slots=_SLOTS, max_length=_MAX_LENGTH)
    grammars = GuidedGrammars(tokenizer, _VOCABULARY, {eos})
    masks = MaskWorker()
    thread = threading.Thread(target=masks.run, daemon=True)
    thread.start()
    valid = cut = 0
    invalid: list[tuple[str, str]] = []
    _Timed.waited, began = 0.0, time.perf_counter()
    for first in range(0, cases, _SLOTS):
        options = [random_grammar(rng) for _ in range(min(_SLOTS, cases - first))]
        samplers = []
        for number, each in enumerate(options):
            matcher = grammars.matcher(each)
            assert matcher is not None
            params = SamplingParams(temperature=rng.choice((0.0, 0.7, 1.0, 2.0)), seed=first + number)
            constraint = GuidedConstraint(matcher, _VOCABULARY, {eos}, masks)
            samplers.append(Sampler(params, np.zeros(0, np.int64), constraint=_Timed(constraint)))
        prompts = [tokenizer.encode("".join(rng.choices(string.printable, k=rng.randint(1, 40)))).ids for _ in options]
        for each, tokens in zip(options, _generate(runner, prompts, samplers, eos), strict=True):
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            if tokens[-1] != eos:
                cut += 1
            elif _is_valid(each, text):
                valid += 1
            else:
                invalid.append((each.model_dump_json(exclude_none=True), text))
    seconds = time.perf_counter() - began
    masks.close()
    thread.join()
    return FuzzResult(valid, cut, tuple(invalid), seconds, _Timed.waited / seconds)


def random_grammar(rng: random.Random) -> RequestOptions:
    """Return options that guide a text: mostly a JSON schema, else a regular expression or choices."""
    kind = rng.random()
    if kind < 0.1:
        return parse_options({"guided_regex": rng.choice(_PATTERNS)})
    if kind < 0.2:
        return parse_options({"guided_choice": json_format.dumps(rng.sample(_WORDS[:-1], rng.randint(1, 4)))})
    properties = {f"{name}{number}": _schema(rng, 3) for number, name in enumerate(rng.choices(_WORDS, k=3))}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": rng.sample(sorted(properties), rng.randint(0, len(properties))),
        "additionalProperties": False,
    }
    if rng.random() < 0.2:
        schema |= {"$defs": {"inner": _schema(rng, 1)}}
        properties["inner"] = {"$ref": "#/$defs/inner"}
    return parse_options({"guided_json": json_format.dumps(schema)})


def _schema(rng: random.Random, depth: int) -> dict[str, Any]:
    """A random schema whose texts are short."""
    kinds = ["integer", "string", "pattern", "enum", "const", "boolean", "null", "date"]
    kinds += ["array", "object", "any"] * (depth > 0)
    match rng.choice(kinds):
        case "integer":
            low = rng.randint(-1000, 1000)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 5000)}
        case "string":
            return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 12)}
        case "pattern":
            return {"type": "string", "pattern": f"^{rng.choice(_PATTERNS)}$"}
        case "enum":
            return {"enum": [*rng.sample(_WORDS, rng.randint(1, 3)), rng.randint(-9, 9), None]}
        case "const":
            return {"const": rng.choice([*_WORDS, 5, 2.5, True, [1, "a"], {"k": None}])}
        case "boolean":
            return {"type": "boolean"}
        case "null":
            return {"type": ["null", "boolean"]}
        case "date":
            return {"type": "string", "format": rng.choice(("date", "uuid", "ipv4"))}
        case "array":
            low = rng.randint(0, 2)
            return {"type": "array", "items": _schema(rng, depth - 1), "minItems": low, "maxItems": low + 2}
        case "object":
            return {
                "type": "object",
                "properties": {"a": _schema(rng, depth - 1), "b": _schema(rng, depth - 1)},
                "required": rng.choice([[], ["a"], ["b", "a"]]),
                "additionalProperties": False,
            }
        case _:
            return {"anyOf": [_schema(rng, depth - 1), _schema(rng, depth - 1)]}


def _is_valid(options: RequestOptions, text: str) -> bool:
    if options.guided_regex is not None:
        return re.fullmatch(options.guided_regex, text) is not None
    if options.guided_choice is not None:
        return text in options.guided_choice
    assert options.guided_json is not None
    try:
        jsonschema.validate(json_format.loads(text), options.guided_json)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _generate(
    runner: FloverRunner, prompts: Sequence[Sequence[int]], samplers: Sequence[Sampler], eos: int
) -> list[list[int]]:
    """Tokens of each prompt, generated together; a text that has ended is computed on and ignored."""
    first = []
    for slot, prompt in enumerate(prompts):
        logits = runner.prefill(slot, np.array(prompt), 0)
        assert logits is not None
        first.append(logits.numpy())
    rows = np.stack(first)
    texts: list[list[int]] = [[] for _ in prompts]
    while running := [row for row, text in enumerate(texts) if len(text) < _MAX_TOKENS and text[-1:] != [eos]]:
        tokens = sample_tokens(rows[running], [samplers[row] for row in running]).tolist()
        for row, token in zip(running, tokens, strict=True):
            constraint = samplers[row].constraint
            assert token != UNDEFINED, constraint.problem if constraint else ""
            texts[row].append(token)
        last = np.array([text[-1] for text in texts])
        held = np.array([len(prompt) + len(text) - 1 for prompt, text in zip(prompts, texts, strict=True)])
        rows = runner.decode(0, len(texts), last, held).numpy()
    return texts


def _tokenizer() -> Tokenizer:
    """A byte-level tokenizer whose tokens have several bytes, trained on JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(random.Random(1)), trainer)
    return tokenizer


def _corpus(rng: random.Random) -> Iterator[str]:
    for _ in range(300):
        value = {
            rng.choice(_WORDS): [rng.randint(0, 99), rng.choice(_WORDS), True],
            "b": {"a": None, "date": "2024-01-31"},
        }
        yield json_format.dumps(value, ensure_ascii=False)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="200 cases, 3 of 12 layers; about a minute.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the grammars, prompts and texts.")] = 0,
    json: Annotated[Path | None, typer.Option(help="File for the results; tables are written next to it.")] = None,
) -> None:
    """Check guided answers under random grammars, and measure what guiding costs on this machine."""
    report, cases = Report("guided", quick), 200 if quick else 2000
    progress(f"{cases} grammars")
    found = fuzz(cases, seed)
    ended = found.valid + len(found.invalid)
    report.add_table(
        f"{cases} random grammars with a prompt each, {found.seconds:.0f} s", ["answers", "number"],
        [["valid", f"{found.valid:,}"], ["not valid", f"{len(found.invalid):,}"], ["cut off", f"{found.cut:,}"]],
    )  # fmt: skip
    report.measured["grammars"] = {
        "valid": found.valid, "cut": found.cut, "invalid": found.invalid, "mask_share": found.mask_share
    }  # fmt: skip
    note = f"{ended:,} that ended by themselves"
    report.claims.append(Claim("guided_valid", "== 1.0", found.valid / max(1, ended), note=note))
    report.claims.append(Claim("guided_cut", "<= 0.01", found.cut / cases, note="share cut off by max_tokens"))
    add_overhead(report, quick=quick)
    report.finish(json)


if __name__ == "__main__":
    typer.run(main)
