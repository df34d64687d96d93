"""Entities and answers of a real server compared with those of transformers' own pipelines, over real texts.

The models have the weights of all-MiniLM-L6-v2 and heads of random weights: what is compared is the way from a text to
its answer. The pipeline for questions runs in an environment with transformers 4.57, the last that has it. Earlier
versions give equal answers to a question several times.
"""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.encoders import pipeline_worker
from benchmarks.report import Claim, progress
from demo.train import minilm_folder
from tidal_client import Client

#: Names of the models by the kind of their source.
MODELS = {"tokens": "minilm_entities_fp32", "questions": "minilm_answers_fp32"}
LANGUAGES = ("en", "de", "zh")
LONGEST, STRIDE, TOP_K = 256, 64, 3
#: Fields of their specs.
SPEC_FIELDS = {
    "tokens": f"task: token-classification\nlengths: [64, {LONGEST}]\n",
    "questions": f"task: question-answering\nlengths: [64, 128, {LONGEST}]\ntruncate: stride\nstride: {STRIDE}\n",
}
_LABELS = ("O", *(f"{part}-{tag}" for tag in ("person", "location", "group", "creative-work") for part in "BI"))
# Standard deviations of the heads' weights, which give labels and places of clear probabilities.
_DEVIATION = {"tokens": 0.3, "questions": 1.0}
_SCORE_TOLERANCE = 1e-3
_ROWS = 32


@dataclass(frozen=True, slots=True)
class Equality:
    """Answers that were compared.

    Attributes:
        compared: Number of texts or questions.
        equal: Number of those whose answer is the same in every way of asking.
        different: Descriptions of some others.
    """

    compared: int
    equal: int
    different: tuple[str, ...]

    @property
    def share(self) -> float:
        """Share of the answers that are equal."""
        return self.equal / self.compared


def read_sentences(data: Path, count: int) -> list[str]:
    """Read sentences of WNUT-17, with a blank between their tokens.

    Args:
        data: Folder with `wnut17/dev.conll.gz` and `train.conll.gz`.
        count: Number of sentences at most; those with characters beyond ASCII, such as emoji, and with URLs come first.
    """
    sentences: list[str] = []
    for name in ("dev", "train"):
        with gzip.open(data / "wnut17" / f"{name}.conll.gz", "rt", encoding="utf-8") as file:
            words: list[str] = []
            for line in [*file, ""]:
                if line.strip():
                    words.append(line.split("\t")[0])
                elif words:
                    sentences.append(" ".join(words))
                    words = []
    return sorted(sentences, key=lambda text: text.isascii() and "http" not in text)[:count]


def read_questions(data: Path, language: str, count: int) -> list[tuple[str, str]]:
    """Read questions of XQuAD with their contexts, spread over all articles.

    Args:
        data: Folder with `xquad/<language>.json.gz`.
        language: Name of the file.
        count: Number of questions at most.
    """
    with gzip.open(data / "xquad" / f"{language}.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    pairs = [
        (question["question"], paragraph["context"])
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    return pairs[:: max(1, -(-len(pairs) // count))]


def write_source(kind: str, target: Path) -> Path:
    """Write a model with MiniLM's weights and a random head; returns `target`.

    Args:
        kind: `tokens` or `questions`.
        target: Folder to write.
    """
    import torch
    from transformers import AutoTokenizer, BertForQuestionAnswering, BertForTokenClassification

    torch.manual_seed(0)
    if kind == "tokens":
        names = dict(enumerate(_LABELS))
        model = BertForTokenClassification.from_pretrained(minilm_folder(), id2label=names)
        head = model.classifier
    else:
        model = BertForQuestionAnswering.from_pretrained(minilm_folder())
        head = model.qa_outputs
    torch.nn.init.normal_(head.weight, std=_DEVIATION[kind])
    model.eval().save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    tokenizer.model_max_length = LONGEST
    tokenizer.save_pretrained(target)
    return target


def compare_entities(url: str, source: Path, sentences: Sequence[str]) -> Equality:
    """Compare entities with those of transformers' pipeline, in all its aggregations.

    Args:
        url: Address of the server.
        source: Source of the model that it serves.
        sentences: Texts.
    """
    from transformers import pipeline

    from tidal.encoder_tasks.entities import AGGREGATIONS

    progress(f"comparing the entities of {len(sentences)} sentences")
    wrong: dict[int, str] = {}
    truth = pipeline("token-classification", model=str(source))
    with Client(url) as client:
        for aggregation in AGGREGATIONS:
            found = client.entities_many(MODELS["tokens"], list(sentences), aggregation=aggregation)
            expected = truth(list(sentences), aggregation_strategy=aggregation)
            for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                if not _same_entities(ours, theirs, aggregation):
                    wrong.setdefault(number, f"{aggregation}: {sentences[number]!r}: {ours} != {theirs}")
    return Equality(len(sentences), len(sentences) - len(wrong), tuple(wrong.values())[:5])


def _same_entities(ours: Sequence[Any], theirs: Sequence[Any], aggregation: str) -> bool:
    label = "entity" if aggregation == "none" else "entity_group"
    return len(ours) == len(theirs) and all(
        (a.label, a.start, a.end) == (b[label], b["start"], b["end"]) and abs(a.score - b["score"]) < _SCORE_TOLERANCE
        for a, b in zip(ours, theirs, strict=True)
    )


def compare_answers(
    url: str, source: Path, interpreter: Path, questions: Mapping[str, Sequence[tuple[str, str]]]
) -> dict[str, Equality]:
    """Compare answers with those of transformers' pipeline.

    Args:
        url: Address of the server.
        source: Source of the model that it serves.
        interpreter: Python with torch and transformers 4.57.
        questions: Questions with their contexts, by language.
    """
    results: dict[str, Equality] = {}
    with Client(url, timeout_s=120.0) as client:
        for language, pairs in questions.items():
            progress(f"comparing the answers to {len(pairs)} questions ({language})")
            expected = _pipeline_answers(interpreter, source, pairs)
            wrong = []
            for start in range(0, len(pairs), _ROWS):
                part = pairs[start : start + _ROWS]
                found = client.answer_many(
                    MODELS["questions"], [question for question, _ in part], [text for _, text in part], top_k=TOP_K
                )
                for pair, ours, theirs in zip(part, found, expected[start:], strict=False):
                    mine = [[each.text, each.start, each.end] for each in ours.candidates]
                    if mine != [each[:3] for each in theirs]:
                        wrong.append(f"{pair[0]!r}: {ours.candidates} != {theirs}")
            results[language] = Equality(len(pairs), len(pairs) - len(wrong), tuple(wrong[:5]))
    return results


def _pipeline_answers(interpreter: Path, source: Path, pairs: Sequence[tuple[str, str]]) -> list[list[list[Any]]]:
    """Return the answers of the pipeline, each text, start, end and score, by a process of another environment."""
    request = {"source": str(source), "pairs": pairs, "longest": LONGEST, "stride": STRIDE, "top_k": TOP_K}
    command = [str(interpreter), str(Path(pipeline_worker.__file__))]
    ended = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"the pipeline for questions failed: {ended.stderr.strip()[-600:]}")
    answers: list[list[list[Any]]] = json.loads(ended.stdout.splitlines()[-1])
    return answers


def make_claims(entities: Equality, answers: Mapping[str, Equality]) -> list[Claim]:
    """Return the claims of equality."""
    total = sum(each.compared for each in answers.values())
    equal = sum(each.equal for each in answers.values())
    by_language = ", ".join(f"{language} {each.equal} of {each.compared}" for language, each in answers.items())
    note = f"{entities.compared} sentences of WNUT-17, five aggregations; random head"
    return [
        Claim("entities_equal_transformers", "== 1.0", entities.share, note=note),
        Claim("spans_equal_transformers", "== 1.0", equal / total, note=f"XQuAD: {by_language}; random head"),
    ]
