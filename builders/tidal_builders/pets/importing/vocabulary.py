"""Imports heads that score the words of the vocabulary: those of masked language models, also as SPLADE uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from tidal.errors import InvalidArgument, Unsupported
from tidal.pets.terms import FloatArray, Head
from tidal.pets.vocabulary import VocabularyForm, VocabularyHead
from tidal.tasks.digests import tensor_digest
from tidal.text.tokenizer import open_tokenizer
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.encoder_tasks.prepared import PrepareOptions
from tidal_builders.foreign.files import array_of
from tidal_builders.pets.encoder import activation_name
from tidal_builders.pets.importing.imported import ImportBase

if TYPE_CHECKING:
    from tidal_builders.encoder_tasks.prepared import Prepared
    from tidal_builders.pets.importing.sources import SourceModel

_WORDS = "word_embeddings.weight"
_MODULES_FILE = "modules.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


class _Layers(NamedTuple):
    """Modules of a masked language model's head, and its activation by transformers' name."""

    dense: Any
    norm: Any
    decoder: Any
    activation: str


def _bert(model: Any) -> _Layers:
    predictions = _unwrapped(model.cls).predictions
    transform = predictions.transform
    return _Layers(transform.dense, transform.LayerNorm, predictions.decoder, model.config.hidden_act)


def _roberta(model: Any) -> _Layers:
    head = _unwrapped(model.lm_head)
    return _Layers(head.dense, head.layer_norm, head.decoder, "gelu")


def _distilbert(model: Any) -> _Layers:
    return _Layers(model.vocab_transform, model.vocab_layer_norm, model.vocab_projector, model.config.activation)


_READERS: dict[str, Callable[[Any], _Layers]] = {
    "bert": _bert, "roberta": _roberta, "xlm-roberta": _roberta, "distilbert": _distilbert,
}  # fmt: skip


def prepare_vocabulary(task: str, model: Any, *folders: Path | None) -> Prepared:
    """Prepare a masked language model for a task, as a model of kind arlo is; see `Prepared`.

    Args:
        task: Name of the task of encoders.
        model: Model of transformers; of fill-mask it is changed: its head gets the vectors of masked words alone.
        folders: Folders that may have a tokenizer, for fill-mask, or else the files of sentence-transformers; the first
            one that has is read.

    Raises:
        InvalidArgument: There is no tokenizer, it has no token for masked words, or the pooling is not supported.
    """
    known = [folder for folder in folders if folder is not None]
    wanted = _TOKENIZER_FILES if task == "fill-mask" else (_MODULES_FILE,)
    found = [folder for folder in known if any((folder / name).is_file() for name in wanted)]
    if task == "fill-mask" and not found:
        raise InvalidArgument(f"there is no tokenizer in {' and '.join(map(str, known))}: save the source's there")
    return BUILD_TASKS[task].load((found or known)[0], model, PrepareOptions())


def vocabulary_head(task: str, model: Any, base: ImportBase, *folders: Path | None) -> Head:
    """Read the head of a masked language model.

    Args:
        task: Name of the task of encoders.
        model: Model of transformers, or within a model of peft.
        base: Base that the task is made for.
        folders: See `prepare_vocabulary`.

    Raises:
        InvalidArgument: The token for masked words is another one than the base's; or as `prepare_vocabulary`.
        Unsupported: The head does not have the form of BERT's, RoBERTa's or DistilBERT's.
    """
    read = _READERS.get(model.config.model_type)
    try:
        if read is None:
            raise AttributeError(f"model type {model.config.model_type}")
        layers = read(model)
        dense, norm, decoder = map(_unwrapped, (layers.dense, layers.norm, layers.decoder))
        arrays = (dense.weight, dense.bias, norm.weight, norm.bias, decoder.weight)
    except AttributeError as error:
        raise Unsupported(
            f"{type(model).__name__} has a head of words that a task cannot store ({error}); accepted are those of "
            "BERT, RoBERTa, XLM-R and DistilBERT: a linear layer, an activation, a normalisation, and the words"
        ) from None
    weight, bias, norm_weight, norm_bias, words = map(array_of, arrays)
    tied = _is_base_table(words, base)
    prepared = prepare_vocabulary(task, model, *folders)
    settings = dict(prepared.settings)
    if task == "fill-mask":
        _check_mask(settings, base)
    form = VocabularyForm(
        words=len(words),
        tied=tied,
        activation=cast(Any, activation_name(layers.activation)),
        epsilon=float(norm.eps),
        pooling=getattr(prepared.tail, "strategy", "max"),
        logarithms=2 if getattr(prepared.tail, "activation", "") == "log1p_relu" else 1,
    )
    return Head(
        np.zeros((0, words.shape[1]), np.float32) if tied else words,
        array_of(decoder.bias) if decoder.bias is not None else np.zeros(len(words), np.float32),
        labels=(),
        task=task,
        settings=settings,
        vocabulary=VocabularyHead(form, weight, bias, norm_weight, norm_bias),
    )


def vocabulary_source(source: SourceModel, task: str, *folders: Path | None) -> SourceModel:
    """The source whose answers are those of a task with words; its model is prepared for the task.

    Args:
        source: The source, whose model is that of transformers, or of peft around it.
        task: Name of the task of encoders.
        folders: See `prepare_vocabulary`.
    """
    inner = source.model.get_base_model() if hasattr(source.model, "get_base_model") else source.model
    prepared = prepare_vocabulary(task, inner, *folders)
    return replace(source, tail=prepared.tail, mask_id=prepared.mask_id)


def _is_base_table(words: FloatArray, base: ImportBase) -> bool:
    """Whether a head's weights are the base's word embeddings."""
    digest = tensor_digest(words)
    return any(own == digest for name, own in base.info.frozen.items() if name.endswith(_WORDS))


def _check_mask(settings: dict[str, Any], base: ImportBase) -> None:
    if base.tokenizer is None:
        return
    number = open_tokenizer(base.tokenizer).token_to_id(settings["mask"])
    if number != settings["mask_id"]:
        raise InvalidArgument(
            f"the source's token for masked words, {settings['mask']}, has the id {settings['mask_id']}, and in the "
            f"base's tokenizer {'none' if number is None else number}: the task was not made for this base"
        )


def _unwrapped(module: Any) -> Any:
    """A module, or the trained copy of it that peft keeps for `modules_to_save`."""
    saved = getattr(module, "modules_to_save", None)
    return module if saved is None else saved["default"]
