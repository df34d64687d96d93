"""Rows of requests in the `arlo` service, and the responses built from their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tidal.arlo.manifest import ArloManifest
from tidal.arlo.model import TokenRow, stack_rows
from tidal.arlo.policies import ArloQuery
from tidal.engine_model.manifest import Runtime
from tidal.errors import InvalidArgument
from tidal.requests import Array
from tidal.serving.rows import RequestRows
from tidal.serving.softmax import softmax

ArloRequest = RequestRows[dict[str, Array]]


@dataclass(eq=False, slots=True)
class ArloRow(ArloQuery):
    """A row of a request as a query of the policy, with its tokens and its request."""

    tokens: TokenRow = field(kw_only=True)
    parent: ArloRequest = field(kw_only=True)
    index: int = field(kw_only=True)
    crashes: int = field(default=0, kw_only=True)  # times that the process to run it crashed or was down


_REGRESSION = (
    "the outputs 'label' and 'probabilities' were requested, and the model has one output, a score; request 'logits' "
    "alone, or remove the two from the model's config.pbtxt"
)


class AnswerBuilder:
    """Builds responses from engine outputs.

    Args:
        manifest: Manifest of the served version.
        declared: Names of the outputs in config.pbtxt.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not have.
    """

    def __init__(self, manifest: ArloManifest, declared: frozenset[str]) -> None:
        self._labels = np.array([label.encode() for label in manifest.labels], object)
        self._extra = {output.name: output.per_token for output in manifest.extra_outputs}
        for name in sorted(declared - {"logits", "probabilities", "label", "max_length", *self._extra}):
            raise InvalidArgument(
                f"config.pbtxt declares the output '{name}', which this model does not have; remove it there, or "
                f"rebuild the model with `outputs: [logits, {name}]`"
            )

    def row(self, outputs: Mapping[str, Array], index: int, length: int, runtime: Runtime) -> dict[str, Array]:
        """Return one query's rows of a batch's outputs, without padding.

        Args:
            outputs: Engine outputs of the batch by name, [rows, ...].
            index: Index of the query in the batch.
            length: Length of the query in tokens.
            runtime: Runtime that ran the batch.
        """
        result = {"logits": outputs["logits"][index], "max_length": np.array([runtime.max_length], np.int32)}
        for name, per_token in self._extra.items():
            result[name] = outputs[name][index, :length] if per_token else outputs[name][index]
        return result

    def reply(self, answered: ArloRequest) -> None:
        """Send the response of a request whose rows have all run."""
        request, rows = answered.request, answered.results
        logits = stack_rows(rows, "logits")
        outputs: dict[str, Array] = {"logits": logits}
        # The softmax of a single score is always 1, whatever the score.
        if len(self._labels) == 1 and (request.wants("probabilities") or request.wants("label")):
            request.fail(InvalidArgument(_REGRESSION))
            return
        if request.wants("probabilities"):
            outputs["probabilities"] = softmax(logits, dtype=np.float32)
        if request.wants("label"):
            outputs["label"] = self._labels[logits.argmax(-1)][:, None]
        for name in ("max_length", *self._extra):
            if request.wants(name):
                outputs[name] = stack_rows(rows, name)
        if request.record is not None:
            request.record.facts["max_length"] = [int(row["max_length"][0]) for row in rows]
        request.reply(outputs)
