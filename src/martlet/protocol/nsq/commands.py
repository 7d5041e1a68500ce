"""Commands as a client sends them: values in, bytes out; no sockets.

`martlet.protocol.nsq.v2` has their bytes. The caller must check names and numbers: a name with a
space in it would be another command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"  V2"
"""The bytes that a connection begins with."""
NOP = b"NOP\n"
CLS = b"CLS\n"
MPUB_EXTRA_BYTES = 4
"""The size of each body's header in an MPUB, and of the MPUB's own header."""

_u32 = Struct(">I").pack
_encode_json = json.JSONEncoder(separators=(",", ":")).encode


def identify(fields: Mapping[str, Any]) -> bytes:
    """Encode IDENTIFY: the client's names and the features that it asks for."""
    body = json.dumps(fields).encode()
    return b"IDENTIFY\n" + _u32(len(body)) + body


def auth(secret: bytes) -> bytes:
    """Encode AUTH: the secret by which the auth server knows the client."""
    return b"AUTH\n" + _u32(len(secret)) + secret


def subscribe(topic: str, channel: str) -> bytes:
    """Encode SUB: become a consumer of the channel."""
    return f"SUB {topic} {channel}\n".encode()


def ready(count: int) -> bytes:
    """Encode RDY: allow `count` messages in flight."""
    return b"RDY %d\n" % count


def publish(topic: str, body: bytes) -> bytes:
    """Encode PUB: publish one message."""
    return b"PUB %b\n%b%b" % (topic.encode(), _u32(len(body)), body)


def publish_deferred(topic: str, body: bytes, defer_ms: int) -> bytes:
    """Encode DPUB: publish one message with a delay."""
    return b"DPUB %b %d\n%b%b" % (topic.encode(), defer_ms, _u32(len(body)), body)


def publish_many(topic: str, bodies: Sequence[bytes]) -> bytes:
    """Encode MPUB: publish several messages, all or none."""
    sizes = list(map(len, bodies))
    count = len(sizes)
    total = sum(sizes) + MPUB_EXTRA_BYTES * (count + 1)
    head = b"MPUB %b\n%b%b" % (topic.encode(), _u32(total), _u32(count))
    if sizes.count(sizes[0]) == count:
        return _u32(sizes[0]).join([head, *bodies])
    return b"".join([head, *chain.from_iterable(zip(map(_u32, sizes), bodies, strict=True))])


def send(
    topic: str, bodies: Sequence[bytes], options: Mapping[str, Any], properties: bytes = b""
) -> bytes:
    """Encode SEND: publish messages, all or none, with options and a block of properties."""
    sizes = list(map(len, bodies))
    count = len(sizes)
    head = _send_head(topic, count, sum(sizes) + 4 * count, options, properties)
    if sizes.count(sizes[0]) == count:
        return _u32(sizes[0]).join([head, *bodies])
    return b"".join([head, *chain.from_iterable(zip(map(_u32, sizes), bodies, strict=True))])


def send_laid_out(
    topic: str,
    count: int,
    bodies: bytes | memoryview,
    options: Mapping[str, Any],
    properties: bytes = b"",
) -> bytes:
    """Encode SEND of messages that are already laid out back to back, each behind its size, u32."""
    return b"".join([_send_head(topic, count, len(bodies), options, properties), bodies])


def _send_head(
    topic: str, count: int, bodies_bytes: int, options: Mapping[str, Any], properties: bytes
) -> bytes:
    options_json = _json(options)
    return b"SEND %b\n%b%b%b%b%b%b" % (
        topic.encode(),
        _u32(len(options_json) + len(properties) + bodies_bytes + 12),
        _u32(len(options_json)),
        options_json,
        _u32(len(properties)),
        properties,
        _u32(count),
    )


def call(number: int, method: str, fields: Mapping[str, Any]) -> bytes:
    """Encode CALL: any other request."""
    fields_json = _json(fields)
    return b"CALL %d %b\n%b%b" % (number, method.encode(), _u32(len(fields_json)), fields_json)


def _json(fields: Mapping[str, Any]) -> bytes:
    return _encode_json(fields).encode()


def finish(ids: Sequence[bytes]) -> bytes:
    """Encode FIN of some messages."""
    return b"FIN " + b"\nFIN ".join(ids) + b"\n"


def requeue(message_id: bytes, delay_ms: int) -> bytes:
    """Encode REQ: have a message redelivered after a delay."""
    return b"REQ %b %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    """Encode TOUCH: restart a message's timeout."""
    return b"TOUCH %b\n" % message_id


def started(message_id: bytes) -> bytes:
    """Encode STARTED: the client starts with this message; it started all that came before."""
    return b"STARTED %b\n" % message_id


def finish_array(ids: NDArray[np.void]) -> bytes:
    """Encode FIN of an array of ids: 21 bytes each."""
    return _rows(b"FIN ", ids, b"\n")


def requeue_array(ids: NDArray[np.void], delay_ms: int) -> bytes:
    """Encode REQ of an array of ids, with one delay."""
    return _rows(b"REQ ", ids, b" %d\n" % delay_ms)


def touch_array(ids: NDArray[np.void]) -> bytes:
    """Encode TOUCH of an array of ids."""
    return _rows(b"TOUCH ", ids, b"\n")


def _rows(before: bytes, ids: NDArray[np.void], after: bytes) -> bytes:
    """Encode the same command for each id."""
    row = np.dtype([("before", f"V{len(before)}"), ("id", ids.dtype), ("after", f"V{len(after)}")])
    rows = np.empty(ids.shape, row)
    rows["before"] = np.void(before)
    rows["id"] = ids
    rows["after"] = np.void(after)
    return rows.tobytes()
