"""Calls: a client's requests to a Martlet broker beside NSQ's commands.

Each has a number, which its answer repeats: a call that waits, for example for messages, does not
hold up later ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from itertools import count
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from martlet.client.errors import CallRefused, ConnectionLost
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.frames import BadFrame

_HEAD = Struct(">II")
_MAX_NUMBERS = 1 << 32


class Answer(NamedTuple):
    """The answer to a call."""

    fields: Mapping[str, Any]
    """Its JSON object."""
    data: memoryview


class Calls:
    """The unanswered calls of one connection."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    def call(self, method: str, fields: Mapping[str, Any]) -> asyncio.Future[Answer]:
        """Write a call. Returns a future: CallRefused is not done, ConnectionLost is unknown."""
        number = next(self._numbers) % _MAX_NUMBERS
        data = commands.call(number, method, fields)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        self._write(data)
        return future

    def unanswered(self, method: str, fields: Mapping[str, Any]) -> bytes:
        """Encode a call whose answer is ignored, to be written with other commands."""
        return commands.call(next(self._numbers) % _MAX_NUMBERS, method, fields)

    def answered(self, data: bytes) -> None:
        """Handle an answer. Raises BadFrame if it is malformed."""
        try:
            number, size = _HEAD.unpack_from(data)
            fields = json.loads(data[8 : 8 + size])
        except (ValueError, StructError, RecursionError) as error:
            raise BadFrame(f"an answer to a call that cannot be read: {error}") from None
        if not isinstance(fields, dict):
            raise BadFrame("an answer to a call that is no JSON object")
        future = self._waiting.get(number)
        if future is None or future.done():
            return  # The caller no longer waits for it.
        error_fields = fields.get("error")
        if isinstance(error_fields, dict):
            code = str(error_fields.pop("code", "ERROR"))
            text = str(error_fields.pop("text", ""))
            future.set_exception(CallRefused(code, text, error_fields))
        else:
            future.set_result(Answer(fields, memoryview(data)[8 + size :]))

    def lost(self, error: ConnectionLost) -> None:
        """Fail all calls: no answers will come."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
