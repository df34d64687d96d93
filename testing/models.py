"""Models small enough to be made, built and served within a test: random weights, a vocabulary of local words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_WORDS = """
the a an i you he she it we they this that is are was were be been have has had do does did will would can could
not no yes and or but so if when how what which who where why to of in on at by with from for about as into over
my your our their please book cancel change find show tell give want need like love hate good bad great awful fine
flight hotel train ticket room card account money balance transfer pay bill weather rain sun today tomorrow tonight
song music play movie film story actor scene slow fast long short very really quite too almost never always again
service food table friend family city road car phone message time day week morning evening night best worst
"""


def make_tiny_classifier(
    folder: Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    labels: Sequence[str] = ("negative", "neutral", "positive"),
    max_position: int = 128,
    seed: int = 0,
) -> Path:
    """Write a random BERT classifier with its fast WordPiece tokenizer in Hugging Face format; returns `folder`.

    Every text can be tokenised: the vocabulary holds some words, and all letters, digits and common signs as pieces.
    Weights are wide enough that different texts get different labels.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    signs = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = list(dict.fromkeys([*special, *signs, *(f"##{sign}" for sign in signs), *_WORDS.split()]))
    ids = {piece: number for number, piece in enumerate(vocabulary)}

    wordpiece = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]"))
    wordpiece.normalizer = normalizers.BertNormalizer(lowercase=True)
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wordpiece.decoder = decoders.WordPiece()
    wordpiece.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=wordpiece,
        model_max_length=max_position,
        unk_token="[UNK]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertForSequenceClassification(
            BertConfig(
                vocab_size=len(vocabulary),
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=max(hidden // 32, 1),
                intermediate_size=2 * hidden,
                max_position_embeddings=max_position,
                initializer_range=0.25,
                id2label=dict(enumerate(labels)),
                label2id={label: number for number, label in enumerate(labels)},
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.eval().save_pretrained(folder)
    return folder
