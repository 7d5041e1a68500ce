"""Two brokers on equal clocks: one with the compiled hot path, one that is Python alone."""

from __future__ import annotations

import asyncio
import random
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from martlet.broker.channel.channel import Channel
from martlet.broker.journal.cursors import encode_cursor
from martlet.native import FED, SERVED, native
from martlet.options import BrokerOptions
from martlet.server import build
from martlet.server.build import build_server
from martlet.server.flusher import Flusher
from martlet.server.nsq.compiled_path import CompiledPath
from martlet.testing import SimulatedClock


class FixedClock(SimulatedClock):
    """Time that passes when the test says so, and is never set."""

    def beat(self) -> None:
        pass


class SocketTransport(asyncio.Transport):
    """A transport that sends at once; its other end belongs to the test."""

    def __init__(self) -> None:
        self.server, self.client = socket.socketpair()
        super().__init__({"peername": ("127.0.0.1", 1), "socket": self.server})
        self.server.setblocking(False)
        self.client.setblocking(False)
        self.closed = self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Hold nothing back."""

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        if not self.closed:
            assert self.server.send(data) == len(data)

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return asyncio.Protocol()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class TwinClient:
    """A client of one of the brokers."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.transport = SocketTransport()
        self.connection = twin.server.connect()
        self.connection.connection_made(self.transport)
        twin.clients.append(self)
        self.is_lost = False
        self.is_blocked = False
        self._unsent = bytearray()
        """What the socket does not take, as the broker reads nothing."""

    def block(self, blocked: bool) -> None:
        """Have its output full, or empty again."""
        if blocked != self.is_blocked and not self.transport.closed:
            self.is_blocked = blocked
            if blocked:
                self.connection.pause_writing()
            else:
                self.connection.resume_writing()

    def send(self, *inputs: bytes) -> None:
        """Send bytes, and let the broker handle them, as far as it reads any.

        Several inputs are received one by one, all in one turn of the loop.
        """
        for number, data in enumerate(inputs, 1):
            if self.transport.closed:
                break
            self._unsent += data
            self._push()
            if number < len(inputs) and self._is_read():
                self.twin.receive(self, ends_turn=False)
        while self._is_read() and self.twin.receive(self):
            self._push()

    def _push(self) -> None:
        """Put as much into the socket as it takes."""
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self.transport.client.send(self._unsent)]

    def _is_read(self) -> bool:
        return not (self.transport.closed or self.transport.paused)

    def received(self) -> bytes:
        """Return what the broker has sent since the last call."""
        with suppress(BlockingIOError):
            return self.transport.client.recv(1 << 20)
        return b""

    def leave(self) -> None:
        """Lose the connection."""
        if not self.is_lost:
            self.is_lost = True
            self.transport.closed = True
            self.connection.connection_lost(None)
            self.transport.client.close()
            self.transport.server.close()


class Twin:
    """A broker that is fed by hand.

    Args:
        folder: its data folder.
        compiled: whether it has the compiled hot path.
        flush: the flush mode. A flush takes no time, so it runs in the event loop.
    """

    def __init__(
        self, folder: Path, *, compiled: bool, segment_bytes: int, flush: str = "async"
    ) -> None:
        self.compiled = compiled
        self.clients: list[TwinClient] = []
        self.clock = FixedClock()
        self.served_count = 0
        self.epoll = select.epoll()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build, "Clock", lambda: self.clock)
            patch.setattr(random, "SystemRandom", lambda: random.Random(7))
            patch.setattr("martlet.server.nsq.publish.open_compiled_path", self._compiled_path)
            options = BrokerOptions(
                tcp_address="127.0.0.1:0",
                http_address="",
                data_path=str(folder),
                max_bytes_per_file=segment_bytes,
                max_msg_size=4000,
                max_body_size=20_000,
                mem_queue_size=8,  # of ephemeral topics and channels
                flush=flush,
            )
            self.server = build_server(options)
        self.server.flusher._clock_s = lambda: 0.0
        self.server.flusher._recent_s = 1e-9
        self.broker = self.server.broker
        # It goes by the real clock; `pass_time` writes the journal instead.
        self.server.commits._journal.turn_ended = lambda: None  # type: ignore[method-assign]

    def _compiled_path(
        self, broker: Any, received: bytearray, flusher: Flusher | None
    ) -> CompiledPath | None:
        if not self.compiled:
            return None
        assert native is not None
        return CompiledPath(native, self.epoll.fileno(), broker, received, flusher)

    @contextmanager
    def own_way(self) -> Iterator[None]:
        """Decode in the way of this broker."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("martlet.native.raw_bodies.native", native if self.compiled else None)
            # The loop would go on with commands that take longer; here no loop runs.
            patch.setattr("martlet.server.clock.SLICE_NS", 10**12)
            yield

    def receive(self, client: TwinClient, *, ends_turn: bool = True) -> bool:
        """Handle input of a client, and end the turn. Returns whether there was any."""
        with self.own_way():
            if not self._receive(client):
                return False
            if ends_turn:
                self.server.commits.end_tick()
            return True

    def _receive(self, client: TwinClient) -> bool:
        connection, server = client.connection, client.transport.server
        serve = self.server.commits.ticks.serve
        if serve is not None:
            self.epoll.register(server.fileno(), select.EPOLLIN)
            try:
                done = serve(0, 10**9)
            finally:
                self.epoll.unregister(server.fileno())
            self.served_count += bool(done & SERVED)
            if done & (FED | SERVED):
                return True
        try:
            count = server.recv_into(connection.get_buffer(-1))
        except BlockingIOError:
            return False
        connection.buffer_updated(count)
        return True

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and what is due happen."""
        self.clock.advance(int(seconds * 1e9))
        with self.own_way():
            self.broker.schedule.run(self.clock.now_ns)
            self.broker.write_journal()
            self.server.commits.end_tick()

    def state(self) -> dict[str, Any]:
        """Return all that has to be equal, but for the numbers of started messages."""
        broker, log = self.broker, self.broker.log
        segment = log.segments[-1]
        state: dict[str, Any] = {
            "position": log.position,
            "log": bytes(segment.view[: log.position - segment.base]),
            "stored": (broker.stored_count, broker.last_stored_ns),
            "durable": log.durable_position,
        }
        for topic in broker.queues.values():
            queue = topic.queue
            state[f"topic {topic.id}"] = (
                queue.end_offset,
                queue.visible_end,
                queue.message_bytes,
                topic.message_count,
                queue.index.rows(0, queue.index.end_row)[-20:],
            )
            for channel in topic.channels.values():
                state[f"channel {topic.id} {channel.name}"] = _channel_state(channel)
        return state

    def close(self) -> None:
        """Lose its clients, and release the folder."""
        for client in self.clients:
            client.leave()
        self.server.flusher.close()
        self.server.listeners.close()
        self.server.folder.close()
        self.epoll.close()


def _channel_state(channel: Channel) -> tuple[object, ...]:
    window = channel.cursor.window
    held = window._holders[window.floor - window._origin : window.next - window._origin]
    pending = channel.cursor.pending.by_offset
    return (
        encode_cursor(channel.id, channel.cursor, 0, full=True),
        (window.floor, window.next, window._origin, held.tolist()),
        [(offset, pending[offset].attempts) for offset in sorted(pending)],
        (channel.finishes.counts, channel.finishes.sum_ns, channel.dirty, channel.alarm.set_for_ns),
        (channel.retry_count, channel.timeout_count, channel.requeue_count),
        [event[:4] for event in channel.recorder._events] if channel.recorder is not None else None,
        [
            (
                consumer.number,
                consumer.ready_count,
                consumer.in_flight_count,
                consumer.message_count,
                consumer.finish_count,
                consumer.answered,
                consumer.is_ready,
                [lease[:3] for lease in consumer.leases],
            )
            for consumer in channel.consumers
        ],
    )
