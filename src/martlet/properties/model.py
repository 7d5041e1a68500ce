"""The properties of one message: what it carries beside its body.

A tag to filter by, keys to find it by, an order key, headers of the application, and notes of the
broker (such as the origin of a dead letter). They are not part of the frame that an NSQ consumer
gets; a batch stores them in a `martlet.properties.block`.

Packed they are an entry, a sequence of fields, little-endian::

     0 kind u8 (`Field`) | 1 name length u8 | 2 value length u16 | 4 name | value

The tag is the first field and has no name. Tags, keys and names are text in UTF-8. The hash of a
tag is that of RocketMQ, Java's ``String.hashCode``.

An order key and the value of a header may be any bytes, as Kafka's are. In Python they are text
(``str``) if they are UTF-8, and otherwise ``bytes``. JSON has text in ``order_key`` and
``headers``, and other bytes as base64 in ``order_key_base64`` and ``headers_base64``.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Bytes = bytes | bytearray | memoryview
TextOrBytes = str | bytes
"""Text, or bytes that are no UTF-8."""

MAX_BYTES = 32 * 1024
"""The maximum size of one message's packed properties."""
MAX_NAME_BYTES = 255
MAX_TAG_BYTES = 255
MAX_KEY_BYTES = 1024
MAX_KEYS = 64
NORMAL_PRIORITY = 4
"""The priority of a message without one, as in JMS."""
MAX_PRIORITY = 9
"""The highest priority; 0 is the lowest."""
PRODUCER_BYTES = 16
"""The size of the id that a producer has chosen."""
SENT_BYTES = PRODUCER_BYTES + 12
"""The size of the mark that names the send of a message."""

_CUT = "properties that are cut in the middle of a field"
_FIELD = struct.Struct("<BBH")
_SENT = struct.Struct("<QI")


class BadProperties(ValueError):
    """Properties that no message may have, or bytes that are not properties; the text says why."""


class Field(IntEnum):
    """The kind of a field of an entry."""

    TAG = 1
    KEY = 2
    HEADER = 3
    ORDER_KEY = 4
    SYSTEM = 5
    """Written by the broker alone."""
    SENT = 6
    """The producer and the number of a send, at its first message (see `Sent`)."""
    PRIORITY = 7
    """A digit; left out where it is `NORMAL_PRIORITY`."""


_TAG, _KEY, _HEADER = int(Field.TAG), int(Field.KEY), int(Field.HEADER)
_OF_CLIENTS = frozenset({Field.TAG, Field.KEY, Field.HEADER, Field.ORDER_KEY, Field.PRIORITY})


class Sent(NamedTuple):
    """The send and the producer that a message came from."""

    producer: bytes
    """16 random bytes that the producer chose."""
    sequence: int
    """The number of the send, from 1."""
    count: int = 1  # type: ignore[assignment]  # a tuple has a method of that name
    """Of messages in the send, of which this is the first."""

    def pack(self) -> bytes:
        """Pack as 28 bytes: the producer, the sequence u64, the count u32."""
        return self.producer + _SENT.pack(self.sequence, self.count)

    @classmethod
    def unpack(cls, data: bytes) -> Sent:
        """Unpack the bytes of `pack`. Raises BadProperties."""
        if len(data) != SENT_BYTES:
            raise BadProperties(f"a producer's mark of {len(data)} bytes, it has {SENT_BYTES}")
        return cls(data[:PRODUCER_BYTES], *_SENT.unpack_from(data, PRODUCER_BYTES))


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of one message.

    Attributes:
        tag: a printable text without ``|`` to filter by; empty for none.
        keys: search keys, such as an order's number.
        headers: the application's, such as a trace's context; a value that is no UTF-8 is bytes.
        order_key: messages of one order key go to one queue, in order; bytes if it is no UTF-8;
            empty for none.
        system: notes of the broker.
        sent: the send it came from, if the send may be repeated.
        priority: 0 to `MAX_PRIORITY`; channels deliver higher ones first.
    """

    tag: str = ""
    keys: tuple[str, ...] = ()
    headers: Mapping[str, TextOrBytes] = field(default_factory=dict)
    order_key: TextOrBytes = ""
    system: Mapping[str, str] = field(default_factory=dict)
    sent: Sent | None = None
    priority: int = NORMAL_PRIORITY

    def __bool__(self) -> bool:
        return bool(
            self.tag
            or self.keys
            or self.headers
            or self.order_key
            or self.system
            or self.sent
            or self.priority != NORMAL_PRIORITY
        )

    def published_json(self) -> dict[str, Any]:
        """Convert what a client has published to JSON fields, but the priority; empty fields too.
        Fields for bytes that are no UTF-8, in base64, are there where they are not empty.
        """
        headers, other = dict[str, str](), dict[str, str]()
        for name, value in self.headers.items():
            if isinstance(value, str):
                headers[name] = value
            else:
                other[name] = b64encode(value).decode()
        shown = {"tag": self.tag, "keys": self.keys, "order_key": "", "headers": headers}
        shown |= order_key_json(self.order_key)
        return shown | {"headers_base64": other} if other else shown

    def header_text(self, name: str) -> str | None:
        """Return the value of a header; None if there is none, or one that is no text."""
        value = self.headers.get(name)
        return value if isinstance(value, str) else None

    def to_json(self) -> dict[str, object]:
        """Convert to JSON fields; empty fields are left out."""
        shown = {**self.published_json(), "system": dict(self.system)}
        shown["keys"] = list(self.keys)
        if self.sent is not None:
            shown |= {"producer": self.sent.producer.hex(), "sequence": self.sent.sequence}
        shown = {name: value for name, value in shown.items() if value}
        if self.priority != NORMAL_PRIORITY:
            shown["priority"] = self.priority
        return shown

    def pack(self) -> bytes:
        """Pack the entry; empty where there are no properties.

        Raises:
            BadProperties: something is too long, or is no tag or name.
        """
        more = [_named(Field.SYSTEM, name, _utf8(name, text)) for name, text in self.system.items()]
        if self.sent is not None:
            more.append(_named(Field.SENT, "", self.sent.pack()))
        return pack_entry(self.tag, self.keys, self.order_key, self.priority, self.headers, more)

    @classmethod
    def unpack(cls, entry: Bytes) -> Properties:
        """Unpack an entry, which may be empty. Raises BadProperties."""
        try:
            return cls._unpack(entry, bytes.decode)
        except UnicodeDecodeError:
            pass
        try:
            return cls._unpack(entry, text_or_bytes)
        except UnicodeDecodeError as error:
            raise BadProperties(f"properties that are not UTF-8: {error}") from None

    @classmethod
    def _unpack(cls, entry: Bytes, read: Callable[[bytes], TextOrBytes]) -> Properties:
        """Unpack an entry whose order key and values of headers `read` decodes. Raises
        BadProperties and UnicodeDecodeError.
        """
        tag = ""
        order_key: TextOrBytes = ""
        keys: list[str] = []
        headers: dict[str, TextOrBytes] = {}
        system: dict[str, str] = {}
        sent: Sent | None = None
        priority = NORMAL_PRIORITY
        for kind, name, value in fields(entry):
            if kind == Field.TAG:
                tag = value.decode()
            elif kind == Field.KEY:
                keys.append(value.decode())
            elif kind == Field.HEADER:
                headers[name.decode()] = read(value)
            elif kind == Field.ORDER_KEY:
                order_key = read(value)
            elif kind == Field.SYSTEM:
                system[name.decode()] = value.decode()
            elif kind == Field.SENT:
                sent = Sent.unpack(value)
            elif kind == Field.PRIORITY:
                priority = _priority(value)
        return cls(tag, tuple(keys), headers, order_key, system, sent, priority)


NONE = Properties()


def text_or_bytes(value: bytes) -> TextOrBytes:
    """Return the text that a value is in UTF-8, or the bytes where it is none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def order_key_json(key: TextOrBytes) -> dict[str, str]:
    """Return an order key as a JSON object's field; no field where it is empty."""
    key = text_or_bytes(key) if isinstance(key, bytes) else key
    if isinstance(key, bytes):
        return {"order_key_base64": b64encode(key).decode()}
    return {"order_key": key} if key else {}


def pack_entry(
    tag: str,
    keys: Sequence[str],
    order_key: TextOrBytes,
    priority: int,
    headers: Mapping[str, TextOrBytes],
    more: Iterable[bytes] = (),
) -> bytes:
    """Pack an entry of these properties, and of more packed fields. Raises BadProperties."""
    packed: list[bytes] = []
    if tag:
        packed.append(_tag_field(tag) if type(tag) is str else _named(Field.TAG, "", _tag(tag)))
    if len(keys) > MAX_KEYS:
        raise BadProperties(f"{len(keys)} keys, the maximum is {MAX_KEYS}")
    for key in keys:
        encoded = _key("the key", _utf8("the key", key))
        packed.append(_FIELD.pack(_KEY, 0, len(encoded)) + encoded)
    if order_key:
        packed.append(
            _named(Field.ORDER_KEY, "", _key("the order key", _binary("the order key", order_key)))
        )
    if priority != NORMAL_PRIORITY:
        packed.append(_named(Field.PRIORITY, "", str(check_priority(priority)).encode()))
    for name, value in headers.items():
        if type(value) is not str or not value.isascii():
            packed.append(_named(Field.HEADER, name, _binary(f"header {name!r}", value)))
            continue
        encoded = _header_name(name)
        if len(value) > MAX_BYTES:
            raise _too_long(name, len(value))
        packed.append(_FIELD.pack(_HEADER, len(encoded), len(value)) + encoded + value.encode())
    packed += more
    entry = b"".join(packed)
    if len(entry) > MAX_BYTES:
        raise BadProperties(
            f"the properties of one message take {len(entry)} bytes, the maximum is"
            f" {MAX_BYTES}: put large things into its body"
        )
    return entry


def fields(entry: Bytes) -> Iterable[tuple[int, bytes, bytes]]:
    """Return the kind, name and value of each field of an entry. Raises BadProperties."""
    data = bytes(entry)
    at = 0
    while at < len(data):
        if at + _FIELD.size > len(data):
            raise BadProperties(_CUT)
        kind, name_length, length = _FIELD.unpack_from(data, at)
        at += _FIELD.size
        end = at + name_length + length
        if end > len(data):
            raise BadProperties(_CUT)
        yield kind, data[at : at + name_length], data[at + name_length : end]
        at = end


def system_field(name: str, value: bytes) -> bytes:
    """Pack one note of the broker, to append to an entry that has none of that name."""
    encoded = name.encode()
    return _FIELD.pack(Field.SYSTEM, len(encoded), len(value)) + encoded + value


def system_value(entry: Bytes, name: str) -> bytes | None:
    """Return the broker's note of that name; None for none."""
    name_bytes = name.encode()
    for kind, own_name, value in fields(entry):
        if kind == Field.SYSTEM and own_name == name_bytes:
            return value
    return None


def without(entry: bytes, kind: Field) -> bytes:
    """Return an entry without its fields of a kind."""
    if not entry:
        return entry
    return b"".join(
        _FIELD.pack(own_kind, len(name), len(value)) + name + value
        for own_kind, name, value in fields(entry)
        if own_kind != kind
    )


def check(entry: Bytes) -> None:
    """Check that a client may send an entry. Raises BadProperties."""
    if len(entry) > MAX_BYTES:
        raise BadProperties(
            f"the properties of one message take {len(entry)} bytes, the maximum is {MAX_BYTES}"
        )
    data, at, end, key_count = bytes(entry), 0, len(entry), 0
    try:
        while at < end:
            kind, name_length, length = _FIELD.unpack_from(data, at)
            name_end = at + _FIELD.size + name_length
            at = name_end + length
            if at > end:
                raise BadProperties(_CUT)
            name, value = data[name_end - name_length : name_end].decode(), data[name_end:at]
            if kind not in _OF_CLIENTS:
                raise BadProperties(
                    f"only the broker may set {name!r}"
                    if kind == Field.SYSTEM
                    else f"a field of the kind {kind}, which no client may send"
                )
            if kind == Field.KEY:
                key_count += 1
                value.decode()
                _key("the key", value)
            elif kind == Field.TAG:
                text = value.decode()
                if at > _FIELD.size + length:
                    raise BadProperties(
                        f"the tag {text!r} stands behind other fields, or is one"
                        " of several: a message has one at most, and it comes first"
                    )
                _tag(text)
            elif kind == Field.ORDER_KEY:
                _key("the order key", value)
            elif kind == Field.PRIORITY:
                _priority(value)
            elif not name:
                raise BadProperties(
                    f"the header name {name!r} takes 0 bytes, between 1 and {MAX_NAME_BYTES}"
                    " are allowed"
                )
    except struct.error:
        raise BadProperties(_CUT) from None
    except UnicodeDecodeError as error:
        raise BadProperties(f"properties that are not UTF-8: {error}") from None
    if key_count > MAX_KEYS:
        raise BadProperties(f"{key_count} keys, the maximum is {MAX_KEYS}")


def _named(kind: Field, name: str, value: bytes) -> bytes:
    encoded = _header_name(name) if kind in (Field.HEADER, Field.SYSTEM) else name.encode()
    if len(value) > MAX_BYTES:
        raise _too_long(name, len(value))
    return _FIELD.pack(kind, len(encoded), len(value)) + encoded + value


@lru_cache(maxsize=1024)
def _header_name(name: str) -> bytes:
    encoded = _utf8(f"the name {name!r}", name)
    if not 0 < len(encoded) <= MAX_NAME_BYTES:
        raise BadProperties(
            f"the header name {name[:80]!r} takes {len(encoded)} bytes, between 1 and"
            f" {MAX_NAME_BYTES} are allowed"
        )
    return encoded


def _too_long(name: str, size_bytes: int) -> BadProperties:
    return BadProperties(
        f"the header {name!r} takes {size_bytes} bytes, the properties of one message may take"
        f" {MAX_BYTES}"
    )


def _binary(what: str, value: TextOrBytes) -> bytes:
    return value if isinstance(value, bytes) else _utf8(what, value, "str or bytes")


def _utf8(what: str, text: str, kinds: str = "str") -> bytes:
    if not isinstance(text, str):
        raise BadProperties(f"{what} is {type(text).__name__}, it must be {kinds}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadProperties(f"{what} cannot be encoded as UTF-8: {error}") from None


def _tag(tag: str) -> bytes:
    encoded = _utf8("the tag", tag)
    if len(encoded) > MAX_TAG_BYTES:
        raise BadProperties(f"a tag of {len(encoded)} bytes, the maximum is {MAX_TAG_BYTES}")
    if "|" in tag or not tag.isprintable() or tag != tag.strip() or tag == "*":
        raise BadProperties(
            f"the tag {tag!r}: a tag is printable, without '|' or spaces around it, and not '*'"
        )
    return encoded


@lru_cache(maxsize=1024)
def _tag_field(tag: str) -> bytes:
    return _named(Field.TAG, "", _tag(tag))


def _key(what: str, key: bytes) -> bytes:
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise BadProperties(
            f"{what} {key[:40].decode(errors='replace')!r} takes {len(key)} bytes, between 1 and"
            f" {MAX_KEY_BYTES} are allowed"
        )
    return key


def check_priority(priority: object) -> int:
    """Return a priority that a message may have. Raises BadProperties."""
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise BadProperties(
            f"the priority {str(priority)[:40]!r}: a priority is a whole number, 0 (the lowest) to"
            f" {MAX_PRIORITY}; without one it is {NORMAL_PRIORITY}"
        )
    return priority


def _priority(value: bytes) -> int:
    if len(value) != 1 or not value.isdigit():
        raise BadProperties(f"the priority {value[:40]!r} is no digit")
    return int(value)


@lru_cache(maxsize=4096)
def tag_hash(tag: str) -> int:
    """Return the hash of a tag: Java's ``String.hashCode``, as an unsigned 32-bit number."""
    total = 0
    units = tag.encode("utf-16-le")
    for unit in struct.unpack(f"<{len(units) // 2}H", units):
        total = (31 * total + unit) & 0xFFFF_FFFF
    return total


def order_key_of(entry: bytes) -> bytes:
    """Return the order key in an entry, empty where it has none."""
    at = 0
    while at < len(entry):
        kind, name_length, length = _FIELD.unpack_from(entry, at)
        at += _FIELD.size + name_length
        if kind == Field.ORDER_KEY:
            return entry[at : at + length]
        at += length
    return b""


def hash_of(entry: bytes) -> int:
    """Return the hash of the tag in an entry, 0 where it has none."""
    at = 0
    while at < len(entry):
        kind, name_length, length = _FIELD.unpack_from(entry, at)
        at += _FIELD.size + name_length
        if kind == _TAG:
            return tag_hash(entry[at : at + length].decode())
        at += length
    return 0


_MASK = 0xFFFFFFFF
Crcs = TypeVar("Crcs", "int", "npt.NDArray[np.int64]")


class KeyHash(StrEnum):
    """A function from an order key to a number of 32 bits; modulo the number of queues of normal
    priority it is the key's queue.

    Patterned keys, such as those that count up, differ in few bits of their CRC-32C, and would
    leave queues empty. So it is mixed by fmix32, the last step of MurmurHash3. A topic keeps the
    function that it was made with: at another queue, a key would lose its order.
    """

    CRC32C = "crc32c"
    """That of topics which versions before 0.2 have made."""
    CRC32C_FMIX32 = "crc32c-fmix32"
    """That of new topics."""

    def of(self, crcs: Crcs) -> Crcs:
        """Return the number of a key, or those of many, by the CRC-32C of its bytes."""
        return crcs if self is KeyHash.CRC32C else _fmix32(crcs)


def _fmix32(crcs: Crcs) -> Crcs:
    """Mix numbers of 32 bits. Products of an array wrap at 64 bits, above the bits that count."""
    mixed = crcs ^ crcs >> 16
    mixed = mixed * 0x85EBCA6B & _MASK
    mixed = mixed ^ mixed >> 13
    mixed = mixed * 0xC2B2AE35 & _MASK
    return mixed ^ mixed >> 16
