"""Brokers' JSON as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from martlet.client.admin.decode import Described, named


@dataclass(frozen=True, kw_only=True)
class Leaf(Described):
    name: str
    is_paused: bool = named("paused", default=False)


@dataclass(frozen=True, kw_only=True)
class Tree(Described):
    count: int
    share: float = 0.0
    owner: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    other: Any = None


def test_fields_are_read_by_name_and_type() -> None:
    answer = {
        "count": 3,
        "share": 1,
        "owner": {"name": "one", "paused": True},
        "leaves": [{"name": "two"}],
        "counts": {"a": 1},
        "other": [1],
        "later": "unknown to this version",
    }
    tree = Tree.read(answer)
    assert tree == Tree(
        count=3,
        share=1.0,
        owner=Leaf(name="one", is_paused=True),
        leaves=(Leaf(name="two"),),
        counts={"a": 1},
        other=[1],
    )
    assert tree.fields is answer


def test_missing_fields_have_their_default() -> None:
    assert Tree.read({"count": 0, "leaves": None, "owner": None}) == Tree(count=0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({}, "count is missing"),
        ({"count": "3"}, "count: '3' is unexpected"),
        ({"count": True}, "count: 'True' is unexpected"),
        ({"count": 1, "leaves": [{}]}, "leaves: name is missing"),
        ({"count": 1, "leaves": {}, "owner": 1}, "owner: '1' is unexpected"),
        ({"count": 1, "counts": {"a": None}}, "counts: 'None' is unexpected"),
        ([], "'\\[\\]' is unexpected"),
        (None, "'None' is unexpected"),
    ],
)
def test_another_answer_is_refused(answer: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Tree.read(answer)
