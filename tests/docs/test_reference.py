"""The generated pages are those that the code makes now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from docs.reference.generate import PAGES, pages


@pytest.mark.parametrize(("name", "made"), pages().items(), ids=pages())
def test_a_page_is_current(name: str, made: Callable[[], str]) -> None:
    assert (PAGES / name).read_text(encoding="utf-8") == made(), (
        f"{name} is out of date: run python -m docs.reference.generate"
    )


def test_no_page_is_left_over() -> None:
    assert {path.name for path in PAGES.iterdir()} == set(pages())
