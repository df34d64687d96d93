"""Recognises the task of a source model from its JSON files, and the kind of spec that serves it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tidal.errors import InvalidArgument
from tidal_builders.foreign.files import read_json

Task = Literal[
    "classification", "regression", "multi_label", "token_classification", "question_answering", "multiple_choice",
    "next_sentence", "fill_mask", "embedding", "encoder", "text_generation", "seq2seq", "multimodal", "vision",
    "timm", "audio", "adapter", "gguf", "unknown",
]  # fmt: skip

# Description of the models for each task, and how they can be served.
_CLASSIFIERS = "kind 'arlo' serves classifiers, rerankers and embedding models"
_BASE = "its encoder can be the base of tasks (kind 'pets')"
_TASKS: dict[Task, tuple[str, str]] = {
    "classification": ("a text classifier that gives each text one label", "kinds 'arlo' and 'tabi' serve it"),
    "regression": (
        "a cross-encoder or another regression: it gives a score, and the softmax of a score is always 1",
        "kind 'arlo' serves it (task rerank or regression), kind 'tabi' as the levels of a cascade",
    ),
    "multi_label": (
        "a multi-label classifier: its labels are independent of each other, and a softmax over them is wrong",
        "kind 'arlo' serves it (task multi-label)",
    ),
    "token_classification": (
        "a token classifier (named entities, parts of speech): it labels every token of a text",
        f"kind 'arlo' serves it (task token-classification); {_BASE}",
    ),
    "question_answering": (
        "an extractive question-answering model: it gives the start and end of an answer within a text",
        f"kind 'arlo' serves it (task question-answering); {_BASE}",
    ),
    "multiple_choice": ("a multiple-choice model", f"choices are not served yet; {_CLASSIFIERS}; {_BASE}"),
    "next_sentence": (
        "a next-sentence-prediction model", f"{_CLASSIFIERS}: fine-tune one from it; {_BASE}",
    ),
    "fill_mask": (
        "a pre-trained fill-mask model, which has no classifier",
        "kind 'arlo' serves it (task fill-mask), or as an embedding model (task embedding with `pooling`, or "
        f"sparse-embedding); {_BASE}",
    ),
    "embedding": (
        "an embedding model (sentence-transformers), which has no classifier",
        f"kind 'arlo' serves it (task embedding or sparse-embedding); {_BASE}",
    ),
    "encoder": (
        "a model without a head: it gives hidden states, and has no classifier",
        f"kind 'arlo' serves it as an embedding model (task embedding with `pooling`); {_BASE}",
    ),
    "text_generation": ("a decoder: it generates text", "kind 'flover' serves decoders"),
    "seq2seq": (
        "a sequence-to-sequence model (encoder and decoder)",
        "such models are not served: kind 'flover' serves decoders alone, kinds 'arlo' and 'pets' encoders",
    ),
    "multimodal": (
        "a multimodal model: it reads images or audio beside text",
        "such models are not served: kind 'flover' serves text-only decoders, as of the architecture Gemma3ForCausalLM",
    ),
    "vision": (
        "a vision model in transformers' format", "kind 'otas' serves vision transformers in timm's format (vit_*)",
    ),
    "timm": ("a vision model of timm's", "kind 'otas' serves timm's vit_*"),
    "audio": ("a speech or audio model", "audio is not served"),
    "adapter": (
        "an adapter (peft or AdapterHub) and no model",
        "build its base (kind 'pets' or 'flover'), then add the adapter by `tidal tasks add`",
    ),
    "gguf": ("weights in GGUF's format", "weights are read as safetensors in Hugging Face's format"),
    "unknown": ("a model whose config.json names no known architecture", "see the table of kinds in the documentation"),
}  # fmt: skip
# Task by the end of the architecture's name; the first match counts.
_ENDINGS: tuple[tuple[str, Task], ...] = (
    ("ForSequenceClassification", "classification"),
    ("ForTokenClassification", "token_classification"),
    ("ForQuestionAnswering", "question_answering"),
    ("ForQuestionAnsweringSimple", "question_answering"),  # XLM, FlauBERT
    ("ForMultipleChoice", "multiple_choice"),
    ("ForNextSentencePrediction", "next_sentence"),
    ("ForMaskedLM", "fill_mask"),
    ("ForPreTraining", "fill_mask"),
    ("ForCausalLM", "text_generation"),
    ("LMHeadModel", "text_generation"),
    ("ForConditionalGeneration", "seq2seq"),
    ("ForImageClassification", "vision"),
    ("ForMaskedImageModeling", "vision"),
    ("ForAudioClassification", "audio"),
    ("ForSpeechSeq2Seq", "audio"),
    ("ForCTC", "audio"),
    ("Model", "encoder"),
)
# Types of models whose bare `…Model` is not a text encoder.
_BARE: dict[str, Task] = {
    **dict.fromkeys(("vit", "deit", "beit", "swin", "dinov2", "clip", "siglip"), "vision"),
    **dict.fromkeys(("wav2vec2", "hubert", "whisper", "wavlm"), "audio"),
    **dict.fromkeys(
        ("gpt2", "gptj", "gpt_neo", "gpt_neox", "llama", "mistral", "mixtral", "qwen2", "qwen3", "phi", "phi3", "opt",
         "bloom", "falcon", "gemma", "gemma2", "gemma3_text", "olmo", "olmo2", "stablelm"),
        "text_generation",
    ),
}  # fmt: skip
# Tasks that builders accept. A folder without a known architecture is checked when it is loaded.
SINGLE_LABEL: frozenset[Task] = frozenset(("classification", "unknown"))
SINGLE_OUTPUT: frozenset[Task] = frozenset(("classification", "regression", "unknown"))
ENCODERS: frozenset[Task] = frozenset(
    ("classification", "regression", "multi_label", "token_classification", "question_answering", "multiple_choice",
     "next_sentence", "fill_mask", "embedding", "encoder", "unknown")
)  # fmt: skip
DECODERS: frozenset[Task] = frozenset(("text_generation", "unknown"))
VISION: frozenset[Task] = frozenset(("timm", "unknown"))


@dataclass(frozen=True, slots=True)
class Recognised:
    """A source model as recognised from its folder.

    Attributes:
        task: Task of the model.
        architecture: First of config.json's `architectures`, or timm's `architecture`; "" if there is none.
        evidence: Names and values of the fields that decided, for messages; may be empty.
    """

    task: Task
    architecture: str
    evidence: str

    @property
    def found(self) -> str:
        """Architecture and evidence, for messages; may be empty."""
        return ", ".join(filter(None, (self.architecture, self.evidence)))

    def sentence(self) -> str:
        """Description of the model and how it can be served, without the folder's name."""
        return sentence_of(self.task, self.found)


def recognise(folder: Path) -> Recognised:
    """Recognise the task of a model.

    Args:
        folder: Folder of the model; one without any known file is "unknown".

    Raises:
        InvalidArgument: One of its JSON files is not valid.
    """
    if not (folder / "config.json").is_file():
        task: Task = "unknown"
        if (folder / "adapter_config.json").is_file():
            task = "adapter"
        elif (folder / "modules.json").is_file():
            task = "embedding"
        elif any(folder.glob("*.gguf")):
            task = "gguf"
        return Recognised(task, "", "")
    config = read_json(folder / "config.json")
    named = config.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else str(config.get("architecture") or "")
    task, found = _task(config, architecture, sentences=(folder / "modules.json").is_file())
    return Recognised(task, architecture, found)


def require(folder: Path, accepted: Collection[Task], kind: str, field: str = "model") -> Recognised:
    """Refuse a source model that a kind of spec does not serve.

    Args:
        folder: Folder of the source model.
        accepted: Tasks that the kind serves.
        kind: Kind of the spec, for the error.
        field: Field of the spec that names the model, for the error.

    Returns:
        The recognised model.

    Raises:
        InvalidArgument: It is a model for another task; names the task and how it can be served.
    """
    found = recognise(folder)
    if found.task not in accepted:
        raise InvalidArgument(f"field '{field}': kind '{kind}' cannot serve {folder}: it is {found.sentence()}")
    return found


def sentence_of(task: Task, named: str = "") -> str:
    """Description of the models for a task, and how they can be served.

    Args:
        task: The task.
        named: Fields by which the model was recognised; may be empty.
    """
    what, served = _TASKS[task]
    return f"{what}{f' ({named})' if named else ''}; {served}"


def task_of_architecture(architecture: str) -> Task:
    """Task of a class of `transformers` by its name; "unknown" for other names."""
    return next((task for ending, task in _ENDINGS if architecture.endswith(ending)), "unknown")


def outputs_of(config: dict[str, Any]) -> int | None:
    """Number of outputs of a classifier by its config.json; None if it has none (transformers then uses 2)."""
    labels = config.get("id2label")
    if isinstance(labels, dict) and labels:
        return len(labels)
    count = config.get("num_labels")
    return count if isinstance(count, int) else None


def _task(config: dict[str, Any], architecture: str, *, sentences: bool) -> tuple[Task, str]:
    if not architecture:  # an explicit problem_type still decides
        task, found = _classifier({"id2label": {"0": "", "1": ""}} | config)
        return ("unknown", "") if task == "classification" else (task, found)
    if "architectures" not in config:
        return "timm", ""
    task = task_of_architecture(architecture)
    if task == "classification":
        return _classifier(config)
    kind = str(config.get("model_type"))
    if sentences and task in ("encoder", "fill_mask", "text_generation", "unknown"):
        return "embedding", "modules.json"
    if task == "encoder":
        if kind in _BARE:
            return _BARE[kind], f"model_type {kind}"
        if config.get("is_encoder_decoder"):
            return "seq2seq", "is_encoder_decoder"
    if task == "seq2seq" and (parts := [part for part in ("vision_config", "audio_config") if config.get(part)]):
        return "multimodal", parts[0]
    if task == "seq2seq" and kind in _BARE:
        return _BARE[kind], f"model_type {kind}"
    return task, ""


def _classifier(config: dict[str, Any]) -> tuple[Task, str]:
    """Task of a sequence classifier: a classification if its outputs are scores of mutually exclusive labels."""
    problem, outputs = config.get("problem_type"), outputs_of(config)
    if problem == "multi_label_classification":
        return "multi_label", f"problem_type {problem}"
    if problem == "regression":
        return "regression", f"problem_type {problem}, num_labels {outputs or 2}"
    if outputs == 1:
        return "regression", "num_labels 1"
    return "classification", ""
