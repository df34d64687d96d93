"""Tokenizers of three families, tiny models with random weights, and texts with every kind of character."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tests.text import corpora
from tidal.text.source import SourceText

FAMILIES = ("wordpiece", "byte-level", "unigram")
_SPECIAL = {
    "wordpiece": ("[CLS]", "[SEP]", "[PAD]", "[UNK]"),
    "byte-level": ("<s>", "</s>", "<pad>", "<unk>"),
    "unigram": ("<s>", "</s>", "<pad>", "<unk>"),
}
_TEXT = (
    "the film was unbelievably good New York Anna's Straße don't U.S.A. 3.14 @user #tag https://example.com/a?b=c&d=é "
    "naïve e\u0301te\u0301 приве́т 🎉 👩\u200d👩\u200d👧 ❤\ufe0f 日本語 我喜欢 東京タワー ภาษาไทย हिन्दी zero\u200bwidth "
    "\u200b \x07 ( ) . , ? ! … [UNK] <unk>"
)
_PIECES = _TEXT.split(" ")
_BLANKS = [" ", " ", " ", "", "  ", "\n", "\t", "\u00a0", "\u3000", "\r\n"]
_pieces = st.one_of(st.sampled_from(_PIECES), st.sampled_from(_PIECES), st.text(max_size=6))

#: Texts of up to 25 pieces; at least one character is not white space.
texts = (
    st.lists(st.tuples(_pieces, st.sampled_from(_BLANKS)), min_size=1, max_size=25)
    .map(lambda parts: "".join(piece + blank for piece, blank in parts))
    .filter(lambda text: bool(text.strip()))
)


@cache
def tokenizer(family: str, folder: Path) -> Any:
    """Return the fast tokenizer of `transformers` of a family; its `tokenizer.json` is in `folder / family`."""
    from transformers import PreTrainedTokenizerFast

    target = folder / family
    target.mkdir(parents=True, exist_ok=True)
    make = {"wordpiece": corpora.wordpiece, "byte-level": corpora.byte_level, "unigram": _unigram}[family]
    file = make(target / "tokenizer.json")
    cls, sep, pad, unknown = _SPECIAL[family]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(file)),
        cls_token=cls,
        sep_token=sep,
        pad_token=pad,
        unk_token=unknown,
        model_max_length=512,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def _unigram(file: Path) -> Path:
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(
        corpora.texts(400, seed=1),
        trainers.UnigramTrainer(vocab_size=700, special_tokens=special, unk_token="<unk>", show_progress=False),
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, made.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    made.save(str(file))
    return file


def tiny_model(kind: str, vocabulary: int, labels: tuple[str, ...] = (), seed: int = 0) -> Any:
    """Return a random BERT of one small layer with the head `kind`, for example `TokenClassification`."""
    import torch
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = transformers.BertConfig(
            vocab_size=vocabulary,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=512,
            initializer_range=0.6,
            **({"id2label": dict(enumerate(labels))} if labels else {}),
        )
        return getattr(transformers, f"BertFor{kind}")(config).eval()


def align(fast: Any, *texts: str) -> tuple[npt.NDArray[np.int64], SourceText]:
    """Return the ids of a text or pair and where they are in it."""
    fast.backend_tokenizer.no_truncation()  # which the call before may have left
    return source_of(fast.backend_tokenizer, *texts)


def source_of(tokenizer: Tokenizer, *texts: str) -> tuple[npt.NDArray[np.int64], SourceText]:
    """Return the ids of a text or pair and where they are in it."""
    encoding = tokenizer.encode(*texts)
    return np.array(encoding.ids, np.int64), SourceText(texts, encoding)
