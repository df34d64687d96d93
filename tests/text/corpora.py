"""Random texts of many scripts, and small tokenizers trained on them."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_WORDS = (
    "this paper is beautifully written and enjoyable to read while the other one was not at all unreadable films "
    "transformers pay attention service waiting transferring money cancellations flights Tomorrow London BERT"
)
_ODD = (
    "don't it's we'll o'clock rock'n'roll well-known state-of-the-art 3.14 1,000 $5 50% e.g. U.S.A. a/b (yes) [no] "
    "\"quoted\" 'single' wait... what?! --- & @user #tag https://example.com/a?b=c naïve Ünïcödé résumé Straße ΑΒΓ "
    "приве́т 한국어 e\u0301te\u0301 🎉 👩\u200d👩\u200d👧 ❤\ufe0f a🎉b zero\u200bwidth \u200b soft\u00adhyphen \ufeff "
    "٣٤ हिन्दी a\x0bb x\x7fy"
)
_UNSPACED = (
    "日本語 我喜欢这部电影。 東京タワーへ行きました カタカナ GPT模型很好 don't日本stop 「引用」 ภาษาไทยง่าย ที่นี่ "
    "ສະບາຍດີ ភាសាខ្មែរ ﾊﾛｰ 中🎉文 日\u200b本"
)
_LONG = ["a" * 150, "un" * 60, "supercalifragilisticexpialidocious", "x1" * 40, "é" * 120]
_BLANKS = [" "] * 20 + ["  ", "\n", "\t", " \n ", "\u00a0", "\u3000", "\r\n", "\u2003"]


def texts(number: int, seed: int) -> list[str]:
    """Random texts of 1 to 40 words in several scripts, of at most 1,000 bytes, each with at least one token."""
    chance = random.Random(seed)
    made: list[str] = []
    kinds = [*(kind.split(" ") for kind in (_WORDS, _ODD, _UNSPACED)), _LONG]
    while len(made) < number:
        oddity = chance.random()
        words = chance.choices(kinds, [8, 8 * oddity, 3 * oddity, 0.3 * oddity], k=chance.randint(1, 40))
        text = "".join(chance.choice(kind) + chance.choice(_BLANKS) for kind in words)
        if chance.random() < 0.8:
            text = text.strip()
        if chance.random() < 0.1:
            text = chance.choice(_BLANKS) + text
        if any(character.isalnum() for character in text) and len(text.encode()) <= 1000:
            made.append(text)
    return made


def wordpiece(file: Path, vocabulary: list[str] | None = None) -> Path:
    """Write an uncased BERT tokenizer with the given pieces, or a trained one."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    pieces = {piece: number for number, piece in enumerate([*special, *(vocabulary or [])])}
    tokenizer = Tokenizer(models.WordPiece(vocab=pieces, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    if vocabulary is None:
        tokenizer.train_from_iterator(
            texts(400, seed=1), trainers.WordPieceTrainer(vocab_size=600, special_tokens=special, show_progress=False)
        )
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.save(str(file))
    return file


def byte_level(file: Path) -> Path:
    """Write a trained byte-level BPE tokenizer like RoBERTa's."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts(400, seed=1),
        trainers.BpeTrainer(
            vocab_size=800,
            special_tokens=special,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        sep=("</s>", tokenizer.token_to_id("</s>")),
        cls_token=("<s>", tokenizer.token_to_id("<s>")),
        add_prefix_space=False,
    )
    tokenizer.save(str(file))
    return file


def words_with_blanks(file: Path) -> Path:
    """Write a tokenizer with the token "of the"."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.train_from_iterator(
        ["of the"] * 50 + ["all of the others"],
        trainers.BpeTrainer(vocab_size=60, min_frequency=2, show_progress=False),
    )
    tokenizer.save(str(file))
    return file
