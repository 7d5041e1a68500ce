"""Counts agree with their nouns."""

from __future__ import annotations

import pytest

from martlet.plural import counted


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (1000, "1000 messages")],
)
def test_the_noun_follows_its_count(count: int, expected: str) -> None:
    assert counted(count, "message") == expected


def test_a_plural_of_its_own_and_a_form() -> None:
    assert counted(1, "batch", "batches") == "1 batch"
    assert counted(2, "batch", "batches") == "2 batches"
    assert counted(1_000_000, "message", form=",") == "1,000,000 messages"
