"""Only messages that a client can have started to handle are charged with a failure."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core

from martlet.broker.errors import NotInFlight
from martlet.broker.journal.cursors import CursorState
from martlet.broker.queue.consumer import StartedMessages, next_rank
from martlet.broker.queue.in_flight import COMFORTABLE_SPAN
from martlet.broker.retry import Cause

BODIES = tuple(b"%d" % number for number in range(6))


@pytest.mark.parametrize(
    ("announces", "events", "lost", "charged"),
    [
        (True, ["STARTED 1"], "01234", "01"),
        (True, ["STARTED 3", "STARTED 1"], "01234", "0123"),
        (True, ["FIN 3"], "01234", ""),
        (True, ["TOUCH 3"], "01234", ""),
        (True, [], "01234", ""),
        (False, ["STARTED 1"], "01234", "012"),
        (False, ["FIN 1"], "01234", "012"),
        (False, ["FIN 3", "FIN 1"], "4", "4"),
        (False, [], "01234", "0"),
        (False, ["lost 0"], "1234", ""),
        (False, ["lost 0", "delivered 5"], "12345", "5"),
        (False, ["lost 0", "lost 1", "FIN 1"], "1234", "1"),
        (False, ["TOUCH 2"], "34", ""),
        (False, ["TOUCH 2"], "01234", "012"),
        (False, ["TOUCH 2", "the time of TOUCH"], "34", "3"),
        (False, ["TOUCH 2", "the time of TOUCH", "lost 2"], "34", ""),
        (False, ["TOUCH 2", "TOUCH 1", "the time of TOUCH", "lost 1"], "34", "3"),
        (False, ["FIN 2", "TOUCH 0"], "34", "3"),
        (False, ["TOUCH 2", "FIN 2"], "34", "3"),
        (False, ["TOUCH 2", "FIN 3"], "4", "4"),
        (False, ["TOUCH 2", "FIN 1"], "34", ""),
        (False, ["timed out", "timed out", "FIN of a copy"], "01234", ""),
        (False, ["timed out", "FIN of a copy"], "01234", "0"),
        (False, ["timed out", "FIN of one of two copies"], "01234", ""),
        (False, ["timed out"], "01234", "0"),
        (False, ["FIN of a copy"], "01234", "0"),
        (False, ["TOUCH 2", "lost 2", "delivered 5"], "345", "5"),
        (False, ["timed out", "FIN of one of two copies", "delivered 5"], "01235", "5"),
        (False, ["timed out", "FIN of one of two copies", "FIN 1"], "01234", "01"),
    ],
)
def test_the_table_of_what_is_charged(
    announces: bool, events: list[str], lost: str, charged: str
) -> None:
    progress = StartedMessages(says_started=announces)
    now_ns = 0
    deliveries = dict.fromkeys("01234", (next_rank(), now_ns))

    def charges(number: str) -> bool:
        rank, delivered_at_ns = deliveries[number]
        return progress.charges(rank, int(number), delivered_at_ns, now_ns)

    for event in events:
        now_ns += 1
        name, _, number = event.rpartition(" ")
        match name:
            case "STARTED":
                progress.started(deliveries[number][0], int(number))
            case "FIN":
                progress.answered(deliveries[number][0], int(number))
            case "TOUCH":
                progress.touched(deliveries[number][0], int(number), until_ns=100)
            case "delivered":
                deliveries[number] = next_rank(), now_ns
            case "lost":
                charges(number)
            case "timed":
                progress.timed_out()
            case "FIN of a":
                progress.answered_late(now_ns)
            case "FIN of one of two":
                progress.answered_late(now_ns, used_up=False)
            case "the time of":
                now_ns = 100
            case _:
                raise AssertionError(event)
    assert "".join(number for number in lost if charges(number)) == charged


def failures(client: Client) -> list[int]:
    """How often each of the six messages has failed."""
    pending = client.channel.cursor.pending.by_offset
    return [pending[offset].failures if offset in pending else 0 for offset in range(len(BODIES))]


def begin(
    core: Core, *, ready: int = 6, says_started: bool = False, max_attempts: int = 3
) -> Client:
    core.configure(max_attempts=max_attempts, retry_delays_ms=[100])
    client = core.client("t", timeout_ns=SECOND_NS, says_started=says_started).ready(ready)
    core.publish("t", *BODIES)
    return client


def finish_run(client: Client) -> None:
    offsets = client.channel.cursor.window.held_offsets(0, 6)
    client.channel.finish_run(client.consumer, offsets[[1, 3]])


@pytest.mark.parametrize(
    ("ready", "act", "charged"),
    [
        (6, lambda client: None, [1, 0, 0, 0, 0, 0]),
        (6, lambda client: client.finish(2), [1, 1, 0, 1, 0, 0]),
        (6, finish_run, [1, 0, 1, 0, 1, 0]),
        (6, lambda client: client.requeue(1, 10 * SECOND_NS), [1, 1, 1, 0, 0, 0]),
        (6, lambda client: (client.finish(0), client.touch(1)), [0, 1, 0, 0, 0, 0]),
        (1, lambda client: client.finish(0), [0, 1, 0, 0, 0, 0]),
    ],
    ids=["nothing", "FIN", "a run of FIN", "REQ", "TOUCH", "FIN of the only one"],
)
def test_a_lost_client_is_charged_by_what_it_did(
    ready: int, act: Callable[[Client], None], charged: list[int]
) -> None:
    client = begin(Core(), ready=ready)
    act(client)
    client.leave()
    assert failures(client) == charged


def test_messages_not_started_come_at_once_however_often(core: Core) -> None:
    core.configure(max_attempts=2, retry_delays_ms=[60_000])
    core.publish("t", *BODIES)
    for attempt in range(1, 4):
        client = core.client("t").ready(6)
        assert [m.attempts for m in client.got if m.body in BODIES[4:]] == [attempt] * 2
        client.leave()


def test_a_consumer_that_takes_no_more_leaves_free_of_charge(core: Core) -> None:
    client = begin(core)
    client.finish(1)
    client.consumer.progress.takes_no_more = True
    client.leave()
    assert failures(client) == [0] * 6
    assert client.channel.depth == 5


def test_a_message_given_back_is_not_charged_and_no_progress(core: Core) -> None:
    client = begin(core).ready(0)
    client.channel.requeue(client.consumer, client.offset(3), 0, cause=Cause.GIVEN_BACK)
    client.leave()
    assert failures(client) == [1, 0, 0, 0, 0, 0]


def test_of_messages_that_time_out_together_the_first_is_charged(core: Core) -> None:
    client = begin(core)
    client.finish(0)
    core.wait(SECOND_NS)
    assert failures(client) == [0, 1, 0, 0, 0, 0]
    assert client.bodies[6:] == [b"2", b"3", b"4", b"5"]


def test_messages_delivered_one_by_one_are_not_charged_one_by_one(core: Core) -> None:
    core.configure(max_attempts=3)
    client = core.client("t", timeout_ns=SECOND_NS).ready(6)
    for body in BODIES:
        core.publish("t", body)
        core.wait(SECOND_NS // 100)
    for _ in range(100):
        core.wait(SECOND_NS // 100)
    assert failures(client) == [1, 0, 0, 0, 0, 0]


def test_a_touched_one_that_is_at_work_is_the_only_one(core: Core) -> None:
    client = begin(core)
    core.wait(SECOND_NS // 2)
    client.touch(0)
    core.wait(SECOND_NS // 2)
    assert failures(client) == [0] * 6
    assert len(client.got) == 11
    core.wait(SECOND_NS // 2)
    assert failures(client) == [1, 0, 0, 0, 0, 0]


def test_an_answer_may_be_to_an_earlier_delivery_and_is_no_progress_then(core: Core) -> None:
    client = begin(core)
    core.wait(SECOND_NS)  # The client is at number 0, and has all others twice from now on.
    core.wait(SECOND_NS // 10)
    assert client.bodies[6:] == [b"1", b"2", b"3", b"4", b"5", b"0"]
    client.finish(0)
    core.wait(SECOND_NS)
    assert failures(client) == [0, 0, 0, 0, 0, 0]
    core.wait(SECOND_NS)
    assert failures(client) == [0, 1, 0, 0, 0, 0]


def test_a_client_that_answers_nothing_loses_one_after_the_other(core: Core) -> None:
    client = begin(core, max_attempts=2)
    for _ in range(30):
        core.wait(SECOND_NS)
    systems = [properties.system for _, properties in core.dead_letters()]
    assert len(systems) == 6
    assert {system["dead_failures"] for system in systems} == {"2"}
    assert client.channel.depth == client.channel.in_flight_count == 0


def test_a_client_that_reports_starts_is_charged_with_those_only(core: Core) -> None:
    client = begin(core, says_started=True)
    client.channel.started(client.consumer, client.offset(1))
    client.finish(0, 4)
    client.leave()
    assert failures(client) == [0, 1, 0, 0, 0, 0]


def test_the_only_started_message_is_not_dead_for_the_first_crash(core: Core) -> None:
    """Its answer, and the report of the message that crashed the client, may be lost with it."""
    client = begin(core, says_started=True, max_attempts=1)
    client.channel.started(client.consumer, client.offset(0))
    client.leave()
    assert failures(client) == [1, 0, 0, 0, 0, 0]
    assert len(core.broker.topics) == 1, "there are no dead letters"
    again = core.client("t", timeout_ns=SECOND_NS, says_started=True).ready(6)
    core.wait(SECOND_NS)
    assert again.bodies[0] == b"0"
    again.channel.started(again.consumer, again.offset(0))
    again.leave()
    core.broker.run()
    assert [body for body, _ in core.dead_letters()] == [b"0"]


def test_a_client_that_starts_nothing_is_charged_with_nothing(core: Core) -> None:
    client = begin(core, says_started=True)
    client.touch(3)
    for _ in range(3):
        core.wait(2 * SECOND_NS)
    client.leave()
    assert failures(client) == [0] * 6


def test_a_message_redelivered_alone_can_be_started_too(core: Core) -> None:
    client = begin(core, says_started=True)
    client.requeue(0)
    core.wait(SECOND_NS // 5)
    assert client.bodies[6] == b"0"
    client.channel.started(client.consumer, client.offset(5))
    client.leave()
    assert failures(client) == [1, 1, 1, 1, 1, 1]
    with pytest.raises(NotInFlight):
        client.channel.started(client.consumer, client.offset(5))


def test_a_message_dies_of_as_many_crashes_as_it_has_attempts_and_no_other_does(core: Core) -> None:
    core.configure(max_attempts=3, retry_delays_ms=[100])
    core.publish("t", *BODIES)
    channel = core.channel("t")
    for _ in range(20):
        client = core.client("t").ready(6)
        core.wait(SECOND_NS)
        alive = [number for number, body in enumerate(client.bodies) if body != b"3"]
        before = [n for n in alive if b"3" not in client.bodies[:n]]
        for number in before:
            client.finish(number)
        client.leave()
        core.broker.run()
    assert [body for body, _ in core.dead_letters()] == [b"3"]
    assert channel.depth == channel.in_flight_count == 0


def test_messages_that_leave_the_window_keep_their_order() -> None:
    core = Core(segment_bytes=1 << 24)
    core.configure(max_attempts=3)
    slow = core.client("t").ready(2)
    core.publish("t", b"0", b"1")
    slow.ready(0)
    quick = core.client("t").ready(1 << 20)
    core.publish("t", *[b"x"] * (COMFORTABLE_SPAN + 2))
    held = quick.channel.cursor.window.held_offsets(2, 1 << 20)
    quick.channel.finish_run(quick.consumer, held)
    core.publish("t", b"y")
    core.publish("t", b"y")
    assert len(quick.channel.cursor.pending) >= 2
    slow.leave()
    assert failures(slow)[:2] == [1, 0]


def test_a_restart_of_the_broker_charges_nothing_and_keeps_failures(core: Core) -> None:
    client = begin(core)
    client.requeue(0)
    client.requeue(0 + 1)
    core.wait(SECOND_NS // 5)
    client.requeue(6)
    core.kill(journaled=True)
    fresh = core.client("t")
    assert failures(fresh) == [2, 1, 0, 0, 0, 0]
    core.stop()
    assert failures(core.client("t")) == [2, 1, 0, 0, 0, 0]


def test_deliveries_count_where_an_earlier_version_stored_no_failures() -> None:
    head = struct.pack("<IIQQIIII", 1, 1, 10, 10, 0, 3, 0, 0)
    rows = [(1, 5, 3), (2, 0, 3), (3, 0, 0)]
    state = CursorState(0, 0)
    assert state.apply(head + b"".join(struct.pack("<QqQ", *row) for row in rows))
    assert state.pending == {1: (3, 5, 3), 2: (3, 0, 2), 3: (0, 0, 0)}


def test_a_client_that_answers_copies_has_not_started_newer_messages(core: Core) -> None:
    client = begin(core, max_attempts=2)
    for number in range(6):  # Each takes nearly the timeout, and what came first is handled first.
        core.wait(SECOND_NS - 1)
        client.finish(number)
        core.wait(1)
    for number in range(6, len(client.got)):
        core.wait(SECOND_NS - 1)
        with suppress(NotInFlight):
            client.finish(number)
    core.wait(SECOND_NS)
    assert list(core.broker.topics) == ["t"]
    assert client.channel.depth == client.channel.in_flight_count == 0
