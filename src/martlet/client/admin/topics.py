"""Topics: list, create, pause, empty, delete and configure them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

from martlet.client.admin.answers import Answers
from martlet.client.admin.errors import AdminError, AdminNotFound
from martlet.client.admin.http import AdminHttp
from martlet.client.admin.methods import OperationGroup, at_each, target
from martlet.client.admin.stats import NodeStats, TopicStats, node_stats
from martlet.properties.model import TextOrBytes
from martlet.schema.topics import CONFIGURE, DESCRIBE

Policy = Mapping[str, Any]
"""The settings of a topic or a channel that differ from their defaults."""


class TopicPolicyChanges(TypedDict, total=False):
    """The policy of a topic; None resets a field to its default.

    ``martlet topic configure --help`` has the meaning of each.
    """

    retention_ms: int | None
    retention_bytes: int | None
    trace: str | None


async def change_at_each(
    http: AdminHttp, path: str, names: Mapping[str, str], *, registered: bool = False
) -> Answers[None]:
    """Change a topic or a channel at each broker that has the topic.

    Args:
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


async def counted_at_each(
    http: AdminHttp, topic: str, channel: str, *, include_clients: bool = False
) -> Answers[NodeStats]:
    """Get the counts of each broker that has the topic. Raises AdminError."""
    urls = await http.brokers(topic)
    # A standby that is named alone stands for its broker.
    get = partial(node_stats, include_clients=include_clients, of_primary=len(urls) == 1)
    return await http.each(urls, lambda url: get(http, url, topic, channel))


class TopicMethods:
    """The method of both clients that an operation makes."""

    describe = at_each(DESCRIBE, lambda answer: answer)


class TopicAdmin(TopicMethods, OperationGroup):
    """The topics of brokers: `Admin.topics`.

    Each method answers for each broker, and raises AdminError only if none answered.
    """

    _configure = at_each(CONFIGURE, lambda answer: answer.policy)

    async def list(self, topic: str = "", channel: str = "") -> Answers[tuple[TopicStats, ...]]:
        """List topics with their channels and counts.

        Args:
            topic: only this topic.
            channel: only the channel of this name, of topics that have it.
        """
        return (await counted_at_each(self._http, topic, channel)).map(lambda node: node.topics)

    async def create(self, topic: str, queues: int | None = None) -> Answers[int]:
        """Create a topic at all brokers; answers its number of queues.

        Args:
            queues: the number of queues (1 for a new topic). A topic that exists can get more,
                never fewer.
        """
        http, names = self._http, target(topic)
        # Without a number, an existing topic with more queues is fine.
        arguments = names if queues is None else {**names, "queues": str(queues)}

        async def create_at(url: str) -> int:
            await http.post(url, "/topic/create", arguments)
            topics = (await node_stats(http, url, topic, of_primary=True)).topics
            if not topics:
                raise AdminError(url, f"it does not report the state of topic {topic!r}")
            if topics[0].queue_count < (queues or 1):
                raise AdminError(url, f"topic {topic!r} has one queue there: nsqd supports no more")
            return topics[0].queue_count

        return await http.each(await http.brokers(), create_at)

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        order_key: TextOrBytes | None = None,
        headers: Mapping[str, TextOrBytes] | None = None,
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
            *([_http_header("X-Martlet-Order-Key", order_key)] if order_key else []),
            *([("X-Martlet-Priority", str(priority))] if priority is not None else []),
            *(
                _http_header("X-Martlet-Header", value, f"{name}=")
                for name, value in (headers or {}).items()
            ),
        ]
        arguments = target(topic) | ({"defer": str(defer_ms)} if defer_ms else {})
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
        return await change_at_each(self._http, "/topic/pause", target(topic))

    async def unpause(self, topic: str) -> Answers[None]:
        """Pass the messages of a topic to its channels again."""
        return await change_at_each(self._http, "/topic/unpause", target(topic))

    async def empty(self, topic: str) -> Answers[None]:
        """Drop the messages that no channel has received; channels keep theirs."""
        return await change_at_each(self._http, "/topic/empty", target(topic))

    async def delete(self, topic: str) -> Answers[None]:
        """Delete a topic with its channels and messages; then at the lookup daemons, if given."""
        return await change_at_each(self._http, "/topic/delete", target(topic), registered=True)

    async def configure(self, topic: str, **changes: Unpack[TopicPolicyChanges]) -> Answers[Policy]:
        """Set fields of a topic's policy; answers all that differ from their defaults.

        Without any, it only shows the policy.
        """
        return await self._configure(topic, dict(changes))


def _http_header(name: str, value: TextOrBytes, before: str = "") -> tuple[str, str]:
    if isinstance(value, bytes):
        return f"{name}-Base64", before + b64encode(value).decode()
    return name, before + value
