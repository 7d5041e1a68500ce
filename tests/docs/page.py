"""Pages of Markdown, as the tests of the documents read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
GENERATED = DOCS / "reference" / "generated"
"""Pages that a command writes have tests of their own."""

_FENCE = re.compile(r"^(\s*)(```+)(\w*)\s*$")
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
_LINK = re.compile(r"!?\[(?:[^\[\]`]|`[^`]*`|\[[^\]]*\])*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_MARKS = ("begin of ", "end of ")
"""How the marks begin between which a program writes a part of a page."""
_HIDDEN = re.compile(r"hidden (\w+)\n(.*)", re.DOTALL)
_DIRECTIVES = ("not run", "file")


@dataclass
class Block:
    """A fenced block of code, or a hidden one that prepares or checks what readers see."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str = ""
    """Why it cannot run in a test."""
    file: str = ""
    """The name under which it is saved instead of being run."""
    output: str | None = None
    """The block behind a Python block: what it prints."""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass
class Page:
    """A file, parsed."""

    path: Path
    text: str = field(init=False)
    blocks: list[Block] = field(init=False, default_factory=list)
    prose: str = field(init=False)
    """The text without blocks of code and comments, line by line where it was."""

    def __post_init__(self) -> None:
        self.text = self.path.read_text(encoding="utf-8")
        self.prose = "\n".join(self._parse())
        for before, output in zip(self.blocks, self.blocks[1:], strict=False):
            if before.language == "python" and output.language in ("", "text"):
                before.output = output.text

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    def _parse(self) -> Iterator[str]:
        """Collect the blocks; the rest is the prose."""
        directives: dict[str, str] = {}
        lines = self.text.split("\n")
        number = 0
        while number < len(lines):
            line = lines[number]
            number += 1
            if "<!--" in line:
                first = number
                while "-->" not in line:
                    line += "\n" + lines[number]
                    number += 1
                    yield ""
                self._take_comment(_COMMENT.findall(line), first, directives)
                yield _COMMENT.sub("", line)
            elif (opened := _FENCE.match(line)) is not None:
                first, body = number, []
                while lines[number].strip() != opened[2]:
                    body.append(lines[number].removeprefix(opened[1]))
                    number += 1
                    yield ""
                number += 1
                yield ""
                yield ""
                text = "".join(each + "\n" for each in body)
                self.blocks.append(self._block(first, opened[3], text, directives))
                directives = {}
            else:
                yield line

    def _take_comment(self, comments: list[str], line: int, directives: dict[str, str]) -> None:
        for comment in comments:
            if (hidden := _HIDDEN.fullmatch(comment)) is not None:
                self.blocks.append(Block(self.path, line, hidden[1], hidden[2] + "\n"))
            elif not comment.startswith(_MARKS):
                name, _, value = comment.partition(":")
                assert name in _DIRECTIVES, f"{self}:{line}: unknown directive {name!r}"
                directives[name] = value.strip()

    def _block(self, line: int, language: str, text: str, directives: dict[str, str]) -> Block:
        return Block(
            self.path,
            line,
            language,
            text,
            not_run=directives.get("not run", ""),
            file=directives.get("file", ""),
        )

    @property
    def needs_spark(self) -> bool:
        """Whether a block that is run starts a Java virtual machine."""
        return any(
            "martlet.spark" in block.text
            or "martlet.pipeline" in block.text
            or "martlet pipeline" in block.text
            for block in self.blocks
            if not block.not_run
        )

    @property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors of its headings, as GitHub and MyST make them."""
        found: set[str] = set()
        for _, title in _HEADING.findall(self.prose):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
            slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
            new, count = slug, 0
            while new in found:
                count += 1
                new = f"{slug}-{count}"
            found.add(new)
        return found

    def sentences(self) -> Iterator[str]:
        """Each sentence of the prose; a heading, an item or a cell of a table ends one."""
        text = re.sub(r"`[^`]*`", "CODE", self.prose)
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
        paragraph: list[str] = []
        for line in [*text.split("\n"), ""]:
            stripped = line.strip()
            if stripped.startswith("|"):
                yield from (part for cell in stripped.split("|") for part in _split(cell))
                continue
            if not stripped or re.match(r"(#+|[-*]|\d+\.|>) ", stripped):
                yield from _split(" ".join(paragraph))
                paragraph = []
            paragraph.append(stripped)


def _split(text: str) -> list[str]:
    """Sentences end with a mark before a space, and a colon or a semicolon does not end one."""
    return [part for part in re.split(r"(?<=[.!?])[\")*_]*\s+", text.strip()) if part]


def pages() -> list[Page]:
    """The README and all pages of the site that are written by hand."""
    files = sorted(path for path in DOCS.rglob("*.md") if GENERATED not in path.parents)
    return [Page(path) for path in [README, *files]]
