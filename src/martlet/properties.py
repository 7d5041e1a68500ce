"""Properties: what a message carries beside its body.

A tag to filter by, keys to find it by, an order key, headers of the application, and what the
broker itself notes (where a dead letter came from, say).  They are no part of the frame that an
NSQ consumer gets.  A batch keeps those of its messages behind its frames, in one block::

    0 count u32               messages that have properties
    4 numbers  count x u32    which of the batch they are, rising
    . ends     count x u32    where the entry of each ends, from the first entry's start
    . tags     count x u32    the hash of each one's tag, 0 for none
    . entries, back to back

and an entry is fields: ``kind u8 | name length u8 | value length u16 | name | value``; the tag is
the first of them, and has no name.  Numbers are little-endian, text is UTF-8.  The tags' hashes
stand apart so that a filter looks at all of them at once; the hash is that of RocketMQ, Java's
``String.hashCode``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = bytes | bytearray | memoryview
Numbers = npt.NDArray[np.uint32]

MOST_BYTES = 32 * 1024
"""Of one message's properties, packed."""
LONGEST_NAME_BYTES = 255
LONGEST_TAG_BYTES = 255
LONGEST_KEY_BYTES = 1024
MOST_KEYS = 64
PRODUCER_BYTES = 16
"""Of the id that a producer has chosen for itself."""
SENT_BYTES = PRODUCER_BYTES + 12
"""Of the mark that tells which send a message came with."""
FRAME_TYPE = 16
"""Of the frame that tells a consumer the properties of the messages that come right behind it."""

_FRAME = struct.Struct(">II")
_CUT = "properties that are cut in the middle of a field"
_FIELD = struct.Struct("<BBH")
_SENT = struct.Struct("<QI")
_COUNT = struct.Struct("<I")
_SINGLE = struct.Struct("<IIII")
"""What stands before the entry in the block of one message."""
BLOCK_HEAD_BYTES = _COUNT.size
BLOCK_ROW_BYTES = 12
"""What a block takes for each message that has properties, beside its entry."""


class BadProperties(ValueError):
    """Properties that no message may have, or bytes that are none; the text says why."""


class Field(IntEnum):
    """What a field of an entry is."""

    TAG = 1
    KEY = 2
    HEADER = 3
    ORDER_KEY = 4
    SYSTEM = 5
    """Written by the broker alone."""
    SENT = 6
    """Of the first message of a send: who sent it, and the send's number (see `Sent`)."""


_OF_CLIENTS = frozenset({Field.TAG, Field.KEY, Field.HEADER, Field.ORDER_KEY})


class Sent(NamedTuple):
    """Which send of which producer a message came with.

    Attributes:
        producer: 16 random bytes that a producer has chosen for itself.
        sequence: the number of its send, from 1.
        count: how many messages came with it, of which this is the first.
    """

    producer: bytes
    sequence: int
    count: int = 1  # type: ignore[assignment]  # a tuple has a method of that name

    def pack(self) -> bytes:
        """28 bytes: the producer, the sequence u64, the count u32."""
        return self.producer + _SENT.pack(self.sequence, self.count)

    @classmethod
    def unpack(cls, data: bytes) -> Sent:
        """The other way. Raises BadProperties."""
        if len(data) != SENT_BYTES:
            raise BadProperties(f"a producer's mark of {len(data)} bytes, it has {SENT_BYTES}")
        return cls(data[:PRODUCER_BYTES], *_SENT.unpack_from(data, PRODUCER_BYTES))


@dataclass(frozen=True, slots=True)
class Properties:
    """What one message carries.

    Attributes:
        tag: one word to filter by; empty for none.
        keys: to find the message by, such as an order's number.
        headers: the application's, such as a trace's context.
        order_key: messages of one order key stand in one queue, in order; empty for none.
        system: what the broker has noted.
        sent: which send it came with, for a send that may be repeated.
    """

    tag: str = ""
    keys: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    order_key: str = ""
    system: Mapping[str, str] = field(default_factory=dict)
    sent: Sent | None = None

    def __bool__(self) -> bool:
        return bool(
            self.tag or self.keys or self.headers or self.order_key or self.system or self.sent
        )

    def told(self) -> dict[str, object]:
        """As JSON tells them, with no field for what there is none of."""
        told: dict[str, object] = {
            "tag": self.tag,
            "keys": list(self.keys),
            "order_key": self.order_key,
            "headers": dict(self.headers),
            "system": dict(self.system),
        }
        if self.sent is not None:
            told |= {"producer": self.sent.producer.hex(), "sequence": self.sent.sequence}
        return {name: value for name, value in told.items() if value}

    def pack(self) -> bytes:
        """The entry; empty where there is nothing in it.

        Raises:
            BadProperties: something is too long, or is no tag or name.
        """
        entry = b"".join([_packed(*each) for each in self._fields()])
        if len(entry) > MOST_BYTES:
            raise BadProperties(
                f"the properties of one message take {len(entry)} bytes, the most is {MOST_BYTES}:"
                " put large things into its body"
            )
        return entry

    def _fields(self) -> Iterable[tuple[Field, str, bytes]]:
        if self.tag:
            yield Field.TAG, "", _tag(self.tag)
        if len(self.keys) > MOST_KEYS:
            raise BadProperties(f"{len(self.keys)} keys, the most is {MOST_KEYS}")
        for key in self.keys:
            yield Field.KEY, "", _key("key", key)
        if self.order_key:
            yield Field.ORDER_KEY, "", _key("order key", self.order_key)
        for name, value in self.headers.items():
            yield Field.HEADER, name, _utf8(f"header {name!r}", value)
        for name, value in self.system.items():
            yield Field.SYSTEM, name, _utf8(name, value)
        if self.sent is not None:
            yield Field.SENT, "", self.sent.pack()

    @classmethod
    def unpack(cls, entry: Bytes) -> Properties:
        """Properties from an entry, which may be empty. Raises BadProperties."""
        tag = order_key = ""
        keys: list[str] = []
        headers: dict[str, str] = {}
        system: dict[str, str] = {}
        sent: Sent | None = None
        try:
            for kind, name, value in fields(entry):
                if kind == Field.TAG:
                    tag = value.decode()
                elif kind == Field.KEY:
                    keys.append(value.decode())
                elif kind == Field.HEADER:
                    headers[name.decode()] = value.decode()
                elif kind == Field.ORDER_KEY:
                    order_key = value.decode()
                elif kind == Field.SYSTEM:
                    system[name.decode()] = value.decode()
                elif kind == Field.SENT:
                    sent = Sent.unpack(value)
        except UnicodeDecodeError as error:
            raise BadProperties(f"properties that are not UTF-8: {error}") from None
        return cls(tag, tuple(keys), headers, order_key, system, sent)


NONE = Properties()


def fields(entry: Bytes) -> Iterable[tuple[int, bytes, bytes]]:
    """The fields of an entry: kind, name, value. Raises BadProperties."""
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
    """One field that the broker has noted, to be put behind an entry that has none of that name."""
    told = name.encode()
    return _FIELD.pack(Field.SYSTEM, len(told), len(value)) + told + value


def system_value(entry: Bytes, name: str) -> bytes | None:
    """What the broker has noted under a name; None for nothing."""
    wanted = name.encode()
    for kind, known, value in fields(entry):
        if kind == Field.SYSTEM and known == wanted:
            return value
    return None


def without(entry: bytes, kind: Field) -> bytes:
    """An entry without its fields of a kind."""
    if not entry:
        return entry
    return b"".join(
        _FIELD.pack(known, len(name), len(value)) + name + value
        for known, name, value in fields(entry)
        if known != kind
    )


def check(entry: Bytes) -> None:
    """See that an entry is one that a client may send. Raises BadProperties."""
    if len(entry) > MOST_BYTES:
        raise BadProperties(
            f"the properties of one message take {len(entry)} bytes, the most is {MOST_BYTES}"
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
            text = value.decode()
            if kind == Field.KEY:
                key_count += 1
                _key("key", text)
            elif kind == Field.TAG:
                if at > _FIELD.size + length:
                    raise BadProperties(
                        f"the tag {text!r} stands behind other fields, or is one"
                        " of several: a message has one at most, and it comes first"
                    )
                _tag(text)
            elif kind == Field.ORDER_KEY:
                _key("order key", text)
            elif not name:
                raise BadProperties(
                    f"the header name {name!r} takes 0 bytes, between 1 and {LONGEST_NAME_BYTES}"
                    " are allowed"
                )
    except struct.error:
        raise BadProperties(_CUT) from None
    except UnicodeDecodeError as error:
        raise BadProperties(f"properties that are not UTF-8: {error}") from None
    if key_count > MOST_KEYS:
        raise BadProperties(f"{key_count} keys, the most is {MOST_KEYS}")


def entries_of(data: Bytes, count: int) -> list[tuple[int, bytes]]:
    """What a client says of the properties of `count` messages, as `Batch.tell` takes it.

    Raises BadProperties.
    """
    block = Block(data)
    numbers = block.numbers.tolist()
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise BadProperties("properties whose messages do not rise")
    if numbers and numbers[-1] >= count:
        raise BadProperties(f"properties of message {numbers[-1]}, there are {count}")
    entries = [(number, bytes(block.entry(at))) for at, number in enumerate(numbers)]
    if sum(len(entry) for _, entry in entries) != block.entries_length:
        raise BadProperties("properties whose entries do not fill their block")
    for _, entry in entries:
        check(entry)
    return entries


def _packed(kind: Field, name: str, value: bytes) -> bytes:
    told = _utf8(f"the name {name!r}", name)
    if len(told) > LONGEST_NAME_BYTES or (kind in (Field.HEADER, Field.SYSTEM) and not told):
        raise BadProperties(
            f"the header name {name[:80]!r} takes {len(told)} bytes, between 1 and"
            f" {LONGEST_NAME_BYTES} are allowed"
        )
    if len(value) > MOST_BYTES:
        raise BadProperties(
            f"the header {name!r} takes {len(value)} bytes, the properties of one message may take"
            f" {MOST_BYTES}"
        )
    return _FIELD.pack(kind, len(told), len(value)) + told + value


def _utf8(what: str, text: str) -> bytes:
    if not isinstance(text, str):
        raise BadProperties(f"{what} is {type(text).__name__}, it must be str")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadProperties(f"{what} is no text that UTF-8 can tell: {error}") from None


def _tag(tag: str) -> bytes:
    told = _utf8("the tag", tag)
    if len(told) > LONGEST_TAG_BYTES:
        raise BadProperties(f"a tag of {len(told)} bytes, the most is {LONGEST_TAG_BYTES}")
    if "|" in tag or not tag.isprintable() or tag != tag.strip() or tag == "*":
        raise BadProperties(
            f"the tag {tag!r}: a tag is printable, without '|' or spaces around it, and not '*'"
        )
    return told


def _key(what: str, key: str) -> bytes:
    told = _utf8(f"the {what}", key)
    if not 0 < len(told) <= LONGEST_KEY_BYTES:
        raise BadProperties(
            f"the {what} {key[:40]!r} takes {len(told)} bytes, between 1 and {LONGEST_KEY_BYTES}"
            " are allowed"
        )
    return told


@lru_cache(maxsize=4096)
def tag_hash(tag: str) -> int:
    """The hash of a tag: Java's ``String.hashCode``, as a number of 32 bits without sign."""
    total = 0
    for unit in np.frombuffer(tag.encode("utf-16-le"), "<u2").tolist():
        total = (31 * total + unit) & 0xFFFF_FFFF
    return total


def _hash_of(entry: bytes) -> int:
    """The hash of the tag in an entry, 0 where it has none."""
    at = 0
    while at < len(entry):
        kind, name_length, length = _FIELD.unpack_from(entry, at)
        at += _FIELD.size + name_length
        if kind == Field.TAG:
            return tag_hash(entry[at : at + length].decode())
        at += length
    return 0


def pack_block(entries: Sequence[tuple[int, bytes]]) -> bytes:
    """The block of a batch: for each message that has properties its number, rising, and entry."""
    count = len(entries)
    if not count:
        return b""
    if count == 1:
        ((number, entry),) = entries
        return _SINGLE.pack(1, number, len(entry), _hash_of(entry)) + entry
    numbers, told = zip(*entries, strict=True)
    ends = np.fromiter(map(len, told), "<u4", count).cumsum(dtype="<u4")
    tags = np.fromiter(map(_hash_of, told), "<u4", count)
    head = (_COUNT.pack(count), np.array(numbers, "<u4").tobytes(), ends.tobytes(), tags.tobytes())
    return b"".join([*head, *told])


def block_bytes(entries: Sequence[tuple[int, bytes]]) -> int:
    """How large the block of some entries is."""
    if not entries:
        return 0
    return BLOCK_HEAD_BYTES + sum(BLOCK_ROW_BYTES + len(entry) for _, entry in entries)


def frame(block: Bytes) -> bytes:
    """A block as the frame that a consumer gets before the messages that it tells of."""
    return _FRAME.pack(len(block) + 4, FRAME_TYPE) + block


def told_alone(entry: bytes) -> bytes:
    """The frame that tells the properties of the one message behind it."""
    return frame(pack_block([(0, entry)]))


def entry_of(data: Bytes, number: int) -> bytes:
    """From a block the entry of the message of that number; empty where it has none."""
    if len(data) >= _SINGLE.size:
        count, only, length, _ = _SINGLE.unpack_from(data)
        if count == 1:
            return bytes(data[_SINGLE.size : _SINGLE.size + length]) if only == number else b""
    return Block(data).of(number)


_NO_NUMBERS: Numbers = np.empty(0, np.uint32)


class Block:
    """The properties of a batch, read in place.

    Attributes:
        numbers: of the messages that have any: ``uint32[n]``, rising.
        tags: the hash of each one's tag: ``uint32[n]``.

    Args:
        data: the block, or nothing.

    Raises BadProperties.
    """

    __slots__ = ("_data", "_ends", "_entries_at", "numbers", "tags")

    def __init__(self, data: Bytes) -> None:
        self._data = memoryview(data)
        self.numbers = self.tags = self._ends = _NO_NUMBERS
        self._entries_at = 0
        if not len(data):
            return
        count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else 0
        at = _COUNT.size
        self._entries_at = at + 12 * count
        if not count or len(data) < self._entries_at:
            raise BadProperties("a block of properties that is cut")
        self.numbers = np.frombuffer(data, "<u4", count, at)
        self._ends = np.frombuffer(data, "<u4", count, at + 4 * count)
        self.tags = np.frombuffer(data, "<u4", count, at + 8 * count)
        if self._entries_at + int(self._ends[-1]) != len(data):
            raise BadProperties("a block of properties whose entries do not fill it")

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def ends(self) -> Numbers:
        """Where the entry of each ends, from the first one's start."""
        return self._ends

    @property
    def entries(self) -> memoryview:
        """All entries, back to back."""
        return self._data[self._entries_at :]

    @property
    def entries_length(self) -> int:
        """The bytes of all entries."""
        return len(self._data) - self._entries_at

    def entry(self, at: int) -> memoryview:
        """The entry of the message that stands at a place in `numbers`."""
        start = int(self._ends[at - 1]) if at else 0
        return self._data[self._entries_at + start : self._entries_at + int(self._ends[at])]

    def of(self, number: int) -> bytes:
        """The entry of the batch's message of that number; empty where it has none."""
        at = int(np.searchsorted(self.numbers, number))
        if at < len(self.numbers) and self.numbers[at] == number:
            return bytes(self.entry(at))
        return b""

    def cut(self, begin: int, end: int) -> bytes:
        """The block of the messages from number `begin` up to `end`, counted from `begin`; nothing
        where none of them has properties.
        """
        first, stop = np.searchsorted(self.numbers, (begin, end)).tolist()
        if first == stop:
            return b""
        start = int(self._ends[first - 1]) if first else 0
        at = self._entries_at
        return b"".join(
            (
                _COUNT.pack(stop - first),
                (self.numbers[first:stop] - np.uint32(begin)).tobytes(),
                (self._ends[first:stop] - np.uint32(start)).tobytes(),
                self.tags[first:stop].tobytes(),
                self._data[at + start : at + int(self._ends[stop - 1])],
            )
        )
