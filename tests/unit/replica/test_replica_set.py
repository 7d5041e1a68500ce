"""The document of a replica set."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from martlet.replica.replica_set import BadReplicaSet, ReplicaSet

ADDRESSES = {"a": "10.0.0.1:4153", "b": "10.0.0.2:4153", "c": "10.0.0.3:4153"}
FIRST = ReplicaSet.first("a", ADDRESSES, broker="id", epoch=4)


def test_a_new_set_has_one_replica_in_sync() -> None:
    assert FIRST.quorum == (frozenset("a"), 1)
    assert (FIRST.epoch, FIRST.primary) == (4, None)
    assert (FIRST.wanted_copies, FIRST.min_in_sync) == (2, 2)
    grown = FIRST.elected("a").with_in_sync(frozenset("ab")).with_in_sync(frozenset("abc"))
    assert (grown.epoch, grown.primary, grown.copies) == (5, "a", 2)
    assert grown.quorum.answers_needed == 2
    assert grown.with_in_sync(frozenset("a")).copies == 1


@pytest.mark.parametrize(
    ("count", "copies", "needed"), [(1, 1, 1), (2, 2, 1), (3, 2, 2), (5, 3, 3)]
)
def test_a_majority_is_wanted(count: int, copies: int, needed: int) -> None:
    names = "abcde"[:count]
    all_in = ReplicaSet.first("a", dict.fromkeys(names, ""), broker="id")
    all_in = all_in.with_in_sync(frozenset(names))
    assert all_in.copies == copies
    assert all_in.quorum.answers_needed == needed


def test_the_document_is_read_as_it_was_written() -> None:
    replica_set = replace(FIRST.elected("a").with_in_sync(frozenset("ca")), touch=3)
    assert ReplicaSet.unpack(replica_set.pack()) == replica_set


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2, where this version reads 1"),
        ({"epoch": -1}, "epoch -1"),
        ({"epoch": 1 << 32}, "epoch 4294967296"),
        ({"epoch": "7"}, "no number"),
        ({"epoch": True}, "no number"),
        ({"in_sync": []}, "0 replicas in sync"),
        ({"in_sync": ["a", "x"]}, "not among the replicas: x"),
        ({"copies": 2}, "2 copies of 1 in sync"),
        ({"wanted_copies": 4}, "4 copies wanted"),
        ({"min_in_sync": 0}, "min_in_sync is 0"),
        ({"replicas": 7}, "no replica set"),
        ({"replicas": {"a": 7}}, "an address of a replica is no text"),
        ({"primary": "x"}, "not among the replicas: x"),
    ],
)
def test_a_wrong_document_is_refused(change: dict[str, Any], message: str) -> None:
    document = json.loads(FIRST.pack()) | change
    with pytest.raises(BadReplicaSet, match=message):
        ReplicaSet.unpack(json.dumps(document).encode())


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_what_is_no_document_is_refused(document: bytes) -> None:
    with pytest.raises(BadReplicaSet):
        ReplicaSet.unpack(document)
