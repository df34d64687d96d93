"""The registry of tasks of encoders: one entry per task, whose code is imported when a model with it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel

from tidal.registered import Registered, check_registered

if TYPE_CHECKING:
    from tidal.encoder_tasks.head import TaskHead
    from tidal.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """An output that clients may request.

    Attributes:
        name: Name of the tensor.
        data_type: Triton's type, for example `TYPE_FP32`.
        dims: Shape without the batch axis; -1 for any size.
        meaning: Description for the documentation.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    meaning: str


@dataclass(frozen=True, slots=True)
class EncoderTask:
    """A task.

    Attributes:
        meaning: Purpose of a model with this task, as a noun phrase.
        outputs: Outputs that clients may request, besides `max_length` and those of the manifest.
        head: Function of settings and labels that returns a `TaskHead`, as `module:name`.
        settings: Pydantic model of what a manifest stores about the task, as `module:name`.
        engine_output: Name of the output of the engines that the answers are computed from.
        per_token: Whether that output has values for every token, [rows, length, width], instead of [rows, width].
        pairs: Whether a query may, must or must not be a pair of texts.
        options: Names of the request options that it uses.
        offsets: Whether its answers refer to the characters of the text.
        windows: Index of the text that may be cut into windows if a query is too long, of which the head then merges
            the results; None if the task has no windows.
        decodes: Whether its head gets the tokenizer as well, to write token ids as text.
        labelled: Whether a manifest has the names of its labels.
    """

    meaning: str
    outputs: tuple[TaskOutput, ...]
    head: str
    settings: str = "tidal.encoder_tasks.head:NoSettings"
    engine_output: str = "logits"
    per_token: bool = False
    pairs: Literal["accepted", "required", "refused"] = "accepted"
    options: tuple[str, ...] = ()
    offsets: bool = False
    windows: int | None = None
    decodes: bool = False
    labelled: bool = False

    def read_settings(self, values: Mapping[str, Any]) -> BaseModel:
        """Check the settings of a manifest.

        Args:
            values: Value by name.

        Raises:
            ValueError: A setting is unknown, missing or out of range.
        """
        return cast(type[BaseModel], _load(self.settings)).model_validate(dict(values))

    def open_head(
        self, settings: Mapping[str, Any], labels: tuple[str, ...] = (), tokenizer: TextTokenizer | None = None
    ) -> TaskHead:
        """Make the head of a model with this task.

        Args:
            settings: Settings of its manifest.
            labels: Names of its labels; empty if the task has none.
            tokenizer: Tokenizer of the model; None for a task that does not decode.
        """
        parts = (self.read_settings(settings), labels, *([tokenizer] if self.decodes else []))
        return cast("TaskHead", _load(self.head)(*parts))


def _load(part: str) -> Any:
    module, _, name = part.partition(":")
    return getattr(import_module(module), name)


def _class_outputs(function: str) -> tuple[TaskOutput, ...]:
    return (
        TaskOutput("logits", "TYPE_FP32", (-1,), f"scores of the labels before the {function}"),
        TaskOutput("probabilities", "TYPE_FP32", (-1,), f"{function} of the logits"),
        TaskOutput("label", "TYPE_STRING", (1,), "name of the most likely label"),
    )


TASKS: dict[str, EncoderTask] = {
    "classification": EncoderTask(
        meaning="one label for each text",
        outputs=_class_outputs("softmax"),
        head="tidal.encoder_tasks.classification:ClassHead",
        labelled=True,
    ),
    "multi-label": EncoderTask(
        meaning="any number of labels for each text",
        outputs=(
            *_class_outputs("sigmoid"),
            TaskOutput(
                "labels", "TYPE_STRING", (1,), "JSON list of the labels with at least `threshold`, most likely first"
            ),
        ),
        head="tidal.encoder_tasks.multi_label:MultiLabelHead",
        options=("threshold",),
        labelled=True,
    ),
    "regression": EncoderTask(
        meaning="a number for each text",
        outputs=(
            TaskOutput("logits", "TYPE_FP32", (-1,), "outputs of the model"),
            TaskOutput("score", "TYPE_FP32", (1,), "first output of the model"),
        ),
        head="tidal.encoder_tasks.scores:RegressionHead",
        labelled=True,
    ),
    "rerank": EncoderTask(
        meaning="how relevant a document is to a query",
        outputs=(
            TaskOutput("score", "TYPE_FP32", (1,), "relevance: the logit, or its sigmoid, as the model's files say"),
            TaskOutput("logits", "TYPE_FP32", (-1,), "output of the model"),
        ),
        head="tidal.encoder_tasks.scores:RerankHead",
        settings="tidal.encoder_tasks.scores:RerankSettings",
        pairs="required",
    ),
    "embedding": EncoderTask(
        meaning="a vector for each text",
        outputs=(
            TaskOutput("embedding", "TYPE_FP32", (-1,), "the vector"),
            TaskOutput("embedding_fp16", "TYPE_FP16", (-1,), "the same as FP16"),
            TaskOutput("embedding_int8", "TYPE_INT8", (-1,), "the normalised vector times 127, rounded"),
            TaskOutput("embedding_binary", "TYPE_UINT8", (-1,), "8 signs per byte, the first in the highest bit"),
        ),
        head="tidal.encoder_tasks.embedding:EmbeddingHead",
        windows=0,
        settings="tidal.encoder_tasks.embedding:EmbeddingSettings",
        engine_output="embedding",
        pairs="refused",
        options=("prompt", "dimensions"),
    ),
    "sparse-embedding": EncoderTask(
        meaning="a weight for each word of the vocabulary that a text is about",
        outputs=(
            TaskOutput("indices", "TYPE_INT32", (-1,), "token ids with a weight above 0, ascending; padded with -1"),
            TaskOutput("weights", "TYPE_FP32", (-1,), "their weights; padded with 0"),
        ),
        head="tidal.encoder_tasks.sparse:SparseHead",
        engine_output="weights",
        pairs="refused",
    ),
    "token-classification": EncoderTask(
        meaning="a label for each token",
        outputs=(
            TaskOutput(
                "entities", "TYPE_STRING", (1,), "JSON list of label, score, start, end and text of each entity"
            ),
            TaskOutput("entity_labels", "TYPE_STRING", (-1,), "labels of the entities; padded with empty ones"),
            TaskOutput("entity_scores", "TYPE_FP32", (-1,), "their probabilities; padded with 0"),
            TaskOutput("entity_starts", "TYPE_INT32", (-1,), "their first characters; padded with -1"),
            TaskOutput("entity_ends", "TYPE_INT32", (-1,), "the characters after their last ones; padded with -1"),
            TaskOutput("logits", "TYPE_FP32", (-1, -1), "scores of the labels of every token"),
        ),
        head="tidal.encoder_tasks.tokens:TokenHead",
        settings="tidal.encoder_tasks.tokens:TokenSettings",
        per_token=True,
        pairs="refused",
        options=("aggregation",),
        offsets=True,
        windows=0,
        labelled=True,
    ),
    "question-answering": EncoderTask(
        meaning="the place in a text that answers a question",
        outputs=(
            TaskOutput("answer", "TYPE_STRING", (1,), "most likely answer; empty if the context has none"),
            TaskOutput("score", "TYPE_FP32", (1,), "its probability"),
            TaskOutput("start", "TYPE_INT32", (1,), "its first character in text_pair"),
            TaskOutput("end", "TYPE_INT32", (1,), "the character after its last one"),
            TaskOutput("answers", "TYPE_STRING", (1,), "JSON list of answer, score, start and end of the best `top_k`"),
        ),
        head="tidal.encoder_tasks.questions:QuestionHead",
        settings="tidal.encoder_tasks.questions:QuestionSettings",
        per_token=True,
        pairs="required",
        options=("top_k",),
        offsets=True,
        windows=1,
    ),
    "fill-mask": EncoderTask(
        meaning="the most likely tokens for masked words",
        outputs=(
            TaskOutput(
                "predictions",
                "TYPE_STRING",
                (1,),
                "JSON list with, for each masked word, a list of token, token_id and score of the best `top_k`",
            ),
        ),
        head="tidal.encoder_tasks.masks:MaskHead",
        settings="tidal.encoder_tasks.masks:MaskSettings",
        pairs="refused",
        options=("top_k",),
        decodes=True,
    ),
}


def task_entry(name: str) -> EncoderTask:
    """The entry of a task.

    Raises:
        ValueError: The registry has no task of this name.
    """
    return TASKS[check_registered(name, TASKS)]


# Name of a registered task.
TaskName = Annotated[str, Registered(TASKS)]
