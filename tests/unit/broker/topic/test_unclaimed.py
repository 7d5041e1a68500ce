"""Topics that are deleted again, unless they get a channel."""

from __future__ import annotations

from tests.unit.broker.core import SECOND_NS, Core

NAME = "reply#ephemeral"


def test_a_topic_without_a_channel_is_deleted_in_time(core: Core) -> None:
    topic = core.broker.topic(NAME)
    core.broker.drop_unclaimed(topic, SECOND_NS)
    core.publish(NAME, b"1")
    core.wait(SECOND_NS - 1)
    assert NAME in core.broker.topics
    core.wait(1)
    assert NAME not in core.broker.topics


def test_a_topic_with_a_channel_stays(core: Core) -> None:
    topic = core.broker.topic(NAME)
    core.broker.drop_unclaimed(topic, SECOND_NS)
    core.publish(NAME, b"1")
    client = core.client(NAME, "c#ephemeral").ready(1)
    core.wait(SECOND_NS)
    assert client.bodies == [b"1"]
    assert core.broker.topics[NAME] is topic


def test_a_later_topic_of_the_name_stays(core: Core) -> None:
    core.broker.drop_unclaimed(core.broker.topic(NAME), SECOND_NS)
    core.broker.delete_topic(NAME)
    again = core.broker.topic(NAME)
    core.wait(SECOND_NS)
    assert core.broker.topics[NAME] is again
