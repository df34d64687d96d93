"""Labelled files of every format, and the errors for invalid ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tidal.errors import InvalidArgument
from tidal_builders.rows import Columns, read_rows

SINGLE = (("a good film",), ('he said "no", twice',))


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.tsv", 'text\tlabel\na good film\tgood\nhe said "no", twice\tbad\n'),
        ("d.tsv", '\ufefflabel\ttext\r\ngood\ta good film\r\n\r\nbad\the said "no", twice\r\n'),
        ("d.csv", 'text,label\na good film,good\n"he said ""no"", twice",bad\n'),
        ("d.jsonl", '{"text": "a good film", "label": "good"}\n{"text": "he said \\"no\\", twice", "label": "bad"}\n'),
        (
            "d.jsonl",
            '{"text_a": "a good film", "label": "good"}\n\n{"text_a": "he said \\"no\\", twice", "label": "bad"}',
        ),
    ],
)
def test_single_texts(tmp_path: Path, name: str, content: str) -> None:
    rows = read_rows(write(tmp_path, name, content), Columns())
    assert (rows.texts, rows.labels, rows.pairs) == (SINGLE, ("good", "bad"), False)


@pytest.mark.parametrize("names", [("text", "text_pair"), ("text_a", "text_b")])
def test_pairs_by_their_usual_names(tmp_path: Path, names: tuple[str, str]) -> None:
    rows = read_rows(write(tmp_path, "d.tsv", f"{names[0]}\t{names[1]}\tlabel\none\ttwo\t1\n"), Columns())
    assert (rows.texts, rows.labels, rows.pairs) == ((("one", "two"),), ("1",), True)


def test_named_columns(tmp_path: Path) -> None:
    content = json.dumps({"question": "who?", "sentence": "he.", "text": "other", "score": 2.5})
    columns = Columns(text="question", pair="sentence", label="score")
    rows = read_rows(write(tmp_path, "d.jsonl", content), columns)
    assert (rows.texts, rows.labels) == ((("who?", "he."),), ("2.5",))


def test_line_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path, "d.csv", 'text,label\n"two\nlines",a\n\nnext,b\n'), Columns())
    assert (rows.lines, rows.texts[0]) == ((2, 5), ("two\nlines",))


def test_only_line_feeds_end_a_line_of_tsv(tmp_path: Path) -> None:
    rows = read_rows(write(tmp_path, "d.tsv", "text\tlabel\none\u2028two\x0bthree\ta\n"), Columns())
    assert rows.texts == (("one\u2028two\x0bthree",),)


def test_compressed(tmp_path: Path) -> None:
    path = tmp_path / "d.tsv.gz"
    path.write_bytes(gzip.compress(b"text\tlabel\ngood film\tgood\n"))
    assert read_rows(path, Columns()).texts == (("good film",),)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.txt", "", r"ends in '.txt', accepted are .tsv, .csv, .jsonl, each also with .gz"),
        ("d.tsv", "", "contains no rows"),
        ("d.tsv", "text\tlabel\n", "contains no rows"),
        ("d.tsv", "sentence\tlabel\na\t1\n", "no column 'text' or 'text_a' for the text; .*accepted: label, sentence"),
        ("d.tsv", "text\tlable\na\t1\n", "no column 'label' for the label; did you mean 'lable'"),
        ("d.tsv", "text\ttext\tlabel\na\tb\t1\n", "several columns 'text'"),
        ("d.tsv", "text\tlabel\na\t1\nb\n", "line 3 has 1 columns, the first line names 2: text, label"),
        ("d.tsv", "text\tlabel\na\t1\n \t1\n", "line 3: 'text' is ' ', expected a text with at least one word"),
        ("d.tsv", "text\tlabel\na\t\n", "line 2: 'label' is empty, expected a name or a number"),
        ("d.csv", 'text,label\n"a,1\n', "line 2 is not valid CSV"),
        ("d.jsonl", '{"text": "a", "label": 1}\n{"text": ', "line 2 is not valid JSON"),
        ("d.jsonl", '["a"]\n', "line 1 is not a JSON object"),
        ("d.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', "line 2: 'label' is missing"),
        ("d.jsonl", '{"text": "a", "label": 1}\n{"text": 5, "label": 1}\n', "line 2: 'text' is 5, expected a text"),
        ("d.jsonl", '{"text": "a", "label": true}\n', "line 1: 'label' is True, expected a name or a number"),
        ("d.jsonl", '{"text": "\\ud800", "label": 1}\n', "line 1: 'text' contains an unpaired surrogate"),
        ("d.tsv", "text\tlabel\n" + " \t1\n" * 5, "line 2: .*line 3: .*line 4: [^;]*; and 2 more"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_rows(write(tmp_path, name, content), Columns())


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d.tsv").write_bytes(b"text\tlabel\ngood\tgood\nb\xff\tbad\n")
    with pytest.raises(InvalidArgument, match="line 3 is not valid UTF-8"):
        read_rows(tmp_path / "d.tsv", Columns())
    (tmp_path / "d.tsv.gz").write_bytes(b"text")
    with pytest.raises(InvalidArgument, match=r"d.tsv.gz cannot be read: Not a gzipped file"):
        read_rows(tmp_path / "d.tsv.gz", Columns())
