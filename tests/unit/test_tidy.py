"""The layout stays readable: few files a folder, one class for a name, no private words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "martlet"

MAX_FILES = 20
MAX_LINES = 70
MAX_PARAMETERS = 8
FACES = "client/sync/"
"""The client without await: its classes are called as those of asyncio that they stand for."""
SEVERAL = {"AdminOptions", "InvalidName", "Broker", "Consumer", "Connection", "Batch"}
"""Names of the client's and the test kit's that users know, and of the core's or the log's."""

BANNED = re.compile(
    r"_?(MOST|LONGEST|LEAST)(_\w+)?|_?(most|longest|around|told|whole|tell_\w+|told_\w+)"
    r"|(?i:(\w+_)?(tally|tallies|look|looks|looked|bury|buried|bark|solitude|trail|lanes?)(_\w+)?)"
    r"|_?(?:[A-Z][a-z]+)*(Tally|Look|Bury|Bark|Solitude|Sight|Noun|Trail|Lane)(?:[A-Z][a-z]+)*"
)
PUBLIC = {"tally", "looked_at"}
"""Banned words that users know: a former name, and a field of an answer."""
TESTS = Path(__file__).parents[1]
MIRRORS = ("crash", "interop", "property", "spark", "unit")
"""Folders of tests that have the folders of the package, and of what stands beside it."""
BANNED_IN_TESTS = re.compile(r"_?(\w+_)?told(_\w+)?", re.IGNORECASE)
PLAIN = (
    "cli",
    "client",
    "lookup",
    "options",
    "pipeline",
    "server",
    "spark",
    "supervisor",
    "testing",
)
"""The packages whose sentences the tests below check."""
NO_OPENING = re.compile(r"(What|Who|Whoever|Whose|That|The part of)\b")
"""A docstring says what a function does, or what a thing is, and not \"What ...\"."""


def modules() -> Iterator[Path]:
    yield from sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize(
    "folder", [PACKAGE, *(TESTS / kind for kind in MIRRORS)], ids=["package", *MIRRORS]
)
def test_a_folder_has_few_files(folder: Path) -> None:
    counts = Counter(path.parent for path in folder.rglob("*.py"))
    assert not [str(folder) for folder, count in counts.items() if count > MAX_FILES]


@pytest.mark.parametrize("kind", MIRRORS)
def test_folders_of_tests_mirror_the_package(kind: str) -> None:
    folders = {path.parent.relative_to(TESTS / kind) for path in (TESTS / kind).rglob("test_*.py")}
    sources = (PACKAGE, PACKAGE / kind, TESTS.parent)
    assert not [folder for folder in folders if not any((top / folder).is_dir() for top in sources)]


def test_a_name_is_of_one_class() -> None:
    found = defaultdict(list)
    for path in modules():
        where = str(path.relative_to(PACKAGE))
        if where.startswith(FACES):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(where)
    several = {name: places for name, places in found.items() if len(places) > 1}
    assert not several.keys() - SEVERAL, several


def test_a_package_of_the_core_documents_its_imports_and_its_start() -> None:
    for package in (
        "broker",
        "cli",
        "client",
        "layer",
        "log",
        "lookup",
        "options",
        "protocol",
        "replica",
        "server",
        "spark",
    ):
        for path in (PACKAGE / package).rglob("__init__.py"):
            text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
            if not str(path.relative_to(PACKAGE)).startswith((FACES, "client/group/__init__")):
                assert "ay import" in text, path
                assert "Start with" in text, path


@pytest.mark.parametrize(
    ("folder", "banned"), [(PACKAGE, BANNED), (TESTS, BANNED_IN_TESTS)], ids=["package", "tests"]
)
def test_banned_words(folder: Path, banned: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(folder)}:{token.start[0]}: {token.string}"
        for path in sorted(folder.rglob("*.py"))
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.NAME and banned.fullmatch(token.string)
        if folder != PACKAGE or token.string not in PUBLIC
    ]
    assert not found, "\n".join(found)


def test_docstrings_begin_plainly() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{token.start[0]}: {token.string[:60]}"
        for package in PLAIN
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        if token.type == tokenize.STRING
        and token.string.startswith('"""')
        and NO_OPENING.match(token.string[3:])
    ]
    assert not found, "\n".join(found)


def test_a_limit_is_called_a_maximum() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for package in PLAIN
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "so many" in line
    ]
    assert not found, "\n".join(found)


def test_functions_fit_a_screen() -> None:
    found = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            where = f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.name}"
            line_count = (node.end_lineno or node.lineno) - node.lineno + 1
            if line_count > MAX_LINES:
                found.append(f"{where} has {line_count} lines; {MAX_LINES} are a screen")
            arguments = node.args
            names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            count = len(names) - bool(names and names[0].arg in ("self", "cls"))
            if count > MAX_PARAMETERS:
                found.append(f"{where} has {count} parameters; put settings into a dataclass")
    assert not found, "\n".join(found)
