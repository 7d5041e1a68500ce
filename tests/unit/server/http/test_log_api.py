"""What a standby answers to readers of the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from tests.unit.server.http.standby_reader import HttpReader, Pair, messages_of, serving

from martlet.log.copy import open_copy

Queue = tuple[str, int]
Range = tuple[int, int, dict[int, bytes]]
"""The start and the end of a queue, and its messages by offset."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def publish_much(pair: Pair) -> None:
    """Topics of one and of several queues, over several segments."""
    core = pair.core
    core.broker.set_queues("several", 3)
    for number in range(40):
        core.publish("one", b"%d " % number * 20, b"and another")
        core.publish("several", b"%d" % number)
        core.clock.advance(1000)
    core.client("one").ready(20).finish()


async def same_answers(primary: HttpReader, standby: HttpReader) -> None:
    """Ask both for everything."""
    listing = await primary.json("/log/topics")
    targets = []
    for topic in listing["topics"]:
        for queue in topic["queues"]:
            name, number, end = topic["topic"], queue["queue"], queue["end_offset"]
            targets.append([name, number, queue.get("topic_id", topic["topic_id"]), 0, end])
            for path, arguments in [
                ("/log/offset", {"timestamp_ns": 0}),
                ("/log/offset", {"timestamp_ns": 20_000}),
                ("/log/offset", {"timestamp_ns": 1 << 62}),
                ("/log/index", {"start": 3, "end": end + 5}),
                ("/log/reach", {"start": 1, "end": end, "max_bytes": 700}),
                ("/log/batches", {"offset": 0}),
                ("/log/batches", {"offset": end // 2, "max_bytes": 1}),
                ("/log/batches", {"offset": 1, "bodies": "false"}),
                ("/log/batches", {"offset": end}),
            ]:
                where = {"topic": name, "queue": number}
                assert await standby.get(path, **where, **arguments) == await primary.get(
                    path, **where, **arguments
                )
    body = json.dumps(targets).encode()
    assert await standby.post("/log/index", body) == await primary.post("/log/index", body)
    theirs = await standby.json("/log/topics")
    assert theirs["topics"] == listing["topics"]
    assert (await standby.json("/log/topics", names="several,none,one"))["topics"] == (
        listing["topics"]
    )
    segments, copied = await primary.json("/log/segments"), await standby.json("/log/segments")
    assert copied["position"] == segments["position"]
    assert copied["segments"] == segments["segments"]
    for segment in segments["segments"]:
        answers = [
            await reader.get("/log/segment", base=segment["base"]) for reader in (primary, standby)
        ]
        length = min(len(answer[1]) for answer in answers)
        assert answers[0][1][:length] == answers[1][1][:length]


async def test_a_standby_that_has_everything_answers_as_the_primary(pair: Pair) -> None:
    publish_much(pair)
    pair.follow()
    async with serving(*pair.routes()) as (primary, standby):
        await same_answers(primary, standby)
        assert (await standby.get("/log/checkpoint"))[0] == 404
        assert (await standby.json("/log/topics"))["broker"] == "id"
        pair.reopen()
        pair.take_in()
        await same_answers(primary, standby)
        pair.core.fill("one", 2)
        pair.follow()
        assert pair.save()
        status, checkpoint = await standby.get("/log/checkpoint")
        assert (status, checkpoint) == (200, pair.copy.storage.read("checkpoint"))


async def test_a_standby_tells_nothing_that_is_not_confirmed(pair: Pair) -> None:
    pair.core.publish("t", b"one")
    pair.follow()
    pair.core.publish("t", b"two")
    pair.core.publish("new", b"three")
    pair.ship()
    async with serving(*pair.routes()) as (_, standby):
        (topic,) = (await standby.json("/log/topics"))["topics"]
        assert topic["queues"][0]["end_offset"] == 1
        assert await standby.get("/log/batches", topic="t", offset=1) == (204, b"")
        assert (await standby.get("/log/batches", topic="new", offset=0))[0] == 404
        confirmed = pair.confirmed_position
        assert (await standby.json("/log/segments"))["position"] == confirmed
        status, data = await standby.get("/log/segment", base=0)
        assert (status, len(data)) == (200, confirmed)
        pair.follow()
        listing = await standby.json("/log/topics")
        assert [topic["queues"][0]["end_offset"] for topic in listing["topics"]] == [1, 2]


async def test_a_standby_that_lags_refuses_to_answer_a_part(pair: Pair) -> None:
    """Where the reader says so: the primary has the rest, and further topics."""
    pair.core.publish("t", b"one")
    pair.follow()
    pair.core.publish("t", b"two")
    pair.core.publish("new", b"three")
    async with serving(*pair.routes()) as (primary, standby):
        listing = await standby.json("/log/topics")
        assert listing["standby"] is True
        assert listing["epoch"] == (await primary.json("/log/topics"))["epoch"]
        number = listing["topics"][0]["topic_id"]
        for path, arguments in [
            ("/log/index", {"topic": "t", "start": 0, "end": 2}),
            ("/log/reach", {"topic": "t", "start": 0, "end": 2, "max_bytes": 9}),
            ("/log/batches", {"topic": "t", "offset": 1}),
            ("/log/batches", {"topic": "new", "offset": 0}),
            ("/log/offset", {"topic": "t", "timestamp_ns": 1 << 62}),
        ]:
            status, body = await standby.get(path, **arguments, complete="true")
            assert (status, b"BEHIND" in body) == (503, True), (path, body)
        ranges = json.dumps([["t", 0, number, 0, 2]]).encode()
        assert (await standby.post("/log/index?complete=true", ranges))[0] == 503
        assert (await standby.post("/log/index", ranges))[0] == 200
        status, _ = await standby.get("/log/index", topic="t", start=0, end=1, complete="true")
        assert status == 200
        status, _ = await primary.get("/log/batches", topic="none", offset=0, complete="true")
        assert status == 404, "the primary knows"


async def refused(standby: HttpReader) -> str:
    """Why the standby refuses to answer."""
    reasons = set()
    for path in ("topics", "segments", "segment", "checkpoint", "batches", "index", "offset"):
        arguments = dict.fromkeys(("offset", "base", "start", "end", "timestamp_ns"), 0)
        status, body = await standby.get(f"/log/{path}", topic="t", **arguments)
        assert status == 503, path
        reasons.add(json.loads(body)["message"].partition(":")[0])
    (reason,) = reasons
    return str(reason)


async def test_a_replica_without_a_state_refuses(pair: Pair) -> None:
    pair.core.publish("t", b"one")
    pair.ship()
    async with serving(*pair.routes()) as (_, standby):
        assert await refused(standby) == "NOT_READY"
        pair.recover()
        assert await refused(standby) == "NOT_CONFIRMED", "its indexes are ahead"
        pair.follow()
        assert (await standby.get("/log/batches", topic="t", offset=0))[0] == 200
        pair.copy = open_copy(pair.copy.storage)[0]
        assert await refused(standby) == "NOT_READY", "the state is that of another copy"
        pair.take_in()
        pair.is_standby = False
        assert await refused(standby) == "NO_STANDBY"


async def test_a_checkpoint_ahead_of_what_is_confirmed_is_not_shown(pair: Pair) -> None:
    """This replica was primary when it saved it."""
    pair.follow()
    pair.core.fill("t", 2)
    pair.follow()
    assert pair.save()
    pair.reopen()
    recovery = pair.recover()
    pair.confirmed_position = recovery.position - 8
    async with serving(*pair.routes()) as (_, standby):
        assert await refused(standby) == "NOT_CONFIRMED"
        pair.confirm()
        assert (await standby.get("/log/topics"))[0] == 200


async def test_a_cut_takes_back_nothing_that_was_answered(pair: Pair) -> None:
    pair.core.publish("t", b"one")
    pair.follow()
    confirmed = pair.confirmed_position
    pair.core.publish("t", b"two")
    pair.ship()
    async with serving(*pair.routes()) as (_, standby):
        pair.copy.cut(confirmed, 2)
        assert (await standby.get("/log/batches", topic="t", offset=1))[0] == 204
        pair.recover()
        pair.take_in()
        (topic,) = (await standby.json("/log/topics"))["topics"]
        assert topic["queues"][0]["end_offset"] == 1


async def test_an_answer_goes_on_while_its_segment_is_retired(pair: Pair) -> None:
    """Its file is not used again as long as the bytes are read."""
    pair.follow()
    for _ in range(3):
        pair.core.publish("t", b"x" * 3000)
    pair.follow()
    first = pair.copy.segments[0]
    view = first.view[:]
    before = bytes(view)
    pair.core.channel("t").advance(3)
    pair.retire()
    pair.core.fill("u", 2)
    pair.follow()
    while pair.save():
        pair.core.fill("u", 2)
        pair.follow()
        if first not in pair.copy.segments:
            break
    assert first not in pair.copy.segments
    assert view == before
    async with serving(*pair.routes()) as (_, standby):
        status, answer = await standby.get("/log/batches", topic="t", offset=0)
        assert status == 410
        assert json.loads(answer)["start_offset"] > 0


async def test_hidden_and_ephemeral_topics_are_not_listed(pair: Pair) -> None:
    """After a failover there are no ephemeral ones."""
    core = pair.core
    core.publish("t", b"one")
    core.publish("brief#ephemeral", b"two")
    core.broker.delays.publish(core.broker.topic("t"), [b"late"], core.clock.now_ns + 10**12)
    core.broker.commit()
    pair.follow()
    async with serving(*pair.routes()) as (_, standby):
        assert [topic["topic"] for topic in (await standby.json("/log/topics"))["topics"]] == ["t"]
        assert (await standby.get("/log/batches", topic="brief%23ephemeral", offset=0))[0] != 200


async def test_a_topic_made_anew_is_another_one(pair: Pair) -> None:
    pair.core.broker.set_queues("t", 2)
    first = pair.core.broker.topics["t"].id
    pair.core.broker.delete_topic("t")
    pair.core.publish("t", b"new")
    pair.follow()
    async with serving(*pair.routes()) as (_, standby):
        status, body = await standby.get("/log/batches", topic="t", topic_id=first, offset=0)
        assert (status, b"TOPIC_MADE_ANEW" in body) == (404, True)
        status, body = await standby.get("/log/index", topic="t", queue=1, start=0, end=1)
        assert (status, b"QUEUE_NOT_FOUND" in body) == (404, True)


async def ends_of(reader: HttpReader) -> dict[Queue, int]:
    """The end of each queue."""
    return {
        (topic["topic"], queue["queue"]): queue["end_offset"]
        for topic in (await reader.json("/log/topics"))["topics"]
        for queue in topic["queues"]
    }


async def read_all(reader: HttpReader) -> dict[Queue, Range]:
    """What the reader gets of each queue."""
    ranges: dict[Queue, Range] = {}
    for topic in (await reader.json("/log/topics"))["topics"]:
        for queue in topic["queues"]:
            start, end = queue["start_offset"], queue["end_offset"]
            messages: dict[int, bytes] = {}
            at = start
            while at < end:
                status, records = await reader.get(
                    "/log/batches", topic=topic["topic"], queue=queue["queue"], offset=at
                )
                assert status == 200, (topic, at)
                messages |= messages_of(records)
                at = max(messages) + 1
            assert at == end, "more was answered than was listed"
            ranges[topic["topic"], queue["queue"]] = start, end, messages
    return ranges


class Life:
    """What happens to a pair, by chance."""

    def __init__(self, pair: Pair, random: Random) -> None:
        self.pair = pair
        self.random = pair.dice = random
        self.made = 0
        pair.core.broker.set_queues("b", 2)
        self.steps: list[Callable[[], object]] = [
            *[self.publish] * 6,
            *[self.ship] * 3,
            *(self.finish, self.restart, self.save),
            *(pair.retire, pair.confirm, pair.take_in, pair.follow),
        ]

    def step(self) -> None:
        self.random.choice(self.steps)()

    def publish(self) -> None:
        count = self.random.randrange(1, 6)
        numbers = range(self.made, self.made + count)
        self.made += count
        bodies = [b"%d " % number * self.random.randrange(1, 60) for number in numbers]
        self.pair.core.publish(self.random.choice("abc"), *bodies)

    def ship(self) -> None:
        self.pair.ship(self.random.randrange(2000))

    def finish(self) -> None:
        for name in self.pair.core.broker.topics:
            for queue_channel in self.pair.core.channel(name).at_queues:
                cursor = queue_channel.cursor
                queue_channel.advance(
                    self.random.randrange(cursor.next, cursor.queue.visible_end + 1)
                )

    def save(self) -> None:
        if self.pair.recovery is not None:
            self.pair.save()

    def restart(self) -> None:
        self.pair.reopen()
        self.pair.confirmed_position = self.random.choice([0, self.pair.confirmed_position])
        self.pair.take_in()


@pytest.mark.parametrize("seed", range(6))
async def test_a_standby_answers_a_prefix_of_what_the_primary_answers_later(
    pair: Pair, seed: int
) -> None:
    life = Life(pair, Random(seed))
    answered: list[dict[Queue, Range]] = []
    async with serving(*pair.routes()) as (primary, standby):
        for _ in range(150):
            life.step()
            if life.random.randrange(3) == 0 and (await standby.get("/log/topics"))[0] == 200:
                answered.append(await read_all(standby))
                confirmed = await ends_of(primary)
                assert all(end <= confirmed[queue] for queue, (_, end, _) in answered[-1].items())
        assert len(answered) > 10
        pair.follow()
        later = await read_all(primary)
        answered.append(await read_all(standby))
        assert await ends_of(standby) == await ends_of(primary)
    bodies: dict[tuple[Queue, int], bytes] = {}
    for answer in [later, *answered]:
        for queue, (start, end, messages) in answer.items():
            assert end <= later[queue][1]
            assert messages.keys() >= set(range(start, end))
            for offset, message in messages.items():
                assert bodies.setdefault((queue, offset), message) == message
