"""Word pruning by the attention that a smaller level paid (Tabi §4.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidal.text.words import BLANK, SPECIAL, EncodedWords, Word, Words

Mask = npt.NDArray[np.bool_]


def significant(importance: npt.ArrayLike, content: npt.ArrayLike, scale: float) -> Mask:
    """The tokens that stay, Eq. 5: prune_mask(I).

    Args:
        importance: [length], the attention that each token receives, over all layers and heads.
        content: bool [length], the tokens of words; all others always stay, and do not count in the mean.
        scale: α, of the mean that a token has to exceed.

    Returns:
        bool [length].
    """
    received, counted = np.asarray(importance, np.float64), np.asarray(content, np.bool_)
    if not counted.any():
        return np.ones(len(received), np.bool_)
    mean = received[counted].mean()  # μ
    return np.asarray(~counted | (received > scale * mean), np.bool_)


def kept_words(encoded: EncodedWords, importance: npt.ArrayLike, scale: float) -> Mask:
    """The words that stay: those of which any token stays, and those that the level never saw.

    Where none of the words would stay that the level saw of a text, the one with the most important token does.

    Args:
        encoded: the query as the level read it.
        importance: [length], as the level gave it.
        scale: α of Eq. 5.

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
    """The texts with the words that stay, a blank between two; words that touched each other still do.

    Args:
        texts: what `spans` refer to, for a pair both.
        spans: all words.
        kept: bool, one for each word; at least one of each text.
    """
    return _lay_out(texts, spans, kept)[0]


def prune_ids(encoded: EncodedWords, kept: npt.ArrayLike) -> EncodedWords:
    """The query with the words that stay, for a level with the same tokenizer; special tokens always stay.

    Where `encoded.separable` this equals the tokens and words of the pruned text; elsewhere (the tokenizer reads the
    blanks, or truncation has left room for words behind) tokenise `prune_text` instead.

    Args:
        encoded: the query.
        kept: bool, one for each of its words; at least one of each text.
    """
    stay = np.asarray(kept, np.bool_)
    texts, spans = _lay_out(encoded.texts, encoded.spans, stay)
    # What belongs to no word is looked up behind the words.
    numbers = np.concatenate([np.where(stay, np.cumsum(stay) - 1, BLANK), [BLANK, SPECIAL]])
    words = numbers[encoded.words]
    tokens = words != BLANK
    left = Words(words[tokens], spans, texts, encoded.separable)
    return EncodedWords(encoded.ids[tokens], encoded.type_ids[tokens], lambda: left)


def _lay_out(
    texts: tuple[str, ...], spans: tuple[Word, ...], kept: npt.ArrayLike
) -> tuple[tuple[str, ...], tuple[Word, ...]]:
    """The pruned texts, and where the words that stay lie in them."""
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
