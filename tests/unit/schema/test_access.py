"""The class of each call."""

from __future__ import annotations

from collections import Counter

from docs.reference.generate import declared_operations

from martlet.schema.access import CALLS, OPERATORS, CallerClass, access_to_call
from martlet.testing import Broker

OPERATIONS = declared_operations()


async def test_every_call_is_declared_and_no_other() -> None:
    async with Broker() as broker:
        assert set(broker.server.calls.methods) == {*CALLS, *OPERATIONS}


def test_a_call_that_is_not_declared_is_for_operators() -> None:
    for name in ("", "topic", "topic.fetch2", "TOPIC.FETCH", "topic.fetch "):
        assert access_to_call(name) is OPERATORS


def test_few_calls_are_for_others_than_operators() -> None:
    """A change here opens or closes a call: it is a decision."""
    classes = [*CALLS.values(), *(operation.access for operation in OPERATIONS.values())]
    assert Counter(access.callers for access in classes) == {
        CallerClass.OPERATORS: 17,
        CallerClass.READERS: 3,
        CallerClass.CONSUMERS: 13,
        CallerClass.OWN: 8,
        CallerClass.CLIENTS: 1,
    }


def test_a_consumers_call_says_where_its_channel_stands() -> None:
    for method, access in CALLS.items():
        assert bool(access.channel) is (access.callers is CallerClass.CONSUMERS), method
