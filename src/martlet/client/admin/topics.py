"""Topics: list, create, pause, empty, delete and configure them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from martlet.client.admin.answers import Answers
from martlet.client.admin.decode import Described
from martlet.client.admin.errors import AdminError, AdminNotFound
from martlet.client.admin.http import AdminHttp
from martlet.client.admin.noun import Noun, place
from martlet.client.admin.stats import TopicStats, node_stats
from martlet.properties.key_hash import KeyHash
from martlet.properties.model import NORMAL_PRIORITY

Policy = Mapping[str, Any]
"""The settings of a topic or a channel that differ from their defaults."""
_ID_MASK = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class LogQueue(Described):
    """A queue of a topic at one broker.

    Attributes:
        queue: its number.
        priority: of its messages.
        id_base: the id of the message at offset 0, as 16 hexadecimal digits.
        start_offset, end_offset: the offsets of the first stored and the next new message.
    """

    queue: int
    priority: int = NORMAL_PRIORITY
    id_base: str
    start_offset: int
    end_offset: int

    def offset_of(self, message_id: str) -> int | None:
        """Return the offset of the message with an id; None if it is not of this queue, or is no
        longer or not yet stored.
        """
        offset = self.distance_of(message_id)
        return offset if self.start_offset <= offset < self.end_offset else None

    def distance_of(self, message_id: str) -> int:
        """Return the offset of an id of this queue, whatever the queue stores."""
        return (int(message_id, 16) - int(self.id_base, 16)) & _ID_MASK


@dataclass(frozen=True, kw_only=True)
class TopicDescription(Described):
    """A topic of one broker.

    Attributes:
        topic: its name.
        queues: its queues.
        key_hash: the function that leads from an order key to a queue.
        policy: its settings that differ from their defaults.
        channel_policies: the same of each channel; None where the broker does not say.
    """

    topic: str
    queues: tuple[LogQueue, ...]
    key_hash: str = KeyHash.CRC32C
    policy: Mapping[str, Any] = field(default_factory=dict)
    channel_policies: Mapping[str, Any] | None = None


class TopicPolicyChanges(TypedDict, total=False):
    """The policy of a topic; None resets a field to its default.

    ``martlet topic configure --help`` has the meaning of each.
    """

    retention_ms: int | None
    retention_bytes: int | None
    trace: str | None


async def change_places(
    http: AdminHttp, path: str, names: Mapping[str, str], *, registered: bool = False
) -> Answers[None]:
    """Change a topic or a channel at each broker that has the topic.

    Args:
        http: queries the servers.
        path: of the action.
        names: of the topic, and of the channel if it is one.
        registered: whether lookup daemons get it too, unless a broker has failed. Without brokers
            only they get it.

    Raises:
        AdminError: no server did it.
    """

    async def change(url: str) -> None:
        try:
            await http.post(url, path, names)
        except AdminNotFound:
            if url not in http.daemons:  # A daemon that does not know it is fine.
                raise

    try:
        done = await http.each(await http.brokers(names["topic"]), change)
    except AdminNotFound as error:
        if error.errors or not registered:
            raise
        done = Answers({})
    if not registered or done.errors or not http.daemons:
        return done
    try:
        there = await http.each(http.daemons, change)
    except AdminError as error:
        if not done.values:
            raise
        there = Answers({}, error.errors)
    return Answers({**done.values, **there.values}, there.errors)


async def configure(http: AdminHttp, names: Mapping[str, str], policy: Policy) -> Answers[Policy]:
    """Set fields of the policy of a topic or a channel. Raises AdminError."""
    kind = "channel" if "channel" in names else "topic"
    fields = {**names, "policy": policy}
    return await http.call_each(f"{kind}.configure", fields, lambda answer: dict(answer["policy"]))


class TopicAdmin(Noun):
    """The topics of brokers: `Admin.topics`.

    Each method answers for each broker, and raises AdminError only if none answered.
    """

    async def list(self, topic: str = "", channel: str = "") -> Answers[tuple[TopicStats, ...]]:
        """List topics with their channels and counts.

        Args:
            topic: only this topic.
            channel: only the channel of this name, of topics that have it.
        """
        http = self._http
        urls = await http.brokers(topic)
        # A standby that is named alone stands for its broker.
        is_one = len(urls) == 1

        async def ask(url: str) -> tuple[TopicStats, ...]:
            return (await node_stats(http, url, topic, channel, of_primary=is_one)).topics

        return await http.each(urls, ask)

    async def describe(self, topic: str) -> Answers[TopicDescription]:
        """Describe a topic: its queues, and its and its channels' policies."""
        return await self._http.call_each("topic.describe", place(topic), TopicDescription.read)

    async def create(self, topic: str, queues: int | None = None) -> Answers[int]:
        """Create a topic at all brokers; answers its number of queues.

        Args:
            topic: its name.
            queues: the number of queues (1 for a new topic). A topic that exists can get more,
                never fewer.
        """
        http, names = self._http, place(topic)
        # Without a number, an existing topic with more queues is fine.
        wanted = names if queues is None else {**names, "queues": str(queues)}

        async def create_at(url: str) -> int:
            await http.post(url, "/topic/create", wanted)
            found = (await node_stats(http, url, topic, of_primary=True)).topics
            if not found:
                raise AdminError(url, f"it does not report the state of topic {topic!r}")
            if found[0].queue_count < (queues or 1):
                raise AdminError(url, f"topic {topic!r} has one queue there: nsqd supports no more")
            return found[0].queue_count

        return await http.each(await http.brokers(), create_at)

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        order_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        defer_ms: int = 0,
    ) -> Answers[None]:
        """Publish one message at the first broker that has the topic, else at the first of all.

        For more than a message now and then use a `Producer`.

        Args:
            topic: its topic, created where it is missing.
            body: at least one byte.
            tag, keys, order_key, headers, priority: its properties, which nsqd does not have.
            defer_ms: how long to defer it.

        Raises AdminError: the broker refused it.
        """
        http = self._http
        properties = [
            *([("X-Martlet-Tag", tag)] if tag else []),
            *(("X-Martlet-Key", key) for key in keys),
            *([("X-Martlet-Order-Key", order_key)] if order_key else []),
            *([("X-Martlet-Priority", str(priority))] if priority is not None else []),
            *(("X-Martlet-Header", f"{name}={value}") for name, value in (headers or {}).items()),
        ]
        arguments = place(topic) | ({"defer": str(defer_ms)} if defer_ms else {})
        try:
            url = (await http.brokers(topic))[0]
        except AdminNotFound:
            url = (await http.brokers())[0]
        if properties and "martlet_version" not in await http.get(url, "/info", {}):
            raise AdminError(url, "an nsqd keeps no tag, keys or headers of a message")
        await http.publish(url, arguments, body, properties)
        return Answers({url: None})

    async def pause(self, topic: str) -> Answers[None]:
        """Keep the messages of a topic from its channels; they wait."""
        return await change_places(self._http, "/topic/pause", place(topic))

    async def unpause(self, topic: str) -> Answers[None]:
        """Pass the messages of a topic to its channels again."""
        return await change_places(self._http, "/topic/unpause", place(topic))

    async def empty(self, topic: str) -> Answers[None]:
        """Drop the messages that no channel has received; channels keep theirs."""
        return await change_places(self._http, "/topic/empty", place(topic))

    async def delete(self, topic: str) -> Answers[None]:
        """Delete a topic with its channels and messages; then at the lookup daemons, if given."""
        return await change_places(self._http, "/topic/delete", place(topic), registered=True)

    async def configure(self, topic: str, **changes: Unpack[TopicPolicyChanges]) -> Answers[Policy]:
        """Set fields of a topic's policy; answers all that differ from their defaults.

        Without any, it only shows the policy.
        """
        return await configure(self._http, place(topic), dict(changes))
