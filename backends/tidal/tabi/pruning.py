"""Word pruning by the attention of a smaller level (Tabi §4.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidal.text.words import BLANK, SPECIAL, EncodedWords, Word, Words

Mask = npt.NDArray[np.bool_]


def significant(importance: npt.ArrayLike, content: npt.ArrayLike, scale: float) -> Mask:
    """Return the tokens to keep: prune_mask(I) of Eq. 5.

    Args:
        importance: Attention that each token receives, over all layers and heads, [length].
        content: Mask of the tokens of words, bool [length]; all others are kept, and do not count in the mean.
        scale: Scale α: a token is kept if its importance exceeds α times the mean.

    Returns:
        bool [length].
    """
    received, counted = np.asarray(importance, np.float64), np.asarray(content, np.bool_)
    if not counted.any():
        return np.ones(len(received), np.bool_)
    mean = received[counted].mean()  # μ
    return np.asarray(~counted | (received > scale * mean), np.bool_)


def kept_words(encoded: EncodedWords, importance: npt.ArrayLike, scale: float) -> Mask:
    """Return the words to keep: those with at least one token to keep, and those beyond the level's maximum length.

    If none of the words of a text that the level has read would be kept, the one with the most important token is.

    Args:
        encoded: Tokens of the query for the level.
        importance: Attention that each token received there, [length].
        scale: Scale α of Eq. 5.

    Returns:
        bool, one for each of `encoded.spans`.
    """
    received = np.asarray(importance, np.float64)
    content = encoded.words >= 0
    stays = significant(received, content, scale)
    owners = encoded.words[content]
    kept = np.ones(len(encoded.spans), np.bool_)
    kept[owners] = False
    kept[owners[stays[content]]] = True
    parts = np.asarray([word.part for word in encoded.spans])[owners]
    for part in range(len(encoded.texts)):
        mine = parts == part
        if mine.any() and not kept[owners[mine]].any():
            kept[owners[mine][received[content][mine].argmax()]] = True
    return kept


def prune_text(texts: tuple[str, ...], spans: tuple[Word, ...], kept: npt.ArrayLike) -> tuple[str, ...]:
    """Return the texts with the kept words only, separated by blanks; adjacent words stay adjacent.

    Args:
        texts: Texts that `spans` refer to; both texts of a pair.
        spans: All words of the texts.
        kept: Words to keep, one bool for each; at least one of each text.
    """
    return _assemble(texts, spans, kept)[0]


def prune_ids(encoded: EncodedWords, kept: npt.ArrayLike) -> EncodedWords:
    """Return the query with the kept words only, for a level with the same tokenizer; special tokens are kept.

    If `encoded.separable` this equals the tokens and words of the pruned text. Otherwise (the tokenizer depends on
    blanks, or truncation has dropped words that would now fit) tokenise the result of `prune_text` instead.

    Args:
        encoded: Query to prune.
        kept: Words to keep, one bool for each; at least one of each text.
    """
    stay = np.asarray(kept, np.bool_)
    texts, spans = _assemble(encoded.texts, encoded.spans, stay)
    # Two entries after the words: for tokens of blanks, and for special tokens.
    numbers = np.concatenate([np.where(stay, np.cumsum(stay) - 1, BLANK), [BLANK, SPECIAL]])
    words = numbers[encoded.words]
    tokens = words != BLANK
    left = Words(words[tokens], spans, texts, encoded.separable)
    return EncodedWords(encoded.ids[tokens], encoded.type_ids[tokens], lambda: left)


def _assemble(
    texts: tuple[str, ...], spans: tuple[Word, ...], kept: npt.ArrayLike
) -> tuple[tuple[str, ...], tuple[Word, ...]]:
    """Return the pruned texts, and the spans of the kept words in them."""
    pieces: list[list[str]] = [[] for _ in texts]
    lengths, ends = [0] * len(texts), [-1] * len(texts)
    placed = []
    for word, stays in zip(spans, np.asarray(kept, np.bool_).tolist(), strict=True):
        if not stays:
            continue
        part = word.part
        if pieces[part] and ends[part] != word.start:
            pieces[part].append(" ")
            lengths[part] += 1
        start = lengths[part]
        pieces[part].append(texts[part][word.start : word.end])
        lengths[part] += word.end - word.start
        ends[part] = word.end
        placed.append(Word(part, start, lengths[part]))
    return tuple("".join(each) for each in pieces), tuple(placed)
