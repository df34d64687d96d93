"""Answers to questions: spans of a context."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from tidal.encoder_tasks.head import FoundOutputs, RowResult, Settings
from tidal.encoder_tasks.spans import Answer, Window, best_answers, word_bounds
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.encoder_tasks.windows import Windows
from tidal.errors import Internal, InvalidArgument
from tidal.requests import Array, PendingRequest

# More answers than anybody reads; a request's cost grows with them.
_MAX_ANSWERS = 100


class QuestionSettings(Settings):
    """What a manifest stores about a model that answers questions."""

    max_answer_tokens: int = Field(15, ge=1, le=1000, description="maximum number of tokens of an answer")
    impossible_answers: bool = Field(
        False, description="whether the empty answer (the context has no answer) competes with the others"
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Results of the windows over a context, in the place of a batch's outputs."""

    windows: Windows
    parts: Sequence[RowResult]

    def __getitem__(self, output: str) -> Array:
        raise KeyError(output)


class QuestionHead:
    """The most likely answers.

    Args:
        settings: Settings of the manifest.
        labels: None.
    """

    reads_requests = True

    def __init__(self, settings: QuestionSettings, labels: tuple[str, ...]) -> None:
        self._settings = settings

    def read(self, request: PendingRequest) -> Mapping[str, Array]:
        """Require a question and a context as texts, and check `top_k`."""
        for name, meaning in (("text_input", "the question"), ("text_pair", "the context")):
            if name not in request.inputs:
                raise InvalidArgument(
                    f"{name} was not sent; expected text_input, the question, and text_pair, the context: an answer is "
                    f"a part of a text; send {meaning} as {name}"
                )
        check_top_k(request, 1)
        return request.inputs

    def batch(self, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs of the engines: queries are answered one by one, without padding."""
        return outputs

    def merge(self, windows: Windows, parts: Sequence[RowResult]) -> _Parts:
        """The results of the windows: spans are compared by probabilities within each."""
        return _Parts(windows, parts)

    def answers(
        self, request: PendingRequest, rows: Sequence[RowResult], tokens: Sequence[TokenRow]
    ) -> dict[str, Array]:
        """The best answer of each row, [rows, 1] by output, and all as JSON."""
        top_k = check_top_k(request, 1)
        found = [self._answers(row, own, top_k) for row, own in zip(rows, tokens, strict=True)]
        best = [answers[0] for answers in found]
        outputs: dict[str, Array] = {
            "answer": np.array([each.text.encode() for each in best], object)[:, None],
            "score": np.array([each.score for each in best], np.float32)[:, None],
            "start": np.array([each.start for each in best], np.int32)[:, None],
            "end": np.array([each.end for each in best], np.int32)[:, None],
        }
        if request.wants("answers"):
            outputs["answers"] = np.array([_json(answers).encode() for answers in found], object)[:, None]
        wanted = {name: values for name, values in outputs.items() if request.wants(name)}
        return FoundOutputs(wanted, sum(each.text != "" for each in best))

    def _answers(self, row: RowResult, tokens: TokenRow, top_k: int) -> list[Answer]:
        source = tokens.text
        assert source is not None
        if isinstance(row.batch, _Parts):
            scored = [
                (indices, part.values("logits", per_token=True))
                for indices, part in zip(row.batch.windows.tokens, row.batch.parts, strict=True)
            ]
        else:
            scored = [(np.arange(row.length), row.values("logits", per_token=True))]
        windows = []
        for indices, logits in scored:
            if not np.isfinite(logits).all():
                raise Internal("the model produced NaN or infinite logits for this request")
            context = source.parts[indices] == 1
            starts, ends = word_bounds(source.offsets[indices], np.where(context, source.words[indices], -1))
            windows.append(Window(logits[:, 0], logits[:, 1], context, starts, ends))
        settings, skipped = self._settings, source.skipped[1]
        found = best_answers(
            windows,
            source.texts[1],
            top_k=top_k,
            max_tokens=settings.max_answer_tokens,
            impossible=settings.impossible_answers,
        )
        # A context of nothing but characters that the tokenizer removes.
        found = found or [Answer("", 0.0, 0, 0)]
        return [
            each._replace(start=each.start + skipped, end=each.end + skipped) if each.text else each for each in found
        ]


def check_top_k(request: PendingRequest, default: int) -> int:
    """Return the option `top_k`, or the default without it.

    Raises:
        InvalidArgument: It is 0, which means no limit for models that generate text, or too large.
    """
    top_k = request.options.top_k
    if top_k is None:
        return default
    if not 1 <= top_k <= _MAX_ANSWERS:
        raise InvalidArgument(f"request option 'top_k' is {top_k}; this model accepts 1 to {_MAX_ANSWERS}")
    return top_k


def _json(answers: Sequence[Answer]) -> str:
    dicts = [{"answer": each.text, "score": each.score, "start": each.start, "end": each.end} for each in answers]
    return json.dumps(dicts, ensure_ascii=False)
