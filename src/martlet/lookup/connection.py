"""A broker's connection to the lookup daemon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypedDict, cast

from martlet.addresses import lookup_address, shown_peer
from martlet.lookup.registry import Peer, Registry
from martlet.names import is_valid_name
from martlet.protocol import lookup as v1
from martlet.protocol.nsq.v2 import ProtocolError
from martlet.server.nsq.lingering_close import take_leave

log = logging.getLogger(__name__)

_UNIX_SOCKET = -1
"""The port of a listener without one, as nsqd says it."""

COMMAND_S = 20.0
"""How long a broker may take for its IDENTIFY, from connecting, and for the rest of a command that
it has begun.
"""


class LookupConnection(asyncio.Protocol):
    """The connection of one broker.

    Args:
        clock: nanoseconds.
        connections: all that are open.
        max_connections: the limit of those, 0 for none.
        describe: returns the answer to IDENTIFY.
    """

    def __init__(
        self,
        registry: Registry,
        clock: Callable[[], int],
        connections: set[LookupConnection],
        max_connections: int,
        describe: Callable[[], bytes],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._connections = connections
        self._max_connections = max_connections
        self._describe = describe
        self._decoder = v1.LookupDecoder(is_valid_name)
        self._peer: Peer | None = None
        self._limit: asyncio.TimerHandle | None = None
        """Ends the connection unless a command comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or abort one beyond the limit."""
        self._transport = cast(asyncio.Transport, transport)
        self.remote_address = shown_peer(transport)
        log.info("TCP: new client(%s)", self.remote_address)
        self._connections.add(self)
        if self._max_connections and len(self._connections) > self._max_connections:
            log.error("TCP: client(%s) refused: see --max-connections", self.remote_address)
            self._transport.abort()
        self._limit_time()

    def _limit_time(self) -> None:
        """Limit the time of a command that has begun, and of the first one."""
        if self._decoder.identified and not self._decoder.has_begun:
            self._stop_limit()
        elif self._limit is None:
            self._limit = asyncio.get_running_loop().call_later(COMMAND_S, self._be_too_slow)

    def _stop_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _be_too_slow(self) -> None:
        what = "the rest of its command" if self._decoder.identified else "its IDENTIFY"
        log.error("TCP: client(%s) has not sent %s: closing", self.remote_address, what)
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the broker and what it has."""
        self._connections.discard(self)
        self._stop_limit()
        self._leave()
        log.info("PROTOCOL(V1): [%s] exiting", self.remote_address)

    def _leave(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            self._registry.leave(peer)

    def data_received(self, data: bytes) -> None:
        """Answer the commands that the bytes complete."""
        self._decoder.feed(data)
        try:
            while (command := self._decoder.next()) is not None:
                self._transport.write(v1.answer(self._answer(command)))
                if self._decoder.identified:
                    self._stop_limit()
            self._limit_time()
        except ProtocolError as error:
            log.error("[%s] - %s", self.remote_address, error)
            self._transport.write(v1.answer(str(error).strip().encode()))
            take_leave(self._transport)

    def pause_writing(self) -> None:
        """Read no commands of a broker that does not read its answers."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read commands again."""
        self._transport.resume_reading()

    def close(self) -> None:
        """Close, once all answers are sent."""
        self._transport.close()

    def _answer(self, command: v1.Command) -> bytes:
        registry, peer = self._registry, self._peer
        if isinstance(command, v1.LookupIdentify):
            return self._identify(command.fields)
        if isinstance(command, v1.Ping):
            if peer is not None:
                registry.ping(peer)
            return v1.OK
        assert peer is not None
        verb = "REGISTER" if isinstance(command, v1.Register) else "UNREGISTER"
        category = "channel" if command.channel else "topic"
        log.info(
            "DB: client(%s) %s category:%s key:%s subkey:%s",
            self.remote_address, verb, category, command.topic, command.channel,
        )  # fmt: skip
        if isinstance(command, v1.Register):
            registry.register(peer, command.topic, command.channel)
        else:
            registry.unregister(peer, command.topic, command.channel)
        return v1.OK

    def _identify(self, fields: dict[str, object]) -> bytes:
        values = {name.lower(): value for name, value in fields.items()}
        names = ("hostname", "broadcast_address", "version", "topology_zone", "topology_region")
        ports = ("tcp_port", "http_port")
        valid = all(isinstance(values.get(name) or "", str) for name in names) and all(
            type(values.get(name) or 0) is int for name in ports
        )
        if not valid:
            raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
        if not all(values.get(name) for name in ("broadcast_address", "version", *ports)):
            raise ProtocolError("E_BAD_BODY", "IDENTIFY missing fields")
        texts = {name: str(values.get(name) or "") for name in names}
        tcp_port, http_port = (cast(int, values[name]) for name in ports)
        _check_reachable(texts["broadcast_address"], tcp_port, http_port)
        peer = Peer(
            id=self.remote_address,
            hostname=texts["hostname"],
            broadcast_address=texts["broadcast_address"],
            tcp_port=tcp_port,
            http_port=http_port,
            version=texts["version"],
            topology_zone=texts["topology_zone"],
            topology_region=texts["topology_region"],
            last_ns=self._clock(),
            **_primary(values.get("martlet")),
        )
        self._replace_primary(peer)
        self._peer = peer
        self._decoder.identified = True
        self._registry.join(peer)
        for other in self._registry.copies(peer):
            log.warning(
                "the brokers at %s:%d and %s:%d both have the id %s: unless the first one is gone,"
                " their data folders are copies, and readers refuse them. Stop one, and delete its"
                " broker.json: it begins again as a broker of its own",
                other.broadcast_address, other.tcp_port, peer.broadcast_address, peer.tcp_port,
                peer.broker,
            )  # fmt: skip
        log.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self.remote_address, texts["broadcast_address"], tcp_port, http_port,
            texts["version"],
        )  # fmt: skip
        return self._describe()

    def _replace_primary(self, peer: Peer) -> None:
        """Drop the primary before this one, which may hang or be cut off."""
        before = self._registry.primaries(peer.replicated_broker)
        if any(other.epoch > peer.epoch for other in before):
            raise ProtocolError("E_INVALID", "a later primary of the broker is registered")
        connections = [other for other in self._connections if other._peer in before]
        for connection in connections:
            connection._leave()
            connection._transport.abort()


def _check_reachable(host: str, *ports: int) -> None:
    """Refuse a broker that no client could reach: readers make URLs of its address."""
    for port in ports:
        if port == _UNIX_SOCKET:
            port = 1
        try:
            lookup_address(host, port)
        except ValueError as error:
            raise ProtocolError("E_BAD_BODY", f"IDENTIFY {error}") from None


class _Primary(TypedDict, total=False):
    replicated_broker: str
    epoch: int
    broker: str
    run: str


def _primary(fields: object) -> _Primary:
    """Return the fields of a broker of Martlet; none of any other."""
    match fields:
        case {"broker": str(broker), "replica": str(), "epoch": int(epoch)}:
            return {"replicated_broker": broker, "epoch": epoch}
        case {"broker": str(broker), "run": str(run)}:
            return {"broker": broker, "run": run}
    return {}
