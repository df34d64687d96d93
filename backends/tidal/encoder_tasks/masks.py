"""Predictions for masked words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tidal.encoder_tasks.head import FoundOutputs, RowResult, Settings, refuse_pairs
from tidal.encoder_tasks.questions import check_top_k
from tidal.encoder_tasks.token_rows import TokenRow
from tidal.errors import Internal, InvalidArgument
from tidal.requests import Array, PendingRequest
from tidal.text import TextTokenizer

# As transformers' pipeline.
_PREDICTIONS = 5


class MaskSettings(Settings):
    """What a manifest stores about a model that predicts masked words."""

    mask_id: int = Field(ge=0, description="id of the token that stands for a masked word")
    mask: str = Field(min_length=1, description="that token as it is written in texts")
    max_masks: int = Field(ge=1, description="maximum number of masked words of a text")


class MaskHead:
    """The most likely tokens for each masked word.

    Args:
        settings: Settings of the manifest.
        labels: None.
        tokenizer: Tokenizer of the model, which writes token ids as text.
    """

    reads_requests = True

    def __init__(self, settings: MaskSettings, labels: tuple[str, ...], tokenizer: TextTokenizer) -> None:
        self._settings = settings
        self._tokenizer = tokenizer

    def read(self, request: PendingRequest) -> Mapping[str, Array]:
        """Refuse pairs, and check `top_k`."""
        refuse_pairs(request, "masked words are those of one text")
        check_top_k(request, _PREDICTIONS)
        return request.inputs

    def batch(self, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs of the engines: queries are answered one by one."""
        return outputs

    def answers(
        self, request: PendingRequest, rows: Sequence[RowResult], tokens: Sequence[TokenRow]
    ) -> dict[str, Array]:
        """For each row a JSON list of masked words, each a list of token, token_id and score."""
        if not request.wants("predictions"):
            return {}
        top_k, settings, lists, found = check_top_k(request, _PREDICTIONS), self._settings, [], 0
        for index, (row, own) in enumerate(zip(rows, tokens, strict=True)):
            masks = int((own.ids == settings.mask_id).sum())
            if not 1 <= masks <= settings.max_masks:
                raise InvalidArgument(
                    f"text_input row {index} has {masks} masked words; this model accepts 1 to {settings.max_masks}, "
                    f"each written as {settings.mask}"
                )
            logits = row.values("logits", per_token=False).reshape(settings.max_masks, -1)[:masks]
            if not np.isfinite(logits).all():
                raise Internal("the model produced NaN or infinite logits for this request")
            found += masks
            lists.append(json.dumps([self._predictions(each, top_k) for each in logits], ensure_ascii=False).encode())
        return FoundOutputs({"predictions": np.array(lists, object)[:, None]}, found)

    def _predictions(self, logits: npt.NDArray[np.float32], top_k: int) -> list[dict[str, object]]:
        ids, scores = most_likely(logits, top_k)
        decode = self._tokenizer.tokenizer.decode
        return [
            {"token": decode([number], skip_special_tokens=False), "token_id": number, "score": score}
            for number, score in zip(ids, scores, strict=True)
        ]


def most_likely(logits: npt.NDArray[np.float32], top_k: int) -> tuple[list[int], list[float]]:
    """Return the ids and probabilities of the most likely tokens, most likely first.

    Args:
        logits: FP32 [vocabulary].
        top_k: Number of tokens.
    """
    top_k = min(top_k, len(logits))
    best = np.argpartition(logits, len(logits) - top_k)[-top_k:]
    best = best[np.argsort(-logits[best], kind="stable")]
    powers = np.exp(logits - logits[best[0]])
    return best.tolist(), (powers[best] / powers.sum()).tolist()
