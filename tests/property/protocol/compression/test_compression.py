"""The codecs of compressed connections: whatever comes in whatever pieces, beside another's."""

from __future__ import annotations

import itertools
import zlib
from contextlib import suppress

import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st

from martlet.protocol.compression import Corrupt
from martlet.protocol.compression.deflate import Deflate
from martlet.protocol.compression.snappy import Snappy

WRITES = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=300),
        # Longer than a chunk of snappy, well and badly compressible.
        st.builds(
            lambda piece, times: piece * times, st.binary(min_size=1), st.integers(1, 20_000)
        ),
    ),
    min_size=1,
    max_size=5,
)


def decoded(codec: Deflate | Snappy, data: bytes, cuts: list[int], space_bytes: int) -> bytes:
    """Return the decoded bytes, fed in pieces to a small buffer."""
    out = bytearray()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    space = memoryview(bytearray(space_bytes))
    for start, stop in itertools.pairwise(edges):
        codec.feed(memoryview(data)[start:stop])
        while True:
            count = codec.read_into(space)
            out += space[:count]
            if count < space_bytes:
                break
    return bytes(out)


@pytest.mark.parametrize("kind", [Deflate, Snappy])
@given(
    writes=WRITES,
    cuts=st.lists(st.integers(0, 1 << 20), max_size=8),
    space_bytes=st.integers(1, 99_999),
)
def test_decoding_returns_the_encoded_bytes(
    kind: type[Deflate | Snappy], writes: list[bytes], cuts: list[int], space_bytes: int
) -> None:
    codec = kind()
    space_bytes = max(space_bytes, sum(map(len, writes)) // 1000 + 1)
    wire = b"".join(codec.encode([write]) for write in writes)
    assert decoded(kind(), wire, cuts, space_bytes) == b"".join(writes)


@pytest.mark.parametrize("kind", [Deflate, Snappy])
@given(writes=WRITES)
def test_each_write_can_be_read_at_once(kind: type[Deflate | Snappy], writes: list[bytes]) -> None:
    sender, receiver = kind(), kind()
    for write in writes:
        assert decoded(receiver, sender.encode([write]), [], 1 << 20) == write


@given(writes=WRITES)
def test_another_snappy_reads_ours_and_we_read_it(writes: list[bytes]) -> None:
    ours, theirs = Snappy(), snappy.StreamDecompressor()
    assert b"".join(theirs.decompress(ours.encode([w])) for w in writes) == b"".join(writes)
    sender = snappy.StreamCompressor()
    wire = b"".join(sender.add_chunk(write) for write in writes)
    assert decoded(Snappy(), wire, [], 1 << 20) == b"".join(writes)


@given(writes=WRITES)
def test_another_deflate_reads_ours(writes: list[bytes]) -> None:
    ours, theirs = Deflate(), zlib.decompressobj(-zlib.MAX_WBITS)
    assert b"".join(theirs.decompress(ours.encode([w])) for w in writes) == b"".join(writes)


@pytest.mark.parametrize("kind", [Deflate, Snappy])
@given(garbage=st.binary(min_size=1, max_size=200), at=st.integers(0, 200), begun=st.booleans())
def test_garbage_is_nothing_worse_than_corrupt(
    kind: type[Deflate | Snappy], garbage: bytes, at: int, begun: bool
) -> None:
    wire = kind().encode([b"some text to be sent, some text to be sent" * 3]) if begun else b""
    at = min(at, len(wire))
    with suppress(Corrupt):  # or it happens to be none
        decoded(kind(), wire[:at] + garbage + wire[at:], [], 1000)


@given(cut=st.integers(0, 300), padding=st.integers(0, 300))
def test_skippable_chunks_of_snappy_are_skipped(cut: int, padding: int) -> None:
    begin, chunk = Snappy().encode([]), Snappy().encode([b"one"])
    skipped = b"\xfe" + padding.to_bytes(3, "little") + bytes(padding)
    wire = begin + skipped + chunk + skipped + chunk
    assert decoded(Snappy(), wire, [cut], 1000) == b"oneone"


@pytest.mark.parametrize(
    ("wire", "says"),
    [
        (b"\x00\x04\x00\x00", "does not begin with a stream identifier"),
        (b"\xff\x06\x00\x00sNaPpX", "another stream identifier"),
        (b"\xff\x06\x00\x00sNaPpY\x02\x00\x00\x00", "chunk of type 0x02"),
        (b"\xff\x06\x00\x00sNaPpY\x01\x03\x00\x00", "has 3 bytes"),
        (b"\xff\x06\x00\x00sNaPpY\x01\xff\xff\xff", "has 16777215 bytes"),
        (b"\xff\x06\x00\x00sNaPpY\x01\x05\x00\x00\x00\x00\x00\x00x", "sum is wrong"),
        # A block of 10 bytes that says it becomes 4 GiB.
        (
            b"\xff\x06\x00\x00sNaPpY\x00\x0a\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x0fa",
            "4294967295",
        ),
    ],
)
def test_bad_snappy_input_is_refused(wire: bytes, says: str) -> None:
    with pytest.raises(Corrupt, match=says):
        decoded(Snappy(), wire, [], 1000)
