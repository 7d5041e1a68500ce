"""Every declared operation: its fields have limits and help, and it is a call of the broker."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import msgspec
import pytest
from docs.reference.generate import declared_operations
from msgspec import inspect

from martlet.broker.groups.fetch import MAX_FETCH_BYTES
from martlet.broker.queue import queue_log
from martlet.broker.retry import DeadLetterReason
from martlet.broker.topic.offset_reset import STARTS
from martlet.broker.transactions.state import MAX_ID_LENGTH, MAX_NAME_LENGTH, TransactionState
from martlet.properties.model import MAX_KEY_BYTES, NORMAL_PRIORITY
from martlet.schema import topics
from martlet.schema.access import CALLS, OPERATORS, CallerClass, access_to_call
from martlet.schema.dead_letters import REASONS
from martlet.schema.groups import RESETS
from martlet.schema.kinds import MessageIds, Position, Text, TopicName
from martlet.schema.messages import FindByKey
from martlet.schema.operation import Operation, OperationRequest
from martlet.schema.read import fields_of, help_of, type_of
from martlet.schema.transactions import OPEN_STATES, CommitTransaction
from martlet.testing import Broker

OPERATIONS = declared_operations()
ALWAYS_REQUIRED = {
    "delay.list": ["topic"],
    "delay.cancel": ["topic"],
    "topic.create": ["topic"],
    "topic.describe": ["topic"],
    "topic.configure": ["topic", "policy"],
    "channel.configure": ["topic", "channel", "policy"],
    "channel.restore": ["topic", "channel", "queues"],
    "topic.offset": ["topic", "time_ms"],
    "topic.find": ["topic", "key"],
    "transaction.show": ["id"],
    "transaction.commit": ["id"],
    "transaction.rollback": ["id"],
    "transaction.series": ["series"],
    "group.describe": ["topic", "group"],
    "group.reset": ["topic", "group", "to"],
}


def is_limited(kind: inspect.Type) -> bool:
    """Whether a value of a type has a size that its declaration limits."""
    match kind:
        case inspect.Metadata():
            return is_limited(kind.type)
        case inspect.UnionType():
            return all(map(is_limited, kind.types))
        case inspect.BoolType() | inspect.NoneType() | inspect.LiteralType():
            return True
        case inspect.IntType():
            return None not in (kind.ge, kind.le)
        case inspect.StrType():
            return kind.max_length is not None or (kind.pattern or "").startswith("^[0-9a-f]{")
        case inspect.CollectionType(item_type=item) | inspect.DictType(value_type=item):
            # What is opaque, only the broker understands.
            is_opaque = isinstance(item, inspect.AnyType)
            return kind.max_length is not None and (is_opaque or is_limited(item))
        case _:
            return False


def faults(request: type[OperationRequest]) -> list[str]:
    """Return the fields of a request without limits or help."""
    texts = help_of(request)
    return [
        name
        for name, field in fields_of(request).items()
        if not is_limited(inspect.type_info(field.type)) or not texts.get(name)
    ]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_each_field_of_a_request_has_a_limit_and_help(operation: Operation[..., Any, Any]) -> None:
    assert faults(operation.request) == []
    assert faults(operation.parameters) == []
    assert operation.summary.endswith(".")


def test_the_check_finds_bare_fields_and_those_without_help() -> None:
    class Bare(OperationRequest):
        """Which ones.

        text: a text
        number: a number
        words: some words
        name: a name
        ids: some
        word: one of two
        counts: some
        """

        text: str = ""
        number: int | None = None
        words: tuple[Text, ...] = ()
        name: TopicName | None = None
        ids: MessageIds | None = None
        word: Literal["a", "b"] | None = None
        silent: Text | None = None
        counts: dict[str, Position] | None = None

    assert faults(Bare) == ["text", "number", "words", "silent", "counts"]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_field_of_a_request_may_be_left_out_by_older_clients(
    operation: Operation[..., Any, Any],
) -> None:
    """Unless every version has required it."""
    fields = msgspec.structs.fields(operation.request)
    required = [field.encode_name for field in fields if field.required]
    assert required == ALWAYS_REQUIRED.get(operation.name, [])


async def test_every_call_is_declared_in_one_table_with_its_access_and_no_other() -> None:
    async with Broker() as broker:
        calls = broker.server.calls
        assert sorted(calls.methods) == sorted([*CALLS, *OPERATIONS])
        for name, operation in OPERATIONS.items():
            assert calls.access(name) is operation.access


@pytest.mark.parametrize("name", ["", "topic", "topic.fetch2", "TOPIC.FETCH", "topic.fetch "])
def test_a_call_that_is_not_declared_is_for_operators(name: str) -> None:
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


def test_the_words_of_requests_are_the_brokers() -> None:
    assert tuple(DeadLetterReason) == REASONS
    assert set(STARTS) == set(RESETS)


def test_the_queues_of_a_topic_are_the_brokers() -> None:
    assert topics.MAX_QUEUES == queue_log.MAX_QUEUES
    assert fields_of(topics.LogQueue)["priority"].default == NORMAL_PRIORITY


def test_a_search_by_key_has_the_limits_of_keys_and_of_fetches() -> None:
    key, max_bytes = (type_of(fields_of(FindByKey)[name])[0] for name in ("key", "max_bytes"))
    assert isinstance(key, inspect.StrType)
    assert isinstance(max_bytes, inspect.IntType)
    assert (key.max_length, max_bytes.le) == (MAX_KEY_BYTES, MAX_FETCH_BYTES)


def test_the_states_and_limits_of_transactions_are_the_brokers() -> None:
    ended = {TransactionState.COMMITTED, TransactionState.ROLLED_BACK}
    assert [state for state in TransactionState if state not in ended] == list(OPEN_STATES)
    names = fields_of(CommitTransaction)
    limits = {name: type_of(names[name])[0] for name in ("id", "series")}
    assert limits == {
        "id": inspect.StrType(min_length=1, max_length=MAX_ID_LENGTH),
        "series": inspect.StrType(max_length=MAX_NAME_LENGTH),
    }
