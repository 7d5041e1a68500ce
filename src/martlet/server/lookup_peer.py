"""The broker's side of discovery: keep it registered with lookup daemons while it runs.

There is one connection to each daemon. On a new connection the broker identifies itself and
registers all its topics and channels; then it sends each change, and a PING every 15 s. After a
failure it connects again, after a pause that doubles up to 4 s. Changes meanwhile need no record,
since everything is registered again.

For a new topic the broker asks the daemons for its channels at other brokers and creates them at
once, so that they get its messages from the first on.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import resource
import socket
from collections.abc import Iterator

from martlet import unreachable
from martlet.addresses import lookup_address
from martlet.broker.broker import BrokerCore
from martlet.broker.channel.channel import Channel
from martlet.broker.errors import WritesRefused
from martlet.broker.policy import ChannelPolicy
from martlet.broker.topic.topic import Topic
from martlet.http_requests import load_aiohttp, read_json
from martlet.names import is_ephemeral, is_valid_name
from martlet.options import BrokerOptions
from martlet.options.flag import OptionError
from martlet.protocol import lookup as v1
from martlet.protocol.nsq.frames import http_answered
from martlet.protocol.nsq.v2 import NSQD_VERSION
from martlet.server.data_folder import DataFolder
from martlet.text import SECOND_NS
from martlet.unreachable import Outage

log = logging.getLogger(__name__)

PING_S = 15.0
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 4.0
"""A daemon that has restarted names no broker to consumers before brokers have registered again."""
_ANSWER_S = 5.0
"""How long a daemon may take to answer a command."""
_COMMANDS_AT_ONCE = 256
_RESERVED = 64
"""How many file descriptors connections of replicas to lookup daemons may have."""
_MAX_DESCRIPTOR = 65536
"""A higher descriptor costs memory: the kernel keeps 8 bytes for each one below it."""
_MAX_ANSWER_BYTES = 1 << 20


def host_and_port(address: str) -> tuple[str, int]:
    """Split the address of a lookup daemon; no host is this one. Raises OptionError."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal() and 0 < int(port) < 65536):
        raise OptionError(
            f"--lookupd-tcp-address={address} is not host:port, such as 127.0.0.1:4160"
        )
    return host.strip("[]") or "localhost", int(port)


def _connect_high(host: str, port: int) -> socket.socket:
    """Connect with a file descriptor above those of clients.

    When a process is killed, Linux closes its files from the last to the first, in 20 us each. A
    lookup daemon is to know that the primary has gone before its consumers do, who ask at once.
    """
    lowest = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MAX_DESCRIPTOR) - _RESERVED
    with socket.create_connection((host, port), _ANSWER_S) as sock:
        high = fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, max(lowest, 0))
    return socket.socket(fileno=high)


class LookupPeer:
    """The connection to one lookup daemon.

    Args:
        address: ``host:port`` of the daemon's TCP listener.
    """

    def __init__(
        self, broker: BrokerCore, identity: dict[str, object], address: str, *, is_replica: bool
    ) -> None:
        self._broker = broker
        self._identity = identity
        self._is_replica = is_replica
        self.address = address
        self.http_address = ""
        """The daemon's HTTP address; empty until it has reported it."""
        self._changes: dict[tuple[str, str], None] = {}
        self._changed = asyncio.Event()
        self._outage = Outage(
            f"LOOKUPD({address}): cannot register",
            f"LOOKUPD({address}): registered",
            log=log,
            level=logging.ERROR,
        )
        self._task = asyncio.get_running_loop().create_task(self._run())

    def notify(self, topic: str, channel: str = "") -> None:
        """Register or unregister a topic or channel."""
        self._changes.pop((topic, channel), None)
        self._changes[topic, channel] = None
        self._changed.set()

    async def close(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    reader, writer = await self._connect()
                try:
                    await self._introduce(reader, writer)
                    self._outage.over()
                    pause_s = _FIRST_PAUSE_S
                    await self._keep(reader, writer)
                finally:
                    self.http_address = ""
                    writer.close()
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                self._outage.failed(_reason(error))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._outage.is_on:
            log.info("LOOKUP connecting to %s", self.address)
        host, port = host_and_port(self.address)
        if not self._is_replica:
            return await asyncio.open_connection(host, port)
        sock = await asyncio.to_thread(_connect_high, host, port)
        return await asyncio.open_connection(sock=sock)

    async def _introduce(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(v1.MAGIC)
        (answer,) = await self._ask(reader, writer, [v1.identify(self._identity)])
        try:
            info = json.loads(answer)
            host, port = info["broadcast_address"], info["http_port"]
            if not isinstance(host, str) or type(port) is not int:
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError(f"IDENTIFY was answered {answer[:200]!r}") from None
        try:
            self.http_address = str(lookup_address(host, port))
        except ValueError as error:
            log.warning("LOOKUPD(%s): is not asked for channels: %s", self.address, error)
        log.info("LOOKUPD(%s): peer info %s", self.address, answer.decode(errors="replace"))
        self._changes.clear()
        await self._ask(reader, writer, list(self._everything()))

    def _everything(self) -> Iterator[bytes]:
        for topic in self._broker.topics.values():
            channels = [name for name, one in topic.channels.items() if _is_registered(one)]
            if not channels:
                yield v1.register(topic.name)
            for channel in channels:
                yield v1.register(topic.name, channel)

    async def _keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send changes and PINGs."""
        while True:
            self._changed.clear()
            changes, self._changes = self._changes, {}
            if changes:
                await self._ask(reader, writer, [self._news(*change) for change in changes])
            if not await self._changes_within(PING_S, reader):
                log.debug("LOOKUPD(%s): sending heartbeat", self.address)
                await self._ask(reader, writer, [v1.PING])

    async def _changes_within(self, seconds: float, reader: asyncio.StreamReader) -> bool:
        """Return whether anything changes within that time. Raises OSError if the daemon closes."""
        changed = asyncio.ensure_future(self._changed.wait())
        received = asyncio.ensure_future(reader.read(1))
        both = {changed, received}
        try:
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if received.done():
                said = received.result()
                raise ConnectionError(f"it sends {said!r} unasked" if said else "it hung up")
            return changed.done()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def _news(self, topic: str, channel: str) -> bytes:
        existing = self._broker.topics.get(topic)
        exists = existing is not None and (not channel or channel in existing.channels)
        command = (v1.register if exists else v1.unregister)(topic, channel)
        kind = "channel" if channel else "topic"
        log.info("LOOKUPD(%s): %s %s", self.address, kind, command.decode().strip())
        return command

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, commands: list[bytes]
    ) -> list[bytes]:
        """Send commands and read their answers. Raises ValueError for an error."""
        answers = []
        for at in range(0, len(commands), _COMMANDS_AT_ONCE):
            some = commands[at : at + _COMMANDS_AT_ONCE]
            async with asyncio.timeout(_ANSWER_S):
                writer.write(b"".join(some))
                await writer.drain()
                for command in some:
                    head = await reader.readexactly(4)
                    if head == b"HTTP":
                        raise ValueError(http_answered(unreachable.LOOKUP_DAEMON))
                    size = int.from_bytes(head, signed=True)
                    if not 0 <= size <= _MAX_ANSWER_BYTES:
                        raise ValueError(f"an answer of {size} bytes")
                    answer = await reader.readexactly(size)
                    if answer.startswith(b"E_"):
                        said = answer.decode(errors="replace")
                        raise ValueError(f"{command[:80]!r} was answered {said}")
                    answers.append(answer)
        return answers


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_ANSWER_S:g} s"
    if isinstance(error, asyncio.IncompleteReadError):
        return unreachable.loss(None)
    if isinstance(error, OSError):
        return unreachable.reason(error, unreachable.LOOKUP_DAEMON)
    return str(error) or type(error).__name__


class LookupPeers:
    """All lookup daemons that a broker registers with.

    Args:
        tcp_port, http_port: of the broker, -1 for a Unix socket.
    """

    def __init__(
        self,
        broker: BrokerCore,
        options: BrokerOptions,
        tcp_port: int,
        http_port: int,
        folder: DataFolder,
    ) -> None:
        self._broker = broker
        self._timeouts_s = (
            options.http_client_request_timeout_ns / SECOND_NS,
            options.http_client_connect_timeout_ns / SECOND_NS,
        )
        self._identity: dict[str, object] = {
            "version": NSQD_VERSION,
            "tcp_port": options.broadcast_tcp_port or tcp_port,
            "http_port": options.broadcast_http_port or http_port,
            "hostname": socket.gethostname(),
            "broadcast_address": options.broadcast_address,
            "topology_zone": options.topology_zone,
            "topology_region": options.topology_region,
            # nsqlookupd ignores it.
            "martlet": folder.identity,
        }
        self._is_replica = bool(options.replica_name)
        if self._is_replica:
            self._identity["martlet"] = {
                "broker": folder.broker_id,
                "replica": options.replica_name,
                "epoch": broker.log.epoch,
            }
        self._peers: dict[str, LookupPeer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def set_addresses(self, addresses: tuple[str, ...]) -> None:
        """Register with these daemons from now on, and no others."""
        for address in [a for a in self._peers if a not in addresses]:
            log.info("LOOKUP(%s): removing peer", address)
            await self._peers.pop(address).close()
        for address in addresses:
            if address not in self._peers:
                log.info("LOOKUP(%s): adding peer", address)
                self._peers[address] = LookupPeer(
                    self._broker, self._identity, address, is_replica=self._is_replica
                )

    async def close(self) -> None:
        """Close all connections."""
        await self.set_addresses(())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def topic_changed(self, topic: Topic) -> None:
        """Register a new topic or unregister a deleted one."""
        for peer in self._peers.values():
            peer.notify(topic.name)
        daemons = [peer.http_address for peer in self._peers.values() if peer.http_address]
        if daemons and self._broker.topics.get(topic.name) is topic and not topic.channels:
            task = asyncio.get_running_loop().create_task(self._adopt_channels(topic, daemons))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def channel_changed(self, topic: Topic, channel: Channel) -> None:
        """Register a new channel or unregister a deleted one."""
        if not _is_registered(channel):
            return
        for peer in self._peers.values():
            peer.notify(topic.name, channel.name)

    async def _adopt_channels(self, topic: Topic, daemons: list[str]) -> None:
        """Create the channels that a new topic has at other brokers; they get all its messages."""
        starts = {part.number: part.backlog_offset for part in topic.at_queues}
        answers = await asyncio.gather(
            *(self._channels(topic.name, address) for address in daemons)
        )
        for name in dict.fromkeys(name for names in answers for name in names):
            exists = self._broker.topics.get(topic.name) is topic
            if exists and name not in topic.channels:
                try:
                    # A queue added meanwhile is as new as the topic.
                    starts = {part.number: starts.get(part.number, 0) for part in topic.at_queues}
                    topic.channel(name, starts, policy=ChannelPolicy(from_lookup=True))
                except WritesRefused as error:
                    log.error("TOPIC(%s): channel(%s) is not made: %s", topic.name, name, error)

    async def _channels(self, topic: str, address: str) -> list[str]:
        await load_aiohttp()
        from aiohttp import ClientError, ClientSession, ClientTimeout

        total_s, connect_s = self._timeouts_s
        timeout = ClientTimeout(total=total_s, connect=connect_s)
        try:
            async with (
                ClientSession(timeout=timeout) as session,
                session.get(
                    f"http://{address}/channels", params={"topic": topic}, allow_redirects=False
                ) as response,
            ):
                names = (await read_json(response, _MAX_ANSWER_BYTES))["channels"]
                return [
                    name
                    for name in names
                    if isinstance(name, str) and is_valid_name(name) and not is_ephemeral(name)
                ]
        except (ClientError, TimeoutError, ValueError, TypeError, KeyError) as error:
            reason = str(error) or type(error).__name__
            log.warning("LOOKUPD: the channels of %s are not known: %s", topic, reason)
            return []


def _is_registered(channel: Channel) -> bool:
    """Return whether other brokers create the channel too; an external reader creates its own."""
    return channel.policy.kind != "follower"
