"""Reads the files of sentence-transformers' folders: modules, pooling, prompts, activation functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidal.errors import InvalidArgument, did_you_mean
from tidal_builders.foreign.files import read_json

MODULES = "modules.json"
_OPTIONS = "config_sentence_transformers.json"
_TRANSFORMER = "sentence_bert_config.json"
# Ways to pool, by sentence-transformers' names and by the keys of its older files, in the order of its concatenation.
POOLINGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


@dataclass(frozen=True, slots=True)
class SentenceModule:
    """A module of a sentence-transformers model.

    Attributes:
        kind: Name of its class, such as `Pooling`.
        folder: Folder with its files.
    """

    kind: str
    folder: Path

    @property
    def config(self) -> dict[str, Any]:
        """Its config.json; empty if there is none."""
        path = self.folder / "config.json"
        return read_json(path) if path.is_file() else {}


def read_modules(folder: Path) -> tuple[SentenceModule, ...]:
    """The modules of a model in their order; empty if it is none of sentence-transformers.

    Args:
        folder: Folder of the model.

    Raises:
        InvalidArgument: modules.json is not valid, or names a folder outside of the model's.
    """
    path = folder / MODULES
    if not path.is_file():
        return ()
    try:
        listed = json.loads(path.read_bytes())
        found = sorted((int(each["idx"]), str(each["type"]), str(each["path"])) for each in listed)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{path} is not a list of modules: {error}") from None
    modules = []
    for _, kind, name in found:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InvalidArgument(f"{path} names the folder '{name[:120]}'; accepted are folders in the model's")
        modules.append(SentenceModule(kind.rpartition(".")[2], folder / name))
    return tuple(modules)


def pooling_modes(pooling: SentenceModule) -> tuple[str, ...]:
    """Ways to pool that are concatenated.

    Raises:
        InvalidArgument: A way is unknown, or a prompt is left out of the pooling.
    """
    config, path = pooling.config, pooling.folder / "config.json"
    if config.get("include_prompt") is False:
        raise InvalidArgument(f"{path} has include_prompt false; accepted are models that pool the prompt as well")
    named = config.get("pooling_mode")
    if named is None:
        named = [name for name, key in POOLINGS.items() if config.get(key)] or ["mean"]
    modes = tuple(named) if isinstance(named, list) else (str(named),)
    for mode in modes:
        if mode not in POOLINGS:
            raise InvalidArgument(f"{path} has the pooling mode '{mode}'; accepted are {', '.join(POOLINGS)}")
    return modes


def read_options(folder: Path) -> dict[str, Any]:
    """Prompts, similarity and others; empty if the model has no such file."""
    path = folder / _OPTIONS
    return read_json(path) if path.is_file() else {}


def prompts(options: dict[str, Any]) -> tuple[dict[str, str], str | None]:
    """Prompts by name, and the name of the one that is the default.

    Args:
        options: See `read_options`.

    Raises:
        InvalidArgument: They are not texts.
    """
    named, default = options.get("prompts") or {}, options.get("default_prompt_name")
    if not isinstance(named, dict) or not all(isinstance(text, str) for text in named.values()):
        raise InvalidArgument(f"{_OPTIONS} has prompts {str(named)[:120]}; accepted are texts by name")
    if default is not None and default not in named:
        raise InvalidArgument(f"{_OPTIONS} has default_prompt_name {default!r}; accepted are {', '.join(named)}")
    return dict(named), default


def served_prompts(
    folder: Path, given: Mapping[str, str] | None, default: str | None
) -> tuple[dict[str, str], str | None]:
    """Prompts by name, and the name of the default one: those of a spec, else the model's own.

    Args:
        folder: Folder of the model.
        given: Prompts of the spec; None for the model's own.
        default: Name of the default prompt in the spec; None for the model's own, if there is such a prompt.

    Raises:
        InvalidArgument: There is no prompt of this name, or the model's own prompts are not texts.
    """
    own, own_default = prompts(read_options(folder))
    texts = own if given is None else dict(given)
    if default is None:
        return texts, own_default if own_default in texts else None
    if default not in texts:
        accepted = did_you_mean(default, texts) if texts else "there are no prompts; name some in field 'prompts'"
        raise InvalidArgument(f"field 'default_prompt': unknown prompt '{default[:80]}': {accepted}")
    return texts, default


def similarity(options: dict[str, Any]) -> str:
    """Name of the function that compares two vectors; cosine by default, as in sentence-transformers.

    Args:
        options: See `read_options`.

    Raises:
        InvalidArgument: It is unknown.
    """
    name = str(options.get("similarity_fn_name") or "cosine")
    name = {"dot_product": "dot"}.get(name, name)
    if name not in _SIMILARITIES:
        raise InvalidArgument(f"{_OPTIONS} has similarity_fn_name '{name}'; accepted are {', '.join(_SIMILARITIES)}")
    return name


def transformer_limits(folder: Path) -> tuple[int | None, bool]:
    """The longest input in tokens, None for the tokenizer's; and whether texts are lowercased.

    Args:
        folder: Folder of the model.
    """
    path = folder / _TRANSFORMER
    config = read_json(path) if path.is_file() else {}
    longest = config.get("max_seq_length")
    return longest if isinstance(longest, int) else None, bool(config.get("do_lower_case"))


def activation_of(folder: Path) -> str | None:
    """Class of a cross-encoder's activation function, as its files name it; None where no file marks a cross-encoder.

    Args:
        folder: Folder of the model.
    """
    config, options = read_json(folder / "config.json"), read_options(folder)
    stored = config.get("sentence_transformers")
    for name in (
        stored.get("activation_fn") if isinstance(stored, dict) else None,
        config.get("sbert_ce_default_activation_function"),
        options.get("activation_fn"),
    ):
        if isinstance(name, str):
            return name
    return "" if options.get("model_type") == "CrossEncoder" or isinstance(stored, dict) else None
