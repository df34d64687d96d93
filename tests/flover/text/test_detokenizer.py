"""Incremental detokenization compared with decoding all tokens at once, for two kinds of tokenizers."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tidal.flover.text import Detokenizer

SAMPLES = ["the cat sat on the mat", " ünïcödé, 漢字 and 🙂🙃 emoji", "e\u0301 👩‍👩‍👧 \t\n x", "�"]


@cache
def byte_level() -> Tokenizer:
    """Return a tokenizer like GPT-2's: its tokens are bytes of UTF-8, some of them merged, also across characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    encode = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges = [tuple(encode.pre_tokenize_str(text)[0][0][:2]) for text in (" t", "th", "🙂", "漢", "ü")]
    vocabulary = {piece: number for number, piece in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = encode, decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


@cache
def byte_fallback() -> Tokenizer:
    """Return a tokenizer like Llama's: words with a leading blank, bytes for all else, the first blank dropped."""
    pieces = ["<unk>", *(f"<0x{code:02X}>" for code in range(256)), *"▁thecasonmx,", "▁the", "▁cat"]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "c"), ("▁c", "a"), ("▁ca", "t")]
    for pair in merges:
        vocabulary.setdefault("".join(pair), len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def pieces(
    tokenizer: Tokenizer, prompt: list[int], tokens: list[int], lengths: dict[int, int] | None = None
) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt, lengths)
    return [*(detokenizer.push(token) for token in tokens), detokenizer.finish()]


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@given(st.sampled_from(SAMPLES[:3]), st.text(max_size=12))
def test_pieces_make_the_text_and_never_split_a_character(make: object, before: str, text: str) -> None:
    tokenizer = make()  # type: ignore[operator]
    prompt = tokenizer.encode(before).ids
    tokens = tokenizer.encode(before + text).ids
    if tokens[: len(prompt)] != prompt:  # the text's beginning was merged into the prompt's last token
        return
    found = pieces(tokenizer, prompt, tokens[len(prompt) :])
    whole, start = tokenizer.decode(tokens), tokenizer.decode(prompt)
    assert "".join(found) == whole[len(start) :]
    if "�" not in text:
        assert not any("�" in piece for piece in found)


@given(st.lists(st.integers(0, byte_level().get_vocab_size() - 1), max_size=40))
def test_invalid_utf8_is_decoded_as_in_the_whole(tokens: list[int]) -> None:
    tokenizer = byte_level()
    prompt = tokenizer.encode("a prompt").ids
    found = pieces(tokenizer, prompt, tokens)
    assert "".join(found) == tokenizer.decode(prompt + tokens)[len("a prompt") :]


@given(st.lists(st.lists(st.integers(0, byte_fallback().get_vocab_size() - 1), max_size=12), max_size=4))
def test_texts_that_share_the_lengths_of_tokens_have_the_same_pieces(texts: list[list[int]]) -> None:
    tokenizer, lengths = byte_fallback(), dict[int, int]()
    prompt = tokenizer.encode("the cat").ids
    for tokens in texts:
        assert pieces(tokenizer, prompt, tokens, lengths) == pieces(tokenizer, prompt, tokens)
    assert all(length == len(tokenizer.decode([token])) for token, length in lengths.items())


def test_the_first_word_after_the_prompt_keeps_its_blank() -> None:
    tokenizer = byte_fallback()
    ids = tokenizer.encode("the cat").ids
    assert pieces(tokenizer, ids[:1], ids[1:]) == [" cat", ""]


def test_only_a_few_tokens_of_a_long_text_are_decoded_again() -> None:
    tokenizer = byte_level()
    tokens = tokenizer.encode(SAMPLES[1] * 50).ids
    detokenizer = Detokenizer(tokenizer, [tokens[0]])
    for token in tokens[1:]:
        detokenizer.push(token)
        assert len(detokenizer._ids) < 16
