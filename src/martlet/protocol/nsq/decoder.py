"""The decoder: bytes of a V2 connection in, commands out (see `martlet.protocol.nsq.v2`)."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

from martlet.properties.block import read
from martlet.properties.model import MAX_BYTES, BadProperties
from martlet.protocol.nsq.bulk import (
    finish_run,
    publish_run,
    split_bodies,
    whole_bodies,
)
from martlet.protocol.nsq.v2 import (
    ALLOWED,
    EXTENSIONS,
    MAX_LINE_BYTES,
    Auth,
    Call,
    Close,
    Command,
    Finish,
    FinishRun,
    IdentifyCommand,
    LineTooLong,
    Nop,
    ParserState,
    ProtocolError,
    ProtocolLimits,
    PublishCommand,
    Ready,
    RequeueCommand,
    SendCommand,
    StartedCommand,
    Subscribe,
    Touch,
    quoted,
)

MAX_LONE_BYTES = 1 << 14
"""A longer body gains nothing from the fast path of single publishes."""
FEW = 4
"""Shorter runs than this are decoded faster one by one."""

_SINGLE_SEND_BYTES = MAX_BYTES + MAX_LINE_BYTES
"""The maximum bytes of a SEND of one message besides its body: properties and options."""
_SIZE = struct.Struct(">i")
_CLOSE = Close()
_NOP = Nop()
_MAX_KNOWN_LINES = 1024
_MAX_KNOWN_LINE_BYTES = 128
"""Longer lines are not cached: they are more than a topic, and would fill the cache."""
_F = ord("F")
_FINISH_LINE_BYTES = 20
_FINISHING = ALLOWED[b"FIN"]
_WITH_BODY = frozenset({b"IDENTIFY", b"AUTH", b"PUB", b"MPUB", b"DPUB", b"SEND", b"CALL"})
_MAX_METHOD_LENGTH = 64


class Decoder:
    """Decodes commands from a buffer.

    The buffer belongs to the connection. `decode` gets the filled bytes and returns the next
    command with the offset behind it, or None when more bytes are needed; `wanted_bytes` is then
    the command's total size, as far as it is known.

    Args:
        limits: the maximum sizes and counts.
        is_valid_name: the rule for names.
    """

    def __init__(self, limits: ProtocolLimits, is_valid_name: Callable[[str], bool]) -> None:
        self.limits = limits
        self.state = ParserState.INIT
        self.needs_tls = False
        """Whether the connection must upgrade to TLS before any other command."""
        self.extended = False
        """Whether the client may use Martlet's extensions."""
        self.admit: Callable[[str, str], bool] | None = None
        """Called with a verb and a topic before the body is complete, to check whether the client
        may publish: it raises ProtocolError if not, and returns False to have the command decoded
        again later.
        """
        self.wanted_bytes = 0
        self.max_lone = min(limits.max_msg_size, MAX_LONE_BYTES)
        self._is_valid_name = is_valid_name
        self._known_lines: dict[bytes, tuple[str, str]] = {}
        self._walked = 0, 0
        """Of an MPUB that is not whole: its whole messages, and their bytes."""

    def decode(self, buffer: bytearray, at: int, end: int) -> tuple[Command, int] | None:
        """Decode the command at byte `at`. Raises ProtocolError."""
        if buffer[at] == _F and end - at >= FEW * 21 and self.state in ALLOWED[b"FIN"]:
            ids = finish_run(buffer, at, end)
            if ids is not None:
                return FinishRun(ids), at + 21 * len(ids)
        newline = buffer.find(b"\n", at, min(end, at + MAX_LINE_BYTES))
        if newline < 0:
            if end - at >= MAX_LINE_BYTES:
                raise LineTooLong(f"no newline in {MAX_LINE_BYTES} bytes")
            self.wanted_bytes = 0
            return None
        length = newline - at
        if (
            length == _FINISH_LINE_BYTES
            and buffer.startswith(b"FIN ", at)
            and self.state in _FINISHING
        ):
            return Finish(bytes(buffer[at + 4 : newline])), newline + 1
        line = bytes(buffer[at:newline])
        head = self._known_lines.get(line)
        if head is not None:
            return self._publish(*head, buffer, at, newline + 1, end)
        words = line.removesuffix(b"\r").split(b" ")
        if self.needs_tls and words[0] != b"IDENTIFY":
            name = _text(words[0])
            raise ProtocolError("E_INVALID", f"cannot {name} in current state (TLS required)")
        allowed = ALLOWED.get(words[0])
        if allowed is None or (words[0] in EXTENSIONS and not self.extended):
            raise ProtocolError("E_INVALID", f"invalid command {_text(words[0])}")
        if self.state not in allowed:
            name = words[0].decode()
            raise ProtocolError("E_INVALID", f"cannot {name} in current state")
        if words[0] in _WITH_BODY:
            return self._with_body(words, line, buffer, at, newline + 1, end)
        return self._plain(words), newline + 1

    def lone_publish(self, buffer: bytearray, end: int) -> tuple[str, int] | None:
        """Return the topic of a PUB and the start of its body if the buffer holds only this one,
        and its line is known from an earlier one. None means nothing about the buffer's content.
        """
        newline = buffer.find(b"\n", 0, _MAX_KNOWN_LINE_BYTES)
        head = self._known_lines.get(bytes(buffer[:newline])) if newline > 0 else None
        if head is None or head[0] != "PUB":
            return None
        start = newline + 5
        size = end - start
        if not 0 < size <= self.max_lone or _SIZE.unpack_from(buffer, newline + 1)[0] != size:
            return None
        return head[1], start

    def _plain(self, words: list[bytes]) -> Command:
        """Decode a command that is only a line."""
        verb = words[0]
        if verb == b"FIN":
            _at_least(words, 2, "FIN insufficient number of params")
            return Finish(_message_id(words[1]))
        if verb == b"RDY":
            return self._ready(words)
        if verb == b"NOP":
            return _NOP
        if verb == b"REQ":
            _at_least(words, 3, "REQ insufficient number of params")
            id = _message_id(words[1])
            return RequeueCommand(id, _number(words[2], "REQ could not parse timeout"))
        if verb == b"TOUCH":
            _at_least(words, 2, "TOUCH insufficient number of params")
            return Touch(_message_id(words[1]))
        if verb == b"CLS":
            return _CLOSE
        if verb == b"STARTED":
            _at_least(words, 2, "STARTED insufficient number of params")
            return StartedCommand(_message_id(words[1]))
        _at_least(words, 3, "SUB insufficient number of parameters")
        for word, what, code in ((words[1], "topic", "TOPIC"), (words[2], "channel", "CHANNEL")):
            if not self._is_valid_name(_text(word)):
                raise ProtocolError(f"E_BAD_{code}", f"SUB {what} name {quoted(word)} is not valid")
        return Subscribe(_text(words[1]), _text(words[2]))

    def _ready(self, words: list[bytes]) -> Ready:
        count = _number(words[1], "RDY could not parse count") if len(words) > 1 else 1
        if count > self.limits.max_rdy_count:
            raise ProtocolError(
                "E_INVALID", f"RDY count {count} out of range 0-{self.limits.max_rdy_count}"
            )
        return Ready(count)

    def _with_body(
        self, words: list[bytes], line: bytes, buffer: bytearray, at: int, body_at: int, end: int
    ) -> tuple[Command, int] | None:
        verb = words[0].decode()
        if verb == "CALL":
            return self._call(words, buffer, at, body_at, end)
        if verb in ("IDENTIFY", "AUTH"):
            if verb == "AUTH" and len(words) != 1:
                raise ProtocolError("E_INVALID", "AUTH invalid number of parameters")
            body = self._body(verb, "", self.limits.max_body_size, buffer, at, body_at, end)
            if body is None:
                return None
            start, stop = body
            data = bytes(buffer[start:stop])
            return (_identify(data) if verb == "IDENTIFY" else Auth(data)), stop
        _at_least(words, 3 if verb == "DPUB" else 2, f"{verb} insufficient number of parameters")
        topic = _text(words[1])
        if not self._is_valid_name(topic):
            again = "E_BAD_TOPIC " if verb == "MPUB" else ""
            raise ProtocolError(
                "E_BAD_TOPIC", f"{again}{verb} topic name {quoted(words[1])} is not valid"
            )
        if verb == "DPUB":
            return self._deferred(words, topic, buffer, at, body_at, end)
        if verb == "SEND":
            return self._send(topic, buffer, at, body_at, end)
        if len(line) <= _MAX_KNOWN_LINE_BYTES:
            if len(self._known_lines) >= _MAX_KNOWN_LINES:
                self._known_lines.clear()
            self._known_lines[line] = (verb, topic)
        return self._publish(verb, topic, buffer, at, body_at, end)

    def _publish(
        self, verb: str, topic: str, buffer: bytearray, at: int, body_at: int, end: int
    ) -> tuple[Command, int] | None:
        if verb == "MPUB":
            return self._publish_many(topic, buffer, at, body_at, end)
        start = body_at + 4
        size = _SIZE.unpack_from(buffer, body_at)[0] if start <= end else 0
        stop = start + size
        if not 0 < size <= self.limits.max_msg_size or stop > end:
            limit = self.limits.max_msg_size
            body = self._body(verb, "message ", limit, buffer, at, body_at, end)
            assert body is None
            self._ask(verb, topic, body_at, end)
            return None
        if end - at >= FEW * (stop - at):
            bodies, stop = publish_run(
                buffer, at, end, body_at - at, size, self.limits.max_msg_size
            )
            return PublishCommand(verb, topic, bodies, len(bodies), None), stop
        return PublishCommand(verb, topic, [bytes(buffer[start:stop])], 1, None), stop

    def _deferred(
        self, words: list[bytes], topic: str, buffer: bytearray, at: int, body_at: int, end: int
    ) -> tuple[Command, int] | None:
        delay_ms = _number(words[2], "DPUB could not parse timeout")
        max_ms = self.limits.max_req_timeout_ms
        if delay_ms > max_ms:
            raise ProtocolError("E_INVALID", f"DPUB timeout {delay_ms} out of range 0-{max_ms}")
        body = self._body("DPUB", "message ", self.limits.max_msg_size, buffer, at, body_at, end)
        if body is None:
            self._ask("DPUB", topic, body_at, end)
            return None
        start, stop = body
        return PublishCommand("DPUB", topic, [bytes(buffer[start:stop])], 1, delay_ms), stop

    def _publish_many(
        self, topic: str, buffer: bytearray, at: int, body_at: int, end: int
    ) -> tuple[Command, int] | None:
        if self.admit is not None and not self.admit("MPUB", topic):
            return None
        body = self._body("MPUB", "", self.limits.max_body_size, buffer, at, body_at, end)
        first = body_at + 8
        if end < first:
            self.wanted_bytes = max(self.wanted_bytes, first - at) if body is None else first - at
            return None
        count = self._message_count(buffer, body_at + 4, end)
        if body is not None:
            bodies = split_bodies(buffer, first, body[1], count, self.limits.max_msg_size)
            if bodies is not None:
                self._walked = 0, 0
                return PublishCommand("MPUB", topic, bodies, 1, None), body[1]
            self.wanted_bytes = 0
        return self._walk_messages(topic, buffer, at, first, end, count)

    def _walk_messages(
        self, topic: str, buffer: bytearray, at: int, first: int, end: int, count: int
    ) -> tuple[Command, int] | None:
        """Decode an MPUB by its count and the sizes of its messages, as nsqd does: it ends behind
        its last message, whatever its own size says. Some clients count the bodies alone.

        nsqd limits each message and their count; here the bodies have --max-body-size together.
        """
        max_size, max_total = self.limits.max_msg_size, self.limits.max_body_size
        done, walked = self._walked
        more, body_at = whole_bodies(buffer, first + walked, end, count - done, max_size)
        done += more
        stop, size = body_at + 4, 0
        if done < count and stop <= end:
            (size,) = _SIZE.unpack_from(buffer, body_at)
            if not 0 < size <= max_size:
                raise self._bad_bodies(buffer, body_at, end, 1, first_number=done)
            stop += size
        total = body_at - first - 4 * done + size
        if total > max_total:
            raise ProtocolError("E_BAD_BODY", f"MPUB body too big {total} > {max_total}")
        if done < count:
            self._walked = done, body_at - first
            self.wanted_bytes = max(self.wanted_bytes, stop - at)
            return None
        self._walked = 0, 0
        bodies = split_bodies(buffer, first, body_at, count, max_size)
        assert bodies is not None, "all have been walked over"
        return PublishCommand("MPUB", topic, bodies, 1, None), body_at

    def _send(
        self, topic: str, buffer: bytearray, at: int, body_at: int, end: int
    ) -> tuple[Command, int] | None:
        max_size = self.limits.max_body_size
        limit = max(max_size, self.limits.max_msg_size + _SINGLE_SEND_BYTES)
        body = self._body("SEND", "", limit, buffer, at, body_at, end)
        if body is None:
            self._ask("SEND", topic, body_at, end)
            return None
        start, stop = body
        size = stop - start
        options, start = self._piece("SEND", "options", buffer, start, stop)
        block, start = self._piece("SEND", "properties", buffer, start, stop)
        count = self._message_count(buffer, start, stop, "SEND")
        if count > 1 and size > max_size:
            raise ProtocolError(
                "E_BAD_BODY",
                f"SEND of {count} messages too big {size} > {max_size} (--max-body-size)",
            )
        bodies = split_bodies(buffer, start + 4, stop, count, self.limits.max_msg_size)
        if bodies is None:
            raise self._bad_bodies(buffer, start + 4, stop, count, "SEND")
        fields = _object("SEND", options)
        try:
            properties = read(block, count) if block else ()
        except BadProperties as error:
            raise ProtocolError("E_BAD_MESSAGE", f"SEND {error}") from None
        return SendCommand(topic, fields, bodies, properties), stop

    def _piece(
        self, verb: str, what: str, buffer: bytearray, start: int, stop: int
    ) -> tuple[bytes, int]:
        """Return bytes of a body behind their size, and the start of the next one."""
        size = _SIZE.unpack_from(buffer, start)[0] if start + 4 <= stop else -1
        if not 0 <= size <= stop - start - 4:
            raise ProtocolError("E_BAD_BODY", f"{verb} failed to read {what}")
        return bytes(buffer[start + 4 : start + 4 + size]), start + 4 + size

    def _call(
        self, words: list[bytes], buffer: bytearray, at: int, body_at: int, end: int
    ) -> tuple[Command, int] | None:
        _at_least(words, 3, "CALL insufficient number of parameters")
        number = _number(words[1], "CALL could not parse number")
        if number > 0xFFFF_FFFF or len(words[2]) > _MAX_METHOD_LENGTH:
            raise ProtocolError("E_INVALID", "CALL number or method out of range")
        body = self._body("CALL", "", self.limits.max_body_size, buffer, at, body_at, end)
        if body is None:
            return None
        start, stop = body
        fields = _object("CALL", bytes(buffer[start:stop]))
        return Call(number, _text(words[2]), fields), stop

    def _ask(self, verb: str, topic: str, body_at: int, end: int) -> None:
        """Whether to wait for a body whose size is known."""
        if self.admit is not None and end - body_at >= 4:
            self.admit(verb, topic)

    def cut_off(self, buffer: bytearray, end: int) -> ProtocolError | None:
        """Return the error for a client that disconnected in the middle of the buffer's command;
        None in the middle of a line, where nsqd sends nothing.
        """
        newline = buffer.find(b"\n", 0, end)
        if newline < 0:
            return None
        verb = _text(bytes(buffer[:newline]).split(b" ")[0])
        body_at = newline + 1
        if verb == "MPUB" and end >= body_at + 4:
            count = 0
            if end >= body_at + 8:
                count = _SIZE.unpack_from(buffer, body_at + 4)[0]
            if not count:
                return ProtocolError("E_BAD_BODY", "MPUB failed to read message count")
            return self._bad_bodies(buffer, body_at + 8, end, count)
        what = "message body" if verb in ("PUB", "DPUB") else "body"
        code = "E_BAD_MESSAGE" if verb in ("PUB", "DPUB") else "E_BAD_BODY"
        size = " size" if end < body_at + 4 else ""
        return ProtocolError(code, f"{verb} failed to read {what}{size}")

    def _message_count(self, buffer: bytearray, start: int, stop: int, verb: str = "MPUB") -> int:
        if stop - start < 4:
            raise ProtocolError("E_BAD_BODY", f"{verb} failed to read message count")
        count: int = _SIZE.unpack_from(buffer, start)[0]
        if count <= 0 or count > (self.limits.max_body_size - 4) // 5:
            raise ProtocolError("E_BAD_BODY", f"{verb} invalid message count {count}")
        return count

    def _bad_bodies(
        self,
        buffer: bytearray,
        at: int,
        end: int,
        count: int,
        verb: str = "MPUB",
        first_number: int = 0,
    ) -> ProtocolError:
        """Return the error in an MPUB's messages."""
        limit = self.limits.max_msg_size
        for number in range(first_number, first_number + count):
            if at + 4 > end:
                text = f"{verb} failed to read message({number}) body size"
                return ProtocolError("E_BAD_MESSAGE", text)
            (size,) = _SIZE.unpack_from(buffer, at)
            if size <= 0:
                text = f"{verb} invalid message({number}) body size {size}"
                return ProtocolError("E_BAD_MESSAGE", text)
            if size > limit:
                return ProtocolError("E_BAD_MESSAGE", f"{verb} message too big {size} > {limit}")
            at += 4 + size
            if at > end:
                return ProtocolError("E_BAD_MESSAGE", f"{verb} failed to read message body")
        return ProtocolError("E_BAD_BODY", f"{verb} has {end - at} bytes behind its messages")

    def _body(
        self,
        verb: str,
        what: str,
        limit: int,
        buffer: bytearray,
        at: int,
        body_at: int,
        end: int,
    ) -> tuple[int, int] | None:
        """Return the start and end of a body; None while it is incomplete."""
        if end - body_at < 4:
            self.wanted_bytes = body_at - at + 4
            return None
        (size,) = _SIZE.unpack_from(buffer, body_at)
        code = "E_BAD_MESSAGE" if what else "E_BAD_BODY"
        if size <= 0:
            raise ProtocolError(code, f"{verb} invalid {what}body size {size}")
        if size > limit:
            flag = " (--max-body-size, or --max-msg-size for one message)" if verb == "SEND" else ""
            raise ProtocolError(code, f"{verb} {what or 'body '}too big {size} > {limit}{flag}")
        start = body_at + 4
        stop = start + size
        if stop > end:
            self.wanted_bytes = stop - at
            return None
        return start, stop


def _text(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape")


def _at_least(words: list[bytes], count: int, text: str) -> None:
    if len(words) < count:
        raise ProtocolError("E_INVALID", text)


def _number(word: bytes, text: str) -> int:
    if not word.isdigit() and word:
        raise ProtocolError("E_INVALID", f"{text} {_text(word)}")
    if len(word) > 20:
        raise ProtocolError("E_INVALID", f"{text} {_text(word)}")
    return int(word or b"0")


def _message_id(word: bytes) -> bytes:
    if len(word) != 16:
        raise ProtocolError("E_INVALID", "invalid message ID")
    return word


def _object(verb: str, data: bytes) -> dict[str, object]:
    """Decode a JSON object; no bytes stand for an empty one."""
    try:
        fields = json.loads(data.decode()) if data else {}
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ProtocolError("E_BAD_BODY", f"{verb} failed to decode a JSON object")
    return fields


def _identify(data: bytes) -> IdentifyCommand:
    try:
        fields = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        fields = False
    if fields is None:
        fields = {}
    if not isinstance(fields, dict):
        raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    return IdentifyCommand({name.lower(): value for name, value in fields.items()})
