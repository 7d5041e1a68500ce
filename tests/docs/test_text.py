"""The documents are short, their links lead somewhere, and commands not run are at least right."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from functools import cache
from urllib.parse import unquote

import pytest
from tests.docs.page import DOCS, README, ROOT, Block, Page, pages
from tests.interop.nsqd_process import NEEDS_NSQD, NSQD

from martlet.cli.main import main
from martlet.client import public

PAGES = pages()
MAX_README_WORDS = 900
MAX_PAGE_WORDS = 1000
LONG = ("docs/pipelines/", "docs/reference/", "docs/migrating/")
"""Pages that may be longer: tables that are looked things up in."""
MAX_SENTENCE_WORDS = 35
MAX_NOT_RUN = 30


def every(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", PAGES, ids=[f"{name}-{page}" for page in PAGES])


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= MAX_README_WORDS


@every("words")
def test_a_page_is_short(page: Page) -> None:
    if not str(page).startswith(LONG):
        assert len(page.text.split()) <= MAX_PAGE_WORDS


@every("sentences")
def test_sentences_are_short(page: Page) -> None:
    found = [each for each in page.sentences() if len(each.split()) > MAX_SENTENCE_WORDS]
    assert not found, "\n".join(f"{len(each.split())} words: {each}" for each in found)


@every("links")
def test_links_lead_somewhere(page: Page) -> None:
    others = {other.path: other for other in pages()}
    broken = []
    for link in page.links:
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = unquote(link).partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        # A page of the site may not lead out of it.
        is_there = target.is_file() and (page.path == README or DOCS in target.parents)
        if not is_there or (
            anchor and (target not in others or anchor not in others[target].anchors)
        ):
            broken.append(link)
    assert not broken


def test_every_page_is_reached_from_the_index() -> None:
    others = {page.path: page for page in pages()}
    seen, ahead = set(), [DOCS / "index.md"]
    while ahead:
        path = ahead.pop()
        if path in seen or path not in others:
            continue
        seen.add(path)
        ahead += [(path.parent / link.partition("#")[0]).resolve() for link in others[path].links]
    assert {str(path.relative_to(ROOT)) for path in others.keys() - seen} <= {"README.md"}


def test_few_blocks_are_not_run() -> None:
    skipped = [block for page in PAGES for block in page.blocks if block.not_run]
    assert len(skipped) <= MAX_NOT_RUN, [block.where for block in skipped]


def test_blocks_that_run_are_of_a_known_language() -> None:
    known = {"python", "console", "toml", "text", "", "json", "js", "go", "mermaid"}
    found = [
        f"{block.where}: {block.language}"
        for page in PAGES
        for block in page.blocks
        if not (block.not_run or block.file) and block.language not in known
    ]
    assert not found


COMMANDS = [
    pytest.param(block, words, id=f"{block.where}-{index}")
    for page in PAGES
    for block in page.blocks
    if block.language in ("console", "sh")
    for index, words in enumerate(
        match.split()
        for match in re.findall(
            r"(?:^|[ $(]|bin/)(?:martlet|\./run) ([a-z][^|&;>)\n]*)",
            block.text.replace("\\\n", " "),
            re.MULTILINE,
        )
    )
]


@cache
def flags(*command: str) -> set[str]:
    """The flags of a command, by its help; nothing if there is no such command."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            code = main([*command, "--help"])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text.getvalue())) if not code else set()


@pytest.mark.parametrize(("block", "words"), COMMANDS)
def test_commands_have_the_flags_that_are_used(block: Block, words: list[str]) -> None:
    """It is what is left to check of a command that is not run; the others it checks sooner."""
    if f"\n{words[0]})" in (ROOT / "run").read_text(encoding="utf-8"):
        return  # a command of ./run alone
    own = words[: words.index("--")] if "--" in words else words
    command = [own[0]]
    if len(own) > 1 and re.fullmatch(r"[a-z][a-z-]+", own[1]) and flags(*own[:2]):
        command.append(own[1])
    known = flags(*command)
    assert known, f"{block.where}: no command {shlex.join(command)}"
    used = {word.partition("=")[0] for word in own if re.match(r"--?[a-z]", word)}
    assert not used - known, f"{block.where}: {shlex.join(command)} has no {used - known}"


@NEEDS_NSQD
def test_each_flag_of_nsqd_is_in_its_table() -> None:
    assert NSQD is not None
    shown = subprocess.run([NSQD, "--help"], capture_output=True, text=True, check=False)
    theirs = set(re.findall(r"^  (-[a-z][\w-]*)", shown.stdout + shown.stderr, re.MULTILINE))
    assert len(theirs) > 50
    page = (DOCS / "migrating" / "nsqd-flags.md").read_text(encoding="utf-8")
    assert not theirs - set(re.findall(r"(?<!-)-[a-z][\w-]*", page))


@pytest.mark.parametrize("name", ["migrating/nsqd-flags.md", "migrating/rocketmq-settings.md"])
def test_flags_that_old_settings_became_exist(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    used = set(re.findall(r"(?<!-)--[a-z][\w-]*", page.partition("## Topics and groups")[0]))
    assert used
    assert not used - flags("broker") - {"--queues", "--retention"}


@every("paths")
def test_files_that_are_named_exist(page: Page) -> None:
    named = re.findall(r"`((?:bench|deploy|docs|examples|src|tests)/[^`*\s]*)`", page.text)
    assert not [name for name in named if not (ROOT / name).exists()]


def test_every_page_is_in_the_navigation() -> None:
    """The site shows no others; decisions are listed by their index."""
    named = set(re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text("utf-8")))
    found = {str(page.path.relative_to(DOCS)) for page in PAGES if page.path != README}
    listed = {name for name in found if not re.match(r"decisions/\d", name)}
    assert named == listed


def test_each_error_of_the_client_is_on_its_page() -> None:
    text = (DOCS / "guides" / "client-errors.md").read_text(encoding="utf-8")
    errors = {
        name
        for name, value in vars(public).items()
        if isinstance(value, type) and issubclass(value, public.ClientError)
    }
    assert len(errors) > 20
    assert not {name for name in errors if f"| `{name}` |" not in text} - {"ClientError"}
