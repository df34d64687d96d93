"""Words that only this project used must not come back: a newcomer has to understand every name and sentence."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each private word, as it was, with the word of the field.
PRIVATE = {
    r"told|unsettled|settles?|settled|settling": "reported, notified; completed, recorded",
    r"seats?|seated": "slot",
    r"kin": "related models, model graph",
    r"wish|wishes|wished": "options",
    r"hurried|hurry": "with_deadline, urgent",
    r"put[ _]back|puts[ _]back|putting[ _]back": "requeue",
    r"most_running": "max_concurrency",
    r"dearest": "highest_utility",
    r"worth|worthy": "utility, value",
    r"aftermath": "cleanup",
    r"befalls?|beheld": "happens to, seen",
    r"patient_?models": "models that wait",
    r"of which nothing": "state what is missing",
    r"unhurried|hurrying": "without a deadline",
    r"tak(?:e|en|es|ing)[ _]along": "accepted, included",
    r"(?:its|their) likes": "queries of similar length",
    r"writ(?:e|es|ing) on behind|generat(?:e|es|ing) on behind": "continue after, decode",
    r"what (?:came|waits)|who comes first": "received, queued; head of the queue",
    r"deeper matter": "further reading",
    r"anew": "again",
    r"hangs? on (?:what|how|which)": "depends on",
    r"(?:lie|lies|lay) apart": "are in a folder of their own",
}
# Common words that are private as the name of a class or of a module.
_PRIVATE_NAMES = re.compile(r"^class (?:Stations?|Turns?|Readings?|Seats?)\b", re.MULTILINE)
_PRIVATE_MODULES = {"taking", "lives", "aftermath", "family"}
# Clauses and fragments in place of a noun phrase, and the start of an entry of `Args:` or `Attributes:`.
_FRAGMENT = re.compile(r"\w+: (?:What|Who|Which|How|Where|Of|To|For|As|By|In|With) ")
_ENTRIES = re.compile(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)*)", re.MULTILINE)
# A word begins and ends where no letter follows, or at a capital within a name: `TestWorth`, `IsToldNow`, `put_back`.
_HUMP = r"(?<=[a-z0-9])(?=[A-Z])"
_WORD = re.compile(rf"(?:(?<![A-Za-z])|{_HUMP})(?i:{'|'.join(PRIVATE)})(?:(?![A-Za-z])|{_HUMP})")
_PROSE = {".md", ".yaml", ".yml", ".toml", ".txt", ".sh", ".cpp", ".hpp", ".h", ".json", ".js", ".html", ""}
# Records of runs, licences, pinned packages, training texts and vocabularies are data; this file names the words.
_EXEMPT = (
    *("benchmarks/results/", "constraints.txt", "LICENSE", "third_party/", "tests/house/test_words.py"),
    *("demo/texts.py", "demo/writer/"),
)
# Names that others read or define: a metric of users' dashboards, a function of numpy.
_PUBLIC = re.compile("put_back_queries_total|take_along_axis")


def _files() -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if not name.startswith(_EXEMPT) and (ROOT / name).is_file():
            yield ROOT / name


def private_words(text: str, *, python: bool = False, strings: bool = True) -> list[str]:
    """Private words of a text as `line: word`; of Python with `strings` False, names, comments and docstrings only."""
    pieces: list[tuple[int, str]]
    text = _PUBLIC.sub("", text)
    if not _WORD.search(text):
        return []
    if python and not strings:
        pieces, first = [], True
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NAME, tokenize.COMMENT) or (token.type == tokenize.STRING and first):
                pieces.append((token.start[0], token.string))
            # A string that begins a logical line is a docstring.
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                first = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    else:
        pieces = list(enumerate(text.splitlines(), 1))
    return [f"{line}: {match[0]}" for line, piece in pieces for match in _WORD.finditer(piece)]


def test_no_private_word() -> None:
    found = []
    for path in _files():
        if path.suffix != ".py" and path.suffix not in _PROSE:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        # Texts that tests send to models may hold any word.
        sent = path.is_relative_to(ROOT / "tests") or path.is_relative_to(ROOT / "testing")
        found += [
            f"{path.relative_to(ROOT)}:{each}"
            for each in private_words(text, python=path.suffix == ".py", strings=not sent)
        ]
    assert not found, f"{len(found)} private words; see CONTRIBUTING.md for the field's:\n" + "\n".join(found[:200])


@pytest.mark.parametrize(
    "text",
    [
        *("def put_back(query): ...", "class Seats: ...", "# what was told", "isSettledNow = 1", "x = query.worth"),
        *("taken_along = 1", "# batched with its likes", "# built anew", "# sends what waits", "# it hangs on which"),
    ],
)
def test_private_words_are_found_in_names_and_comments(text: str) -> None:
    assert private_words(text, python=True, strings=False)


def test_words_that_contain_private_ones_are_accepted() -> None:
    assert not private_words('kind = "kinship"; skin = asking; noteworthy = 1', python=True)


def test_strings_of_tests_are_data() -> None:
    assert not private_words('"""A doc."""\nsend("he told me")\n', python=True, strings=False)
    assert private_words('"""What was told."""\nsend("he")\n', python=True, strings=False)


def _described(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of a file that describes arguments or attributes, with their lines."""
    source = path.read_text(encoding="utf-8")
    if "Args:\n" not in source and "Attributes:\n" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text = ast.get_docstring(node)
            if text:
                yield node.lineno, text


def fragments(docstring: str) -> list[str]:
    """Entries of `Args:` and `Attributes:` that do not begin with a noun phrase."""
    lines = [line[4:] for block in _ENTRIES.findall(docstring) for line in block.splitlines()]
    return [line for line in lines if _FRAGMENT.match(line)]


def test_arguments_are_described_by_noun_phrases() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {each}"
        for path in _files()
        if path.suffix == ".py" and not path.is_relative_to(ROOT / "tests")
        for line, text in _described(path)
        for each in fragments(text)
    ]
    assert not found, "\n".join(found)


def test_fragments_are_found() -> None:
    assert fragments("Do.\n\nArgs:\n    a: What it is.\n    b: Name of a thing.\n        Of the model.\n") == [
        "a: What it is."
    ]
    assert fragments("A thing.\n\nAttributes:\n    a: Of the cascade.\n\n    b: How.\n") == ["a: Of the cascade."]


def test_no_class_or_module_has_a_private_name() -> None:
    python = [path for path in _files() if path.suffix == ".py"]
    assert [path for path in python if path.stem in _PRIVATE_MODULES] == []
    assert [path for path in python if _PRIVATE_NAMES.search(path.read_text(encoding="utf-8"))] == []


def test_help_texts_name_no_functions() -> None:
    """A renamed function must not have renamed a word of a sentence too."""
    functions = set()
    for path in _files():
        if path.parent.name == "commands" and path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    functions |= {each.name for each in node.names}
                elif isinstance(node, ast.FunctionDef):
                    functions.add(node.name)
    text = re.sub(r"^```.*?^```|`[^`]*`", "", (ROOT / "docs/reference/cli.md").read_text(), flags=re.M | re.S)
    assert {name for name in functions if "_" in name} & set(re.findall(r"\w+", text)) == set()
