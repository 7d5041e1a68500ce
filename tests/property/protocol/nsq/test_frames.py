"""However the bytes are cut on their way, the frames that come out are those that were sent."""

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from martlet.protocol.nsq import commands
from martlet.protocol.nsq.frames import (
    BadFrame,
    ErrorReply,
    FrameSplitter,
    Piece,
    Response,
)
from martlet.protocol.nsq.message_run import Fields, MessageRun


def message_frame(fields: Fields) -> bytes:
    timestamp_ns, attempts, message_id, body = fields
    return struct.pack(">IIqH16s", 30 + len(body), 2, timestamp_ns, attempts, message_id) + body


@dataclass(frozen=True)
class Sent:
    """A frame as it was sent: a message's fields, or the data of a response or an error."""

    kind: int
    content: Fields | bytes

    @property
    def raw(self) -> bytes:
        if isinstance(self.content, tuple):
            return message_frame(self.content)
        return struct.pack(">II", 4 + len(self.content), self.kind) + self.content


def flat(pieces: list[Piece]) -> list[Sent]:
    frames: list[Sent] = []
    for piece in pieces:
        if isinstance(piece, MessageRun):
            assert piece.count > 0
            frames += [Sent(2, fields) for fields in piece.fields()]
        else:
            frames.append(Sent(0 if isinstance(piece, Response) else 1, piece.data))
    return frames


ids = st.binary(min_size=16, max_size=16)
stamps = st.integers(-(2**63), 2**63 - 1)
attempts = st.integers(0, 2**16 - 1)


def messages_of(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[list[Sent]]:
    bodies = sizes.flatmap(lambda size: st.binary(min_size=size, max_size=size))
    fields = st.tuples(stamps, attempts, ids, bodies)
    return st.lists(fields.map(lambda content: Sent(2, content)), min_size=1, max_size=40)


# Long runs of one size are what the splitter leaps over, so they must be likely.
same_size = st.integers(0, 60).flatmap(lambda size: messages_of(st.just(size)))
mixed = messages_of(st.integers(0, 60))
others = st.lists(
    st.builds(Sent, st.integers(0, 1), st.binary(max_size=40)), min_size=1, max_size=3
)
streams = st.lists(st.one_of(same_size, mixed, others), max_size=6).map(
    lambda parts: [frame for part in parts for frame in part]
)


@settings(max_examples=200)
@given(frames=streams, cuts=st.lists(st.integers(1, 700), max_size=60), space=st.integers(16, 900))
def test_frames_come_out_as_sent(frames: list[Sent], cuts: list[int], space: int) -> None:
    raw = b"".join(frame.raw for frame in frames)
    splitter = FrameSplitter(space_bytes=space)
    received: list[Sent] = []
    position = 0
    for cut in [*cuts, max(len(raw), 1)]:
        received += flat(splitter.feed(raw[position : position + cut]))
        position += cut
    assert received == frames
    assert splitter.pending_bytes == 0


@settings(max_examples=30)
@given(frames=streams)
def test_byte_by_byte_is_as_whole(frames: list[Sent]) -> None:
    raw = b"".join(frame.raw for frame in frames)
    at_once, single = FrameSplitter(), FrameSplitter(space_bytes=16)
    singly = [piece for octet in range(len(raw)) for piece in single.feed(raw[octet : octet + 1])]
    assert flat(singly) == flat(at_once.feed(raw)) == frames


@settings(max_examples=100)
@given(frames=streams, later=st.integers(0, 50))
def test_bytes_in_place_are_split_as_received_ones(frames: list[Sent], later: int) -> None:
    raw = b"".join(frame.raw for frame in frames)
    size = max(0, len(raw) - later)
    splitter = FrameSplitter.over(raw[:size])
    received = flat(splitter.received(size))
    assert len(b"".join(frame.raw for frame in received)) + splitter.pending_bytes == size
    assert received + flat(splitter.feed(raw[size:])) == frames
    assert splitter.pending_bytes == 0


def test_a_run_of_one_size_is_one_piece() -> None:
    fields = [(index, 1, b"%016x" % index, b"x" * 200) for index in range(1000)]
    raw = b"".join(map(message_frame, fields))
    [run] = FrameSplitter().feed(raw + raw[:100])
    assert isinstance(run, MessageRun)
    assert (run.count, run.length) == (1000, 234)
    assert list(run.fields()) == fields


def test_the_leap_stops_at_a_frame_of_another_size_that_fits_the_stride() -> None:
    # The header of a shorter frame, in the middle of a run, with a body that looks like a frame.
    fields = [(0, 1, b"%016x" % index, b"x" * 60) for index in range(20)]
    inner = message_frame((0, 1, b"f" * 16, b"y" * 60))
    odd = [(7, 7, b"o" * 16, inner), (8, 8, b"p" * 16, b"z")]
    sent = [*fields, *odd, *fields]
    pieces = FrameSplitter().feed(b"".join(map(message_frame, sent)))
    assert [frame.content for frame in flat(pieces)] == sent


def test_a_frame_larger_than_the_buffer_grows_it_for_a_while() -> None:
    splitter = FrameSplitter(space_bytes=64)
    large = Sent(2, (1, 1, b"i" * 16, b"x" * 5000))
    small = Sent(0, b"OK")
    assert flat(splitter.feed(large.raw + small.raw)) == [large, small]
    assert splitter.space().nbytes == 64


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (struct.pack(">II", 3, 0), "size 3"),
        (struct.pack(">II", 29, 2) + b"x" * 25, "size 29"),
        (struct.pack(">II", 2001, 0), "max_frame_bytes=2000"),
        (struct.pack(">II", 10, 3), "unknown type 3"),
        (b"HTTP/1.1 400 Bad Request\r\n", "that is an HTTP port"),
    ],
)
def test_a_bad_frame_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        FrameSplitter(max_frame_bytes=2000).feed(raw)


def test_frames_read_before_a_bad_frame_are_not_lost() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(Sent(0, b"OK").raw) == [Response(b"OK")]
    with pytest.raises(BadFrame):
        splitter.feed(b"\xff" * 8)


def test_an_error_has_a_code_and_a_text() -> None:
    reply = ErrorReply(b"E_FIN_FAILED FIN 0123 failed ID not in flight")
    assert reply.code == "E_FIN_FAILED"
    assert reply.text == "FIN 0123 failed ID not in flight"
    assert (ErrorReply(b"E_BARE").code, ErrorReply(b"E_BARE").text) == ("E_BARE", "")


@settings(max_examples=100)
@given(sent=st.one_of(same_size, mixed), data=st.data())
def test_a_run_has_the_fields_of_its_messages(sent: list[Sent], data: st.DataObject) -> None:
    pieces = FrameSplitter().feed(b"".join(frame.raw for frame in sent))
    run = MessageRun.joined([piece for piece in pieces if isinstance(piece, MessageRun)])
    fields = [frame.content for frame in sent if isinstance(frame.content, tuple)]
    assert run.count == len(fields)
    assert list(run.fields()) == fields
    assert run.bodies() == [body for *_, body in fields]
    assert run.heads()["timestamp_ns"].tolist() == [stamp for stamp, *_ in fields]
    assert run.heads()["attempts"].tolist() == [attempts for _, attempts, *_ in fields]
    assert [bytes(id) for id in run.ids()] == [id for _, _, id, _ in fields]
    assert run.ends()[-1] == len(run.raw)
    assert commands.finish_array(run.ids()) == commands.finish([id for _, _, id, _ in fields])
    if run.count > 1:
        cut = data.draw(st.integers(1, run.count - 1))
        first, rest = run.split(cut)
        assert (list(first.fields()), list(rest.fields())) == (fields[:cut], fields[cut:])
        assert list(run.split(-cut)[1].fields()) == fields[-cut:]
        assert list(MessageRun.joined([first, rest]).fields()) == fields


@settings(max_examples=50)
@given(bodies=st.lists(st.binary(max_size=50), min_size=1, max_size=40))
def test_an_mpub_holds_the_bodies(bodies: list[bytes]) -> None:
    raw = commands.publish_many("topic", bodies)
    assert raw.startswith(b"MPUB topic\n")
    total, count = struct.unpack_from(">II", raw, 11)
    assert (total, count) == (len(raw) - 15, len(bodies))
    position, split = 19, []
    for _ in range(count):
        (size,) = struct.unpack_from(">I", raw, position)
        split.append(raw[position + 4 : position + 4 + size])
        position += 4 + size
    assert (split, position) == (bodies, len(raw))
