"""The frames between replicas."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from martlet.log.epochs import EpochRange
from martlet.replica.frames import (
    HEADER,
    MAX_BODY_BYTES,
    Frame,
    FrameKind,
    FrameReader,
    FrameRefused,
    ReplicaGreeting,
)

numbers = st.integers(0, (1 << 64) - 1)
frames = st.builds(
    Frame,
    st.sampled_from(FrameKind),
    numbers,
    numbers,
    numbers,
    st.binary(max_size=100),
    st.booleans(),
)


def pack(frame: Frame) -> bytes:
    return frame.pack_header() + bytes(frame.body)


def joined(frames: list[Frame]) -> list[Frame]:
    """The frames, with the bodies as bytes, where pieces of DATA that follow each other are one."""
    out: list[Frame] = []
    for frame in frames:
        last = out[-1] if out else None
        if (
            last is not None
            and frame.kind == FrameKind.DATA
            and frame._replace(position=last.position, body=last.body) == last
            and frame.position == last.position + len(last.body) > last.position
        ):
            out[-1] = last._replace(body=bytes(last.body) + bytes(frame.body))
        else:
            out.append(frame._replace(body=bytes(frame.body)))
    return out


@given(sent=st.lists(frames, max_size=4), data=st.data())
def test_frames_come_out_as_they_went_in(sent: list[Frame], data: st.DataObject) -> None:
    """Each receive goes into the same buffer, as with a connection."""
    stream = b"".join(map(pack, sent))
    reader = FrameReader()
    buffer = bytearray(len(stream))
    got = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        buffer[:cut] = stream[:cut]
        got += [
            frame._replace(body=bytes(frame.body))
            for frame in reader.feed(memoryview(buffer)[:cut])
        ]
        stream = stream[cut:]
    assert joined(got) == joined(sent)


def test_data_comes_out_as_it_arrives() -> None:
    """The bytes of a large frame are not gathered first."""
    body = bytes(range(100))
    stream = pack(Frame(FrameKind.DATA, 3, 640, 560, body)) + pack(Frame(FrameKind.BEAT, 3, 740))
    reader = FrameReader()
    assert reader.feed(stream[: HEADER.size]) == []
    assert reader.feed(stream[HEADER.size : HEADER.size + 30]) == [
        Frame(FrameKind.DATA, 3, 640, 560, body[:30])
    ]
    assert reader.feed(stream[HEADER.size + 30 :]) == [
        Frame(FrameKind.DATA, 3, 670, 560, body[30:]),
        Frame(FrameKind.BEAT, 3, 740),
    ]


@given(frame=frames, at=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed(frame: Frame, at: int, bit: int) -> None:
    """Only in the body of DATA the records' own checksums must notice it."""
    sent = bytearray(pack(frame))
    end = HEADER.size if frame.kind == FrameKind.DATA else len(sent)
    sent[at % end] ^= 1 << bit
    try:
        got = FrameReader().feed(bytes(sent) + bytes(200))
    except FrameRefused:
        return
    assert got == []  # A length that waits for more.


def header(**fields: int) -> bytes:
    """That of a BEAT, with other values in some places, and a checksum that fits."""
    packed = bytearray(Frame(FrameKind.BEAT, 1).pack_header())
    for name, value in fields.items():
        form, at = {"length": ("<I", 8), "kind": ("<B", 12), "version": ("<H", 14)}[name]
        struct.pack_into(form, packed, at, value)
    struct.pack_into("<I", packed, 4, crc32c(b"", crc32c(bytes(packed[8:]))))
    return bytes(packed)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"GET / HTTP/1.1\r\nHost: 10.0.0.1:4153\r\nAccept: */*\r\n\r\n",
            "no frame of a Martlet repl",
        ),
        (header(length=MAX_BODY_BYTES + 1), f"the maximum is {MAX_BODY_BYTES}"),
        (header(version=2), "version 2, where this replica speaks 1"),
        (header(kind=99), "an unknown kind, 99"),
    ],
    ids=["http", "length", "version", "kind"],
)
def test_what_is_no_frame_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(FrameRefused, match=message):
        FrameReader().feed(data)


def test_a_greeting_is_read_as_it_was_written() -> None:
    sent = ReplicaGreeting("id", "b", [EpochRange(3, 0, 80)], [(0, 4096)], False, [(8, 16)])
    assert ReplicaGreeting.unpack(sent.pack()) == sent
    assert sent.rank == (3, 80)
    assert ReplicaGreeting("id", "b", [], []).rank == (0, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"broker": "", "replica": "", "epochs": [[1, 2]], "segments": [], "is_whole": 1,'
        b' "damaged": []}',
        b'{"broker": "", "replica": "", "epochs": [], "segments": [[0, -8]], "is_whole": 1,'
        b' "damaged": []}',
    ],
)
def test_a_wrong_greeting_is_refused(body: bytes) -> None:
    with pytest.raises(FrameRefused, match="a greeting that cannot be read"):
        ReplicaGreeting.unpack(body)
