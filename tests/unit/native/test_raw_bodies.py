"""Bodies in the receive buffer, measured and laid out by the compiled hot path."""

import struct

import pytest

from martlet.log.batch import LogBatch
from martlet.native import FramePlace, ReceivedBodies, native
from martlet.native.raw_bodies import raw_bodies

pytestmark = pytest.mark.skipif(native is None, reason="the hot path is not compiled here")


def received(*bodies: bytes, head: bytes = b"") -> bytearray:
    return bytearray(b"".join(head + struct.pack(">I", len(body)) + body for body in bodies))


def test_bodies_behind_a_line() -> None:
    buffer = bytearray(b"!!") + received(b"one", b"three", head=b"PUB t\n") + b"PUB u\n\0\0\0\1x"
    bodies = raw_bodies(buffer, 2, len(buffer), 10, len(b"PUB t\n"), 100)
    assert bodies is not None
    assert list(bodies) == [b"one", b"three"]
    assert (bodies[1], bodies[:1]) == (b"three", [b"one"])
    assert (bodies.smallest, bodies.largest, bodies.total_bytes) == (3, 5, 8)
    assert buffer[bodies.end :] == b"PUB u\n\0\0\0\1x"


@pytest.mark.parametrize(
    ("buffer", "count"),
    [
        (received(b"a", b"", b"c"), 1),
        (received(b"a", b"x" * 101), 1),
        (received(b"a", b"bb")[:-1], 1),
        (received(b"a") + b"\0\0\0", 1),
        (received(b"a") + b"\xff\xff\xff\xff", 1),
        (bytearray(), 0),
    ],
    ids=["empty", "too large", "incomplete", "no size", "huge", "nothing"],
)
def test_it_stops_before_a_bad_body(buffer: bytearray, count: int) -> None:
    bodies = raw_bodies(buffer, 0, len(buffer), 10, 0, 100)
    assert bodies is not None
    assert len(bodies) == count


@pytest.mark.parametrize("first_id", [5, 0xFFFE, (1 << 64) - 2])
def test_frames_are_those_of_a_list(first_id: int) -> None:
    texts = [b"x" * size for size in (1, 40, 7, 300, 8, 8, 8, 8, 8, 200)]
    buffer = received(*texts)
    bodies = raw_bodies(buffer, 0, len(buffer), 99, 0, 1000)
    assert bodies is not None
    compiled, python = LogBatch(), LogBatch()
    for batch in (compiled, python):
        batch.begin(first_id, 1_700_000_000_123_456_789)
        batch.add(b"before")
    compiled.add_bodies(bodies)
    for text in texts:
        python.add(text)
    records = [bytes(batch.finish()[0][80:]) for batch in (compiled, python)]
    assert records[0] == records[1]


def test_it_reads_and_writes_inside_its_buffers_only() -> None:
    assert native is not None
    buffer = received(b"abc", b"def")
    for at, end in ((-1, 5), (0, 99), (9, 3), (20, 30)):
        assert native.frame_bodies(
            ReceivedBodies(buffer, at, end, 9, 0, 99), FramePlace(bytearray(), 0, 0, 0, bytearray())
        ) == (0, 0, 0, 0)
    scratch, ends = bytearray(34 + 3 + 10), bytearray(4 * 9)
    place = FramePlace(scratch, 0, 0, 0, ends)
    assert native.frame_bodies(ReceivedBodies(buffer, 0, 14, 9, 0, 99), place)[0] == 1
    assert scratch[37:] == bytes(10)
    few = FramePlace(bytearray(200), 0, 0, 0, bytearray(4))
    assert native.frame_bodies(ReceivedBodies(buffer, 0, 14, 9, 0, 99), few)[0] == 1
    for wrong in (-1, 201):
        outside = FramePlace(bytearray(200), wrong, 0, 0, ends)
        assert native.frame_bodies(ReceivedBodies(buffer, 0, 14, 9, 0, 99), outside)[0] == 0
