"""What a channel's filter rejects, and nothing else, is finished and counted, in bounded steps."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import Client, Core, group_of

from martlet.broker.channel.channel import Channel
from martlet.broker.policy import BadPolicy, ChannelPolicy
from martlet.broker.queue import channel_filter
from martlet.broker.queue import cursor as cursor_module
from martlet.broker.queue.channel_filter import ChannelFilter
from martlet.broker.topic.offset_reset import begin_group
from martlet.broker.tracing.counters import ChannelCount, counts_of
from martlet.properties.model import Properties


def publish(core: Core, regions: list[str]) -> None:
    """Publish one batch, with a header for each message whose region is not empty."""
    entries = [
        (number, Properties(headers={"region": region}).pack())
        for number, region in enumerate(regions)
        if region
    ]
    core.broker.topic("t").stage([region.encode() for region in regions], 0, entries)
    core.broker.commit()


def filtered(core: Core, policy: ChannelPolicy) -> tuple[Client, Channel]:
    client = core.client("t")
    core.topic().configure_channel("c", policy)
    channel = core.topic().channels["c"]
    return client, channel


def finish_all(client: Client, done: int = 0) -> None:
    """Finish messages as they come, from a number on."""
    while done < len(client.got):
        client.finish(done)
        done += 1


def filtered_in_log(channel: Channel) -> int:
    counts = dict(divmod(count, 1 << 56) for count in counts_of(channel))
    return counts.get(ChannelCount.FILTERED, 0)


@pytest.mark.parametrize("order", ["none", "queue", "key"])
@pytest.mark.parametrize("room", [1, 3, 100])
def test_rejected_messages_are_finished_and_counted(core: Core, order: str, room: int) -> None:
    client, channel = filtered(core, ChannelPolicy(filter="region = 'eu'", order=order))
    client.ready(room)
    publish(core, ["us", "eu", "", "eu", "eu", "us"] * 40)
    publish(core, ["us"] * 50)
    publish(core, [""] * 5)
    finish_all(client)
    assert client.bodies == [b"eu"] * 120
    assert channel.depth == channel.in_flight_count == 0
    assert channel.cursor.lowest_needed == 295
    assert channel.filtered_count == 295 - 120
    assert filtered_in_log(channel) == 295 - 120


def test_a_message_without_properties_passes_where_nothing_is_wanted_of_it(core: Core) -> None:
    client, channel = filtered(core, ChannelPolicy(filter="region IS NULL OR region = 'eu'"))
    client.ready(100)
    publish(core, ["us", "", "eu", "us"])
    publish(core, ["", ""])
    assert client.bodies == [b"", b"eu", b"", b""]
    assert channel.filtered_count == 2


def test_tags_and_a_filter_must_both_fit(core: Core) -> None:
    client, channel = filtered(core, ChannelPolicy(tags=("red",), filter="price > 3"))
    client.ready(100)
    topic = core.broker.topic("t")
    some = [("red", 3), ("red", 4), ("blue", 4), ("", 4)]
    entries = [
        (number, Properties(tag=tag, headers={"price": str(price)}).pack())
        for number, (tag, price) in enumerate(some)
    ]
    topic.stage([b"%d" % number for number in range(4)], 0, entries)
    core.broker.commit()
    assert client.bodies == [b"1"]
    assert channel.filtered_count == 3


@pytest.mark.parametrize("order", ["none", "queue"])
def test_a_long_way_without_a_wanted_message_is_gone_in_steps(
    monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr(cursor_module, "MAX_TESTED", 8)
    monkeypatch.setattr(cursor_module, "MAX_AT_ONCE", 16)
    core = Core()
    client, channel = filtered(core, ChannelPolicy(filter="region = 'eu'", order=order))
    publish(core, ["us"] * 500)
    publish(core, ["eu"])
    client.ready(10)
    # Two looks a step of 16 messages, after one for the batch.
    assert channel.cursor.next == 64
    assert not client.bodies
    steps = 0
    while not client.bodies:
        core.wait(10**6)
        steps += 1
    assert steps == 500 // 64
    assert client.bodies == [b"eu"]
    assert channel.filtered_count == 500


def test_each_message_of_a_batch_is_tested_once_for_a_consumer_that_takes_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tested = []
    accepted = ChannelFilter.accepted

    def counting(self: ChannelFilter, data: bytes | None, begin: int, end: int) -> object:
        tested.append((begin, end))
        return accepted(self, data, begin, end)

    monkeypatch.setattr(channel_filter.ChannelFilter, "accepted", counting)
    core = Core()
    client, _ = filtered(core, ChannelPolicy(filter="region = 'eu'"))
    publish(core, ["eu", "us"] * 100)
    client.ready(1)
    finish_all(client)
    assert client.bodies == [b"eu"] * 100
    assert tested == [(0, 200)]


def test_a_changed_filter_counts_from_then_on_and_for_messages_that_come_again(core: Core) -> None:
    client, channel = filtered(core, ChannelPolicy(filter="region = 'eu'"))
    publish(core, ["eu", "eu", "us", "us"])
    client.ready(1)
    assert client.bodies == [b"eu"]
    core.configure(filter="region = 'us'")
    client.requeue(0)
    finish_all(client, 1)
    assert client.bodies == [b"eu", b"us", b"us"]
    assert channel.depth == 0
    assert channel.filtered_count == 2


def test_a_group_counts_what_it_commits_and_not_what_it_skips(core: Core) -> None:
    channel = begin_group(core.broker.topic("t"), "g", "first", 0, 0, {"filter": "region = 'eu'"})
    publish(core, ["us", "eu"])
    group_of(channel).commit(2)
    assert (channel.depth, channel.committed_count, channel.filtered_count) == (0, 2, 0)


def test_a_filter_outlives_a_restart(core: Core) -> None:
    filtered(core, ChannelPolicy(filter="region = 'eu'"))
    core.kill()
    client = core.client("t").ready(10)
    publish(core, ["us", "eu"])
    assert core.topic().channels["c"].policy.filter == "region = 'eu'"
    assert client.bodies == [b"eu"]


def test_a_wrong_filter_is_refused_before_anything_is_made(core: Core) -> None:
    with pytest.raises(
        BadPolicy, match=r"filter: the filter is wrong at character 8, .* > compares"
    ):
        ChannelPolicy().changed({"filter": "region > 'eu'"})
    with pytest.raises(BadPolicy, match="filter must be a condition in SQL, not 3"):
        ChannelPolicy().changed({"filter": 3})
    with pytest.raises(BadPolicy, match="its end"):
        begin_group(core.broker.topic("t"), "g", "first", 0, 0, {"filter": "region ="})
    assert "g" not in core.topic().channels
    assert ChannelPolicy().changed({"filter": "  "}).filter == ""
