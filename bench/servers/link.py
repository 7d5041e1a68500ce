"""A blocking connection of the load generator: sends bytes made before, and counts answers.

It must cost less than any server that it measures, so nothing is made of an answer that is OK:
what came is compared with as many OKs.  Only what differs (a heartbeat, an error, half a frame)
goes through the splitter of frames.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

from martlet.protocol.nsq import commands
from martlet.protocol.nsq.frames import ErrorReply, FrameSplitter, Piece, Response
from martlet.protocol.nsq.message_run import MessageRun

HEARTBEAT = b"_heartbeat_"
OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
MAX_OKS = 4096
"""The answers that are waited for at once at most."""
SPACE_BYTES = 1 << 20
ANSWER_S = 30.0
"""The time that a server may take to answer before the run fails."""

_OKS = OK_FRAME * MAX_OKS
_TIME = struct.Struct("@ll")


class LoadFailed(Exception):
    """The server refused or broke off a load; the text says how."""


class BenchConnection:
    """A connection to a server, identified."""

    def __init__(self, host: str, port: int) -> None:
        """Connect and identify.

        Raises:
            LoadFailed: no NSQ server answers there.
        """
        self._address = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), timeout=ANSWER_S)
        except OSError as error:
            raise LoadFailed(f"{self._address}: cannot connect: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.set_patience(ANSWER_S)
        self._splitter = FrameSplitter(space_bytes=SPACE_BYTES)
        self._answers = bytearray(len(OK_FRAME) * MAX_OKS)
        fields = {"client_id": "bench", "hostname": "bench", "user_agent": "martlet-bench"}
        try:
            self.send(commands.MAGIC + commands.identify({**fields, "feature_negotiation": False}))
            self.wait_ok()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> BenchConnection:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def send(self, data: bytes | memoryview) -> None:
        """Send everything."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise LoadFailed(f"{self._address}: cannot send: {error}") from error

    def wait_ok(self) -> None:
        """Wait until one command is answered with OK."""
        while not self.receive_oks():
            pass

    def receive_oks(self) -> int:
        """Wait for bytes, and return how many OKs they complete; heartbeats are answered.

        Raises:
            LoadFailed: something else came, or nothing.
        """
        answers = self._answers
        try:
            count = self._socket.recv_into(answers)
        except OSError as error:
            raise LoadFailed(f"{self._address}: no answer: {error}") from error
        if not count:
            raise LoadFailed(f"{self._address}: the server closed the connection")
        received = bytes(memoryview(answers)[:count])
        oks, rest = divmod(count, len(OK_FRAME))
        if not rest and not self._splitter.pending_bytes and _OKS.startswith(received):
            return oks
        pieces = self._check(self._splitter.feed(received))
        return sum(isinstance(piece, Response) and piece.data == b"OK" for piece in pieces)

    def _check(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Answer heartbeats, and return the other pieces."""
        kept: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, ErrorReply):
                raise LoadFailed(f"{self._address}: {piece.data.decode('utf-8', 'replace')}")
            if isinstance(piece, Response) and piece.data == HEARTBEAT:
                self.send(commands.NOP)
            else:
                kept.append(piece)
        return kept

    def set_patience(self, seconds: float) -> None:
        """Limit the wait for bytes.

        By the kernel: Python's own timeout would poll before each call, which takes as long as
        the call.
        """
        self._socket.settimeout(None)
        time = _TIME.pack(int(seconds), int(seconds % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(int(ANSWER_S), 0))

    def receive_runs(self) -> list[MessageRun] | None:
        """Wait for messages and return the complete runs; None if nothing came."""
        try:
            count = self._socket.recv_into(self._splitter.space())
        except BlockingIOError:
            return None
        except OSError as error:
            raise LoadFailed(f"{self._address}: cannot receive: {error}") from error
        if not count:
            raise LoadFailed(f"{self._address}: the server closed the connection")
        pieces = self._check(self._splitter.received(count))
        return [piece for piece in pieces if isinstance(piece, MessageRun)]
