"""How requests are read and refused, and answers kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import pytest
from msgspec import Meta

from martlet.names import NAME_RULE
from martlet.schema.dead_letters import (
    DeadLetters,
    ListDeadLetters,
    Moved,
    PurgeDeadLetters,
    RedriveDeadLetters,
    ShowDeadLetters,
)
from martlet.schema.kinds import Limit, MessageId, TopicName
from martlet.schema.operation import OperationAnswer, OperationRequest
from martlet.schema.read import Refusal, checked, read_answer, read_request
from martlet.schema.transactions import CommitTransaction

TC = {"topic": "t", "channel": "c"}
ID = "0123456789abcdef"


def quoted(name: str, value: str | None) -> str:
    return repr(name) if value is None else f"{name} {value!r}"


def refused(kind: type[OperationRequest], fields: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(Refusal) as refusal:
        read_request(kind, fields)
    return refusal.value.code, refusal.value.spelled(quoted)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"limit": 0}, "'limit' must be a whole number from 1 to 9223372036854775807, not 0"),
        ({"limit": True}, "'limit' must be a whole number from 1 to 9223372036854775807, not True"),
        ({"limit": 1.0}, "'limit' must be a whole number from 1 to 9223372036854775807, not 1.0"),
        ({"limit": "{x}"}, r"from 1 to 9223372036854775807, not '{x}'"),
        ({"offset": 1 << 63}, "from 0 to 9223372036854775807, not 9223372036854775808"),
        ({"max_body_bytes": (8 << 20) + 1}, "from 0 to 8388608, not 8388609"),
        ({"queue": [[["x"]]]}, "'queue' must be a whole number from 0 to 9223372036854775807, not"),
        ({"ids": [ID, "{x}"]}, "ids '{x}': an id has 16 hexadecimal digits"),
        ({"ids": [ID + "\n"]}, rf"ids '{ID}\n': an id has 16 hexadecimal digits"),
        ({"ids": [None]}, "'ids': an id has 16 hexadecimal digits, not None"),
        ({"ids": ID}, f"'ids' must be a list of at most 10000, not '{ID}'"),
        ({"ids": [ID] * 10_001}, "'ids' must be a list of at most 10000, not a list of 10001"),
        ({"ids": {"a": 1}}, "'ids' must be a list of at most 10000, not an object"),
        ({"reason": "reject"}, "reason 'reject': it is one of max_attempts, timeout, disconnected"),
        ({"reason": 5}, "given_up, not 5"),
        ({"error": "x" * 1025}, "'error' must be a text of at most 1024 characters, not 'xxxx"),
        ({"error": 5}, "'error' must be a text of at most 1024 characters, not 5"),
        ({"error": "\ud800"}, r"'error' is no text that UTF-8 can encode: '\ud800'"),
        ({"ids": ["\ud800"]}, r"'ids' is no text that UTF-8 can encode: '\ud800'"),
        ({"since_ms": "\ud800"}, r"'since_ms' is no text that UTF-8 can encode: '\ud800'"),
        ({"{x}": 1}, "unknown argument '{x}'; there are channel, dead_letter_topic, error, ids, "),
    ],
)
def test_a_wrong_value_is_refused_with_the_rule_of_its_field(
    fields: dict[str, Any], text: str
) -> None:
    code, said = refused(ShowDeadLetters, {**TC, **fields})
    assert (code, text in said) == ("BAD_ARGUMENT", True), said


@pytest.mark.parametrize(
    ("branches", "text"),
    [
        ({"a": "x"}, "'branches' must be an object of at most 10000 fields, each a whole number"),
        ({"a": True}, "each a whole number from 0 to 9223372036854775807, not an object"),
        ({"a": -1}, "each a whole number from 0 to 9223372036854775807, not an object"),
        ({str(n): 1 for n in range(10_001)}, "an object of at most 10000 fields"),
        ([1], "each a whole number from 0 to 9223372036854775807, not a list"),
        ({"\ud800": 1}, r"'branches' is no text that UTF-8 can encode: '\ud800'"),
    ],
)
def test_a_wrong_object_is_refused_with_the_rule_of_its_values(branches: object, text: str) -> None:
    code, said = refused(CommitTransaction, {"id": "t", "branches": branches})
    assert (code, text in said) == ("BAD_ARGUMENT", True), said


@pytest.mark.parametrize("name", ["a b", "t\n", "t" * 65, "é", "{x}", "#ephemeral", "t#eph"])
def test_a_name_that_is_none_is_refused_with_the_rule_of_names(name: str) -> None:
    code, said = refused(ListDeadLetters, {"dead_letter_topic": name})
    assert code == "BAD_NAME"
    assert said.startswith(f"dead_letter_topic {name!r} is not valid: 1 to 64 of the characters")


@pytest.mark.parametrize(
    "field",
    ["topic", "channel", "dead_letter_topic", "ids", "reason", "error", "since_ms", "until_ms"],
)
@pytest.mark.parametrize("empty", [None, "", []])
@pytest.mark.parametrize("kind", [PurgeDeadLetters, RedriveDeadLetters])
def test_an_empty_field_that_selects_never_means_all(
    kind: type[OperationRequest], field: str, empty: object
) -> None:
    fields = {**TC, "dead_letter_topic": "d", "all": True, field: empty}
    _, said = refused(kind, fields)
    assert said == f"{field!r} is empty: leave it out, or say what it selects"


class HandedBack(OperationRequest):
    """What only the broker understands, and comes back to it."""

    topic: TopicName
    items: Annotated[Sequence[Any], Meta(max_length=2)]
    policy: Annotated[dict[str, Any], Meta(max_length=1)]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"topic": ""}, "'topic' is empty"),
        ({"topic": "a b"}, f"topic 'a b' is not valid: {NAME_RULE}"),
        ({"topic": None}, "the argument 'topic' is missing"),
        ({"items": [1, 2, 3]}, "'items' must be a list of at most 2, not a list of 3"),
        ({"items": {}}, "'items' must be a list of at most 2, not an object of 0"),
        ({"policy": []}, "'policy' must be an object of at most 1 fields, not a list of 0"),
        ({"policy": {"a": 1, "b": 2}}, "at most 1 fields, not an object of 2"),
    ],
)
def test_required_fields_and_opaque_ones_are_refused_by_their_own_rule(
    fields: dict[str, Any], text: str
) -> None:
    right: dict[str, Any] = {"topic": "t", "items": ["x", {}], "policy": {"a": [{}]}}
    assert read_request(HandedBack, right) == HandedBack(**right)
    assert refused(HandedBack, {**right, **fields})[1].endswith(text)


def test_null_is_absent_where_nothing_is_selected() -> None:
    request = read_request(
        RedriveDeadLetters, {**TC, "all": True, "to_topic": None, "queue": None, "dry_run": None}
    )
    assert (request.to_topic, request.queue, request.dry_run) == (None, 0, False)


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (ListDeadLetters, {"topic": "t"}, "{topic} and {channel} go together"),
        (ListDeadLetters, {"channel": "c"}, "{topic} and {channel} go together"),
        (ShowDeadLetters, {}, "add {topic} and {channel}, or {dead_letter_topic}"),
        (ShowDeadLetters, {"channel": "c"}, "add {topic} and {channel}, or {dead_letter_topic}"),
        (PurgeDeadLetters, TC, "the selection is missing: add {all}, or any of {ids}, {reason}"),
        (PurgeDeadLetters, {**TC, "since_ms": 0, "all": None}, "the selection is missing"),
        (RedriveDeadLetters, {**TC, "to_topic": "x"}, "the selection is missing"),
        (CommitTransaction, {"id": "t", "series": "s"}, "{series} and {series_number} go together"),
        (CommitTransaction, {"id": "t", "series_number": 0}, "{series} and {series_number} go"),
    ],
)
def test_a_rule_between_fields_names_them_as_each_face_does(
    kind: type[OperationRequest], fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(Refusal) as refusal:
        read_request(kind, fields)
    assert refusal.value.code == "MISSING_ARGUMENT"
    said = refusal.value.spelled(quoted), refusal.value.spelled(lambda name, _: f"--{name}")
    assert re.sub(r"{(\w+)}", r"'\1'", text) in said[0]
    assert re.sub(r"{(\w+)}", r"--\1", text) in said[1]
    assert re.sub(r"{(\w+)}", r"\1", text) in str(refusal.value)


class Named(OperationRequest):
    """It has a field without a default.

    topic: its topic
    """

    topic: TopicName
    id: MessageId | None = None


def test_a_field_without_a_default_must_be_there() -> None:
    for fields in ({}, {"topic": None}):
        assert refused(Named, fields) == ("MISSING_ARGUMENT", "the argument 'topic' is missing")
    assert refused(Named, {"topic": ""}) == ("BAD_NAME", "'topic' is empty")


class Renamed(OperationRequest):
    """It has a field that had another name.

    limit: a number
    """

    former: ClassVar[Mapping[str, str]] = {"most": "limit"}
    limit: Limit | None = None


def test_a_field_has_its_former_name_too() -> None:
    for name in ("most", "limit"):
        assert read_request(Renamed, {name: 3}) == Renamed(3)
        assert refused(Renamed, {name: 0})[1].startswith("'limit' must be a whole number from 1")
    assert refused(Renamed, {"most": 3, "limit": 3}) == (
        "BAD_ARGUMENT",
        "'most' is 'limit' now: give one of them",
    )
    # Older brokers know no other.
    assert checked(Renamed, Renamed(3)) == {"most": 3}
    assert checked(Renamed, Renamed()) == {}


@pytest.mark.parametrize("id", [ID, ID.encode()])
def test_a_client_sends_an_id_as_text(id: str | bytes) -> None:
    assert checked(Named, Named("t", id)) == {"topic": "t", "id": ID}


@pytest.mark.parametrize("ids", [[ID], (ID,), ID, ID.encode(), [ID.encode()], iter([ID])])
def test_a_client_sends_ids_as_texts_and_no_field_that_has_its_default(ids: Any) -> None:
    request = PurgeDeadLetters("t", "c", ids=ids, queue=0, all=False)
    assert checked(PurgeDeadLetters, request) == {**TC, "ids": [ID]}


@pytest.mark.parametrize("ids", [[], (), iter(()), b"", ["xyz"], [b"\xff" * 16]])
def test_a_client_refuses_what_the_broker_would(ids: Any) -> None:
    with pytest.raises(Refusal, match="ids"):
        checked(PurgeDeadLetters, PurgeDeadLetters("t", "c", ids=ids, all=True))


class Part(OperationAnswer):
    """A part of an answer."""

    count: int
    name: str = "none"


class Whole(OperationAnswer):
    """An answer with others in it."""

    parts: tuple[Part, ...]
    first: Part | None = None


def test_an_answer_keeps_what_a_newer_broker_adds() -> None:
    json = {"parts": [{"count": 1, "new": 2}, {"count": 3}], "first": {"count": 4}, "newer": 5}
    answer = read_answer(Whole, json)
    assert answer == Whole((Part(1), Part(3)), Part(4))
    assert (answer.fields, answer.parts[0].fields) == (json, {"count": 1, "new": 2})
    assert answer.first is not None
    assert answer.first.fields == {"count": 4}
    assert Whole(()).fields == {}


@pytest.mark.parametrize("json", [{}, [], None, {"parts": [{}]}, {"parts": 1}, {"parts": "x"}])
def test_another_answer_is_no_answer(json: object) -> None:
    with pytest.raises(ValueError, match=r"Expected|missing"):
        read_answer(Whole, json)


def test_the_place_where_a_list_continues_goes_back_whole() -> None:
    place = {"queue": 1, "offset": 7, "of_a_newer_broker": 3}
    shown = read_answer(DeadLetters, {"messages": [], "next": place})
    assert shown.following == place
    moved = read_answer(Moved, {"count": 0, "kept": {}, "next": place, "until_ms": 9})
    assert moved.following == {**place, "until_ms": 9}
    assert moved.found is None


def test_parts_of_an_answer_add_up() -> None:
    parts = [
        Moved(count=1, kept={"a": 1}, next={"queue": 0}, found_ids=("x",), until_ms=5),
        Moved(count=2, kept={"a": 2, "b": 3}, next=None, found_ids=("y", "x"), until_ms=5),
    ]
    total = parts[0].added(parts[1])
    assert (total.count, total.kept) == (3, {"a": 3, "b": 3})
    assert total.found == frozenset(("x", "y"))
    assert total.following is None
    # An older broker does not say which ids it has met.
    assert total.added(Moved(count=0, kept={}, next=None)).found is None
