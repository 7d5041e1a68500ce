"""The generated pages are those that the code makes now."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from docs.reference.generate import PAGES, errors, flags, pages


@pytest.mark.parametrize(("name", "made"), pages().items(), ids=pages())
def test_a_page_is_current(name: str, made: Callable[[], str]) -> None:
    assert (PAGES / name).read_text(encoding="utf-8") == made(), (
        f"{name} is out of date: run python -m docs.reference.generate"
    )


def test_no_page_is_left_over() -> None:
    assert {path.name for path in PAGES.iterdir()} == set(pages())


def test_every_error_code_is_listed_in_full() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", errors(), re.MULTILINE)
    codes = {code for code, _ in rows}
    for verb in ("FIN", "REQ", "TOUCH", "PUB", "MPUB", "DPUB", "SUB"):
        assert f"E_{verb}_FAILED" in codes
    assert {"NO_QUEUE", "SEQUENCE_REUSED", "TOO_OLD", "INCOMPLETE", "NOT_A_MEMBER"} <= codes
    assert {"INVALID_ARG_TOPIC", "MISSING_ARG_CHANNEL", "INVALID_ARG_OFFSET"} <= codes
    assert not [code for code in codes if not re.fullmatch(r"[A-Z][A-Z_]*[A-Z]", code)]
    texts = [text for _, cell in rows for text in re.findall("`([^`]+)`", cell)]
    assert not [text for text in texts if not re.search("[a-z]{2}", text)]


def test_flags_are_those_of_any_host() -> None:
    page = flags()
    assert page.count("| the host's name | the name under which") == 2
    for flag, count in (("config", 2), ("version", 2), ("help", 2), ("worker-id", 1)):
        assert page.count(f"| `--{flag}` |") == count
