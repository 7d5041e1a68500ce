"""The HTTP endpoints of nsqd: publish, inspect, and manage topics and channels.

The checks, their order, and the status and message of each refusal are nsqd's.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import struct
from functools import partial

from martlet import __version__
from martlet.broker.broker import BrokerCore
from martlet.broker.channel.channel import Channel
from martlet.broker.errors import NotFound, QueuesRefused, WritesRefused
from martlet.broker.topic.expand import check_count
from martlet.broker.topic.topic import Topic
from martlet.log.record import MAX_LONE_BODY_BYTES
from martlet.names import is_valid_name
from martlet.options import BrokerOptions, LogLevel, OptionError
from martlet.properties.model import NORMAL_PRIORITY, Properties, order_key_of
from martlet.protocol.nsq.v2 import NSQD_VERSION
from martlet.server.clock import TimeSlice
from martlet.server.group_commit import GroupCommit
from martlet.server.http.publish_headers import delivery_time_in, properties_in
from martlet.server.http.request import HttpError, PublishEndpoint, Request, Routes
from martlet.server.http.response import respond_json
from martlet.server.lookup_peer import LookupPeers
from martlet.server.observability import stats_text
from martlet.server.observability.stats import StatsSource, pauses
from martlet.text import MILLISECOND_NS, SECOND_NS

log = logging.getLogger(__name__)

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_U32 = struct.Struct(">I")
_SMALLEST_MESSAGE_BYTES = 5
"""The size of the smallest message in a binary /mpub: its length and one byte."""


class LiveOptions:
    """The options of a broker; a few may change while it runs.

    Args:
        tcp_port, http_port: of its listeners, -1 for a Unix socket.
    """

    def __init__(
        self, options: BrokerOptions, lookups: LookupPeers, tcp_port: int, http_port: int
    ) -> None:
        self.options = options
        self._lookups = lookups
        self.tcp_port = tcp_port
        self.http_port = http_port

    def set_log_level(self, level: LogLevel) -> None:
        """Log from this level on."""
        self.options = self.options.replace(log_level=level)
        logging.getLogger("martlet").setLevel(level.for_logging)

    async def set_lookup_addresses(self, addresses: tuple[str, ...]) -> None:
        """Register with these lookup daemons, and no others."""
        self.options = self.options.replace(lookupd_tcp_addresses=addresses)
        await self._lookups.set_addresses(addresses)


class NsqApi:
    """nsqd's endpoints over a broker."""

    def __init__(
        self,
        broker: BrokerCore,
        commits: GroupCommit,
        settings: LiveOptions,
        stats: StatsSource,
    ) -> None:
        self._broker = broker
        self._commits = commits
        self._settings = settings
        self._stats = stats

    def routes(self) -> Routes:
        """The endpoint of each path and method."""
        return {
            "/ping": {"GET": self.ping},
            "/info": {"GET": self.info},
            "/stats": {"GET": self.stats},
            "/pub": {"POST": PublishEndpoint(self.publish, self.publish_lone)},
            "/mpub": {"POST": self.publish_many},
            "/config/:name": {"GET": self.config, "PUT": self.set_config},
            "/topic/create": {"POST": self.create_topic},
            "/topic/delete": {"POST": self.delete_topic},
            "/topic/empty": {"POST": self.empty_topic},
            "/topic/pause": {"POST": self.pause_topic},
            "/topic/unpause": {"POST": self.pause_topic},
            "/channel/create": {"POST": self.create_channel},
            "/channel/delete": {"POST": self.delete_channel},
            "/channel/empty": {"POST": self.empty_channel},
            "/channel/pause": {"POST": self.pause_channel},
            "/channel/unpause": {"POST": self.pause_channel},
        }

    # inspecting

    async def ping(self, request: Request) -> object:
        """Answer ``OK``, or why the broker is unhealthy."""
        health = self._broker.health
        if health != "OK":
            raise HttpError(500, health, plain=True)
        return health

    async def info(self, request: Request) -> object:
        """Describe the broker and its limits."""
        settings, options = self._settings, self._settings.options
        topology = {
            "topology_zone": options.topology_zone,
            "topology_region": options.topology_region,
        }
        return {
            "version": NSQD_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": settings.http_port,
            "tcp_port": settings.tcp_port,
            "start_time": self._broker.started_at_ns // SECOND_NS,
            "max_heartbeat_interval": options.max_heartbeat_interval_ns,
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": options.max_output_buffer_timeout_ns,
            "max_deflate_level": options.max_deflate_level,
            **(topology if any(topology.values()) else {}),
            "martlet_version": __version__,
            **self._stats.identity,
        }

    async def stats(self, request: Request) -> object:
        """Answer the counts of everything, as text or, with ``format=json``, as JSON."""
        query, broker = request.query, self._broker
        topic, channel = query.get("topic", ""), query.get("channel", "")
        clients = _BOOLEANS.get(query.get("include_clients", ""), True)
        memory = _BOOLEANS.get(query.get("include_mem", ""), True)
        now_ns, pace = broker.wall(), TimeSlice()
        as_json = query.get("format") == "json"
        topics: list[str] | None = None
        if not topic or topic in broker.topics:
            topics = []
            reports = self._stats.topic_reports(pace, topic, channel, include_clients=clients)
            async for report in reports:
                if as_json:
                    topics.append(await stats_text.topic_json(report, pace))
                else:
                    topics.append(await stats_text.topic_text(report, now_ns, pace))
        head, process = self._stats.head(), pauses.memory() if memory else None
        # Of a topic that is missing nsqd reports no producer either.
        wants_producers = clients and topics is not None
        producers = await self._stats.producers(topic, pace) if wants_producers else None
        if as_json:
            return respond_json(
                await stats_text.report_json(
                    head, topics, process, producers, self._stats.tail(), pace
                )
            )
        return await stats_text.report_text(head, topics, process, producers, now_ns, pace)

    # publishing

    async def publish(self, request: Request) -> object:
        """Publish the body as one message."""
        options = self._settings.options
        body = await request.read(options.max_msg_size, "MSG_TOO_BIG")
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        properties, at_ns = properties_in(request), self._delivery_time_ns(request)
        topic = self._topic_to_fill(request).next_queue()
        deliver_at_ns = 0
        if "defer" in request.query:
            text = request.query["defer"]
            defer_ns = int(text) * MILLISECOND_NS if _WHOLE_NUMBER.fullmatch(text) else -1
            if not 0 <= defer_ns <= options.max_req_timeout_ns:
                raise HttpError(400, "INVALID_DEFER")
            if defer_ns:
                deliver_at_ns = self._broker.wall() + defer_ns
        if at_ns is not None:
            return await self._store(topic, [body], at_ns, properties, for_later=True)
        if deliver_at_ns or properties or not self._append(topic, body):
            await self._store(topic, [body], deliver_at_ns, properties)
        return "OK"

    def publish_lone(self, name: str, body: bytes) -> bool:
        """Append a message to a topic at once. False if it must wait, or is to be refused."""
        topic = self._broker.topics.get(name)
        if topic is None or not 0 < len(body) <= self._settings.options.max_msg_size:
            return False
        try:
            return self._append(topic.next_queue(), body)
        except HttpError:
            return False

    async def publish_many(self, request: Request) -> object:
        """Publish each line of the body or, with ``binary=true``, each message after its size."""
        options = self._settings.options
        if request.content_length > options.max_body_size:
            raise HttpError(413, "BODY_TOO_BIG")
        properties, at_ns = properties_in(request), self._delivery_time_ns(request)
        topic = self._topic_to_fill(request)
        value = request.query.get("binary", "false")
        binary = _BOOLEANS.get(value, True)
        if value not in _BOOLEANS:
            log.warning("deprecated value '%s' used for /mpub binary param", value)
        body = await request.read(options.max_body_size, "BODY_TOO_BIG")
        if binary:
            bodies = split_binary(body, options.max_msg_size, options.max_body_size)
        else:
            bodies = [line for line in body.split(b"\n") if line]
            if bodies and max(map(len, bodies)) > options.max_msg_size:
                raise HttpError(413, "MSG_TOO_BIG")
        # Reading the body took time, in which the topic may have been deleted.
        topic = self._topic_to_fill(request).next_queue()
        if not bodies:
            return "OK"
        return await self._store(topic, bodies, at_ns or 0, properties, for_later=at_ns is not None)

    def _append(self, topic: Topic, body: bytes) -> bool:
        """Append one message at once. False if it must wait for others or for the disk."""
        commits = self._commits
        commits.ticks.note_input()
        too_long = len(body) > MAX_LONE_BODY_BYTES
        if too_long or commits.ticks.crowded or not commits.answers_at_once:
            return False
        try:
            self._broker.append(topic, body)
        except WritesRefused as error:
            raise HttpError(503, f"PUB_FAILED {error}") from None
        return True

    async def _store(
        self,
        topic: Topic,
        bodies: list[bytes],
        deliver_at_ns: int,
        properties: Properties,
        *,
        for_later: bool = False,
    ) -> object:
        """Store messages. Returns the answer."""
        entry = properties.pack()
        entries = [(number, entry) for number in range(len(bodies))] if entry else []
        try:
            if properties.priority != NORMAL_PRIORITY:
                topic = self._broker.queue_of_priority(topic.at_queues[0], properties.priority)
            elif key := order_key_of(entry):
                topic = topic.queue_for_key(key)
            if for_later:
                return await self._store_for_later(topic, bodies, deliver_at_ns, entries)
            stage = topic.stage
            if deliver_at_ns:
                stage = partial(self._broker.delays.defer, topic)
            await self._commits.settled(stage(bodies, deliver_at_ns, entries))
            return "OK"
        except (QueuesRefused, WritesRefused) as error:
            raise HttpError(503, f"PUB_FAILED {error}") from None

    async def _store_for_later(
        self, topic: Topic, bodies: list[bytes], at_ns: int, entries: list[tuple[int, bytes]]
    ) -> object:
        """Store messages for a time, or for now. Returns SEND's answer. Raises WritesRefused."""
        target = self._broker.delays.bucket(topic, at_ns, len(bodies)) if at_ns else topic
        first = target.next_offset
        message_id = target.queue.message_id(first).decode()
        await self._commits.settled(target.stage(bodies, at_ns, entries))
        return {
            "status": "OK",
            "queue": topic.number,
            "offset": None if at_ns else first,
            "count": len(bodies),
            "id": message_id,
        }

    def _delivery_time_ns(self, request: Request) -> int | None:
        return delivery_time_in(request, self._broker.wall(), self._settings.options.max_delay_ns)

    def _topic_to_fill(self, request: Request, refused: str = "PUB_FAILED") -> Topic:
        """Return the named topic; create it if missing, and give this code if it is refused."""
        name = request.query.get("topic")
        if name is None:
            raise HttpError(400, "MISSING_ARG_TOPIC")
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_TOPIC")
        try:
            return self._broker.topic(name)
        except WritesRefused as error:
            raise HttpError(503, f"{refused} {error}") from None

    # managing

    async def create_topic(self, request: Request) -> None:
        """Create a topic, unless it exists, with ``queues`` queues; their number never falls."""
        if "queues" not in request.query:
            self._topic_to_fill(request, "REFUSED")
            return
        count = request.number("queues")
        name = request.query.get("topic", "")
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_TOPIC" if name else "MISSING_ARG_TOPIC")
        try:
            check_count(count)
        except QueuesRefused as error:
            raise HttpError(400, f"INVALID_ARG_QUEUES: {error}") from None
        try:
            self._broker.set_queues(name, count)
        except QueuesRefused as error:
            raise HttpError(409, f"QUEUES_REFUSED {error}") from None

    async def delete_topic(self, request: Request) -> None:
        """Delete a topic with its channels and messages."""
        try:
            self._broker.delete_topic(request.argument("topic"))
        except NotFound:
            raise HttpError(404, "TOPIC_NOT_FOUND") from None

    async def empty_topic(self, request: Request) -> None:
        """Empty a topic: drop the messages that no channel has received."""
        name = request.argument("topic")
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_TOPIC")
        self._broker.empty_topic(self._topic(name).name)

    async def pause_topic(self, request: Request) -> None:
        """Pause a topic, so that its channels get no new messages, or resume it."""
        self._topic(request.argument("topic")).set_paused("unpause" not in request.path)

    async def create_channel(self, request: Request) -> None:
        """Create a channel, unless it exists."""
        topic, name = self._topic_and_channel_name(request)
        topic.channel(name)

    async def delete_channel(self, request: Request) -> None:
        """Delete a channel and disconnect its consumers."""
        topic, name = self._topic_and_channel_name(request)
        try:
            self._broker.delete_channel(topic, name)
        except NotFound:
            raise HttpError(404, "CHANNEL_NOT_FOUND") from None

    async def empty_channel(self, request: Request) -> object:
        """Empty a channel: finish all its messages.

        With ``undo=true`` the answer is the channel's position before, for the call
        ``channel.restore``; else it is empty, as nsqd's.
        """
        topic, name = self._topic_and_channel_name(request)
        channel = self._channel(request)
        is_group, before = channel.group is not None, channel.all_queues
        count = before.depth + before.in_flight_count + before.deferred_count
        emptied = self._broker.empty_channel(topic, name)
        if request.query.get("undo") != "true" or is_group:
            return None
        return {
            "queues": [queue._asdict() for queue in emptied],
            "depth": count,
            "kept_until_ns": topic.queue.emptied_until_ns,
        }

    async def pause_channel(self, request: Request) -> None:
        """Pause a channel's delivery, or resume it."""
        topic, name = self._topic_and_channel_name(request)
        self._channel(request)
        topic.pause_channel(name, "unpause" not in request.path)

    def _topic(self, name: str) -> Topic:
        try:
            return self._broker.find_topic(name)
        except NotFound:
            raise HttpError(404, "TOPIC_NOT_FOUND") from None

    def _topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        topic, channel = request.topic_and_channel()
        return self._topic(topic), channel

    def _channel(self, request: Request) -> Channel:
        topic, name = self._topic_and_channel_name(request)
        try:
            return topic.find_channel(name)
        except NotFound:
            raise HttpError(404, "CHANNEL_NOT_FOUND") from None

    # options

    async def config(self, request: Request) -> object:
        """Answer the value of an option, named as in the config file."""
        name = request.path.rpartition("/")[2]
        for flag in BrokerOptions.flags().values():
            if flag.config_key == name:
                value: object = getattr(self._settings.options, flag.field)
                return list(value) if isinstance(value, tuple) else value
        raise HttpError(400, "INVALID_OPTION")

    async def set_config(self, request: Request) -> object:
        """Change one of the options that may change while the broker runs."""
        name = request.path.rpartition("/")[2]
        body = await request.read(self._settings.options.max_msg_size, "INVALID_VALUE")
        if not body:
            raise HttpError(413, "INVALID_VALUE")
        if name == "log_level":
            try:
                level: LogLevel = BrokerOptions.flags()["log-level"].parse(body.decode())
            except (OptionError, UnicodeDecodeError):
                raise HttpError(400, "INVALID_VALUE") from None
            self._settings.set_log_level(level)
        elif name == "nsqlookupd_tcp_addresses":
            await self._settings.set_lookup_addresses(_addresses(body))
        else:
            raise HttpError(400, "INVALID_OPTION")
        return await self.config(request)


def _addresses(body: bytes) -> tuple[str, ...]:
    try:
        value = json.loads(body.decode(errors="replace"))
    except (ValueError, RecursionError):
        raise HttpError(400, "INVALID_VALUE") from None
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(piece, str) for piece in value):
        raise HttpError(400, "INVALID_VALUE")
    # Half a pair of surrogates is no character; replace it, as Go does.
    return tuple(
        piece.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for piece in value
    )


def split_binary(body: bytes, max_msg_size: int, max_body_size: int) -> list[bytes]:
    """Split a binary /mpub: ``count u32 | count x (size u32 | message)``, big-endian.

    Bytes after the last message are ignored, as by nsqd.

    Raises:
        HttpError: 413 BAD_BODY: the count is missing or impossible; 413 BAD_MESSAGE: a size is, or
        a message is cut short.
    """
    max_count = (max_body_size - _U32.size) // _SMALLEST_MESSAGE_BYTES
    if len(body) < _U32.size or not 0 < _U32.unpack_from(body)[0] <= max_count:
        raise HttpError(413, "BAD_BODY")
    bodies: list[bytes] = []
    start = _U32.size
    for _ in range(_U32.unpack_from(body)[0]):
        begin = start + _U32.size
        if begin > len(body):
            raise HttpError(413, "BAD_MESSAGE")
        (size,) = _U32.unpack_from(body, start)
        start = begin + size
        if not 0 < size <= max_msg_size or start > len(body):
            raise HttpError(413, "BAD_MESSAGE")
        bodies.append(body[begin:start])
    return bodies
