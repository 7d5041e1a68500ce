"""Martlet's lookup daemon beside nsqlookupd: both are asked the same, and answer the same."""

from __future__ import annotations

from typing import Any

import pytest
from tests.interop.lookup import lookup_table
from tests.interop.lookup_process import NO_NSQLOOKUPD, NSQLOOKUPD, LookupProcess, NsqlookupdProcess
from tests.interop.server.http import http_table

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(NSQLOOKUPD is None, reason=NO_NSQLOOKUPD),
]


def answers(kind: type[LookupProcess]) -> list[tuple[str, Any]]:
    cases = list(lookup_table.cases())
    with kind() as lookup:
        port = int(lookup.http_address.rpartition(":")[2])
        made: list[tuple[str, Any]] = [
            (f"{case.method} {case.target}", lookup_table.same(answer))
            for case, answer in zip(cases, http_table.answers(port, cases), strict=True)
        ]
        return made + list(lookup_table.walk(lookup, seed=4, steps=30))


def test_a_large_table_and_a_random_walk_are_answered_as_by_nsqlookupd() -> None:
    ours, theirs = answers(LookupProcess), answers(NsqlookupdProcess)
    differing = [
        f"{request}\n  nsqlookupd: {nsq}\n  here: {here}"
        for (request, here), (_, nsq) in zip(ours, theirs, strict=True)
        if here != nsq
    ]
    assert differing == [], f"{len(differing)} of {len(ours)}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 16))
def test_long_random_walks(seed: int) -> None:
    with LookupProcess() as lookup, NsqlookupdProcess() as theirs:
        ours = lookup_table.walk(lookup, seed, 300)
        for number, (here, nsq) in enumerate(
            zip(ours, lookup_table.walk(theirs, seed, 300), strict=True)
        ):
            assert here == nsq, number
