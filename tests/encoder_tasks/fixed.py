"""Tokenizers whose vocabularies are written down rather than trained, and scores that depend on tokens alone.

What transformers 4 answered with them is recorded in `answers.json`; transformers 5 has no pipeline for questions.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

ANSWERS = Path(__file__).with_name("answers.json")
FAMILIES = ("wordpiece", "byte-level", "unigram")
_WORDS = (
    *("the", "film", "was", "good", "new", "york", "who", "wrote", "it", "anna", "in", "berlin", "1999", "is", "a"),
    *("##s", "##ly", "##er", "##ed", "un", "##believable"),
)
_SIGNS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'é日本語映画はßи"
_TEXT = (
    "The film was unbelievably good . Who wrote it ? Anna's New York Berlin berlin in 1999 is a U.S.A. 日本語 映画は "
    "naïve e\u0301te\u0301 🎉 👩\u200d👧 https://example.com/a?b=c Straße и the the"
)
_PIECES = _TEXT.split(" ")


def fixed_tokenizer(family: str) -> Tokenizer:
    """Return a tokenizer of a family; its first token is that of the begin, its second that of the end."""
    if family == "wordpiece":
        pieces = ["[CLS]", "[SEP]", "[UNK]", *_WORDS, *_SIGNS, *(f"##{sign}" for sign in _SIGNS)]
        ids = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
        made = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        template, begin, end = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"), "[CLS]", "[SEP]"
    elif family == "byte-level":
        begin, end = "<s>", "</s>"
        alphabet = [begin, end, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        made = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(alphabet)}, merges=[]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        template = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")
    else:
        begin, end = "<s>", "</s>"
        pieces = ["▁", "▁the", "▁film", "▁was", "▁New", "▁York", *_SIGNS, *_SIGNS.upper()]
        scores = [(piece, -float(len(pieces) - len(piece))) for piece in dict.fromkeys([begin, end, "<unk>", *pieces])]
        made = Tokenizer(models.Unigram(scores, unk_id=2))
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        template = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")
    made.post_processor = processors.TemplateProcessing(
        single=template[0], pair=template[1], special_tokens=[(begin, 0), (end, 1)]
    )
    made.add_special_tokens([begin, end])
    return made


def scores_of(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the logits of the first and last tokens of answers, FP32 [2, length]: any function of ids and places."""
    places = np.arange(len(ids))
    angles = np.stack([ids * 12.9898 + places * 0.37, ids * 7.233 - places * 1.13])
    scores = 6 * np.sin(angles)
    scores[:, 0] += 9 * (ids.sum() % 2)  # for half of the windows, that there is no answer
    return scores.astype(np.float32)


def questions(number: int, seed: int) -> list[dict[str, Any]]:
    """Return random questions with their contexts and options of the pipeline."""
    chance = random.Random(seed)
    made: list[dict[str, Any]] = []
    for case in range(number):
        length = chance.choice([16, 24, 40, 64])
        words = chance.choices(_PIECES, k=chance.randint(1, 30))
        made.append(
            {
                "family": FAMILIES[case % 3],
                "question": "Who ?",
                "context": "".join(word + chance.choice([" ", " ", "  ", "\n", ""]) for word in words) + ".",
                "max_length": length,
                "overlap": chance.choice([0, 2, 5]),
                "top_k": chance.choice([1, 1, 2, 5]),
                "max_tokens": chance.choice([1, 4, 15]),
                "impossible": chance.random() < 0.4,
            }
        )
    return made
