"""However a client's bytes come, and however they are gathered into runs, the commands are those
that were sent.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.property.protocol.nsq.decoding import LIMITS, decode_all
from tests.property.protocol.nsq.decoding import one_by_one as single_bytes

from martlet.names import is_valid_name
from martlet.protocol.nsq.decoder import Decoder
from martlet.protocol.nsq.v2 import ParserState

ids = st.integers(0, (1 << 64) - 1).map(lambda n: b"%016x" % n)
odd_ids = st.sampled_from([b"~" * 16, b"0123456789abcdeg", b"+123456789abcdef"])
topics = st.sampled_from([b"t", b"u", b"long.topic#ephemeral"])
bodies = st.one_of(
    st.binary(min_size=1, max_size=60),
    st.binary(min_size=3, max_size=3),
    st.sampled_from([b"FIN 0123456789abcdef\n", b"PUB t\n\x00\x00\x00\x03abc"]),
)


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def mpub(topic: bytes, some: list[bytes]) -> bytes:
    content = struct.pack(">i", len(some)) + b"".join(map(sized, some))
    return b"MPUB " + topic + b"\n" + sized(content)


singles = st.one_of(
    st.one_of(ids, odd_ids).map(lambda id: b"FIN " + id + b"\n"),
    st.tuples(ids, st.integers(0, 99_999)).map(lambda t: b"REQ %b %d\n" % t),
    ids.map(lambda id: b"TOUCH " + id + b"\r\n"),
    st.integers(0, 2500).map(lambda n: b"RDY %d\n" % n),
    st.just(b"NOP\n"),
    st.tuples(topics, bodies).map(lambda t: b"PUB " + t[0] + b"\n" + sized(t[1])),
    st.tuples(topics, st.integers(0, 999), bodies).map(
        lambda t: b"DPUB %b %d\n" % t[:2] + sized(t[2])
    ),
    st.tuples(topics, st.lists(bodies, min_size=1, max_size=9)).map(lambda t: mpub(*t)),
    # One whose own size is wrong: it ends behind its last message all the same.
    st.tuples(topics, st.lists(bodies, min_size=1, max_size=9), st.integers(1, 300)).map(
        lambda t: b"MPUB %b\n" % t[0] + struct.pack(">i", t[2]) + mpub(b"", t[1])[10:]
    ),
)
runs = st.one_of(
    st.lists(st.one_of(ids, ids, ids, odd_ids), min_size=3, max_size=30).map(
        lambda many: [b"FIN " + id + b"\n" for id in many]
    ),
    st.tuples(topics, st.lists(st.binary(min_size=3, max_size=3), min_size=3, max_size=30)).map(
        lambda t: [b"PUB " + t[0] + b"\n" + sized(body) for body in t[1]]
    ),
)
conversations = st.lists(st.one_of(singles.map(lambda one: [one]), runs), max_size=20).map(
    lambda parts: [line for part in parts for line in part]
)


def decode(pieces: list[bytes]) -> list[object]:
    """All commands of a consumer's bytes that come in pieces, and nothing is wrong with them."""
    commands = decode_all(pieces, ParserState.SUBSCRIBED)
    assert not any(isinstance(command, bytes | type) for command in commands), "something is left"
    return commands


@given(conversations, st.randoms(use_true_random=False))
def test_whole_or_in_pieces_the_commands_are_the_same(lines: list[bytes], random: Random) -> None:
    data = b"".join(lines)
    one_by_one = [command for line in lines for command in decode([line])]
    assert decode([data]) == one_by_one
    assert decode(single_bytes(data)) == one_by_one
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(5))
    edges = [0, *cuts, len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    assert decode(pieces) == one_by_one


greetings = st.lists(
    st.one_of(
        st.sampled_from([b"{}", b'{"client_id":"me","feature_negotiation":true}', b"[]", b"{"]).map(
            lambda body: b"IDENTIFY\n" + sized(body)
        ),
        st.binary(max_size=8).map(lambda secret: b"AUTH\n" + sized(secret)),
        st.sampled_from([b"SUB t c\n", b"SUB t c#ephemeral\r\n", b"SUB t\n", b"SUB t! c\n"]),
        singles,
    ),
    max_size=4,
)
mistakes = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            b"CLS\n",
            b"RDY -1\n",
            b"RDY x\n",
            b"REQ 0123456789abcdef\n",
            b"REQ 0123456789abcdef soon\n",
            b"TOUCH short\n",
            b"FIN\n",
            b"PUB !\n" + sized(b"x"),
            b"PUB t\n" + sized(b""),
            b"PUB t\n" + sized(bytes(201)),
            b"DPUB t 60001\n" + sized(b"x"),
            b"MPUB t\n" + sized(struct.pack(">i", 0)),
            b"MPUB t\n" + sized(struct.pack(">i", 2) + sized(b"one")),
            b"MPUB t\n" + sized(struct.pack(">i", 1) + sized(b"one") + b"more"),
            b"x" * 70_000,
        ]
    ),
)


@given(greetings, conversations, mistakes, st.sampled_from(list(ParserState)), st.integers(0, 400))
def test_errors_are_the_same_in_one_piece_or_byte_by_byte(
    greeting: list[bytes], lines: list[bytes], mistake: bytes, state: ParserState, kept_bytes: int
) -> None:
    """Whatever comes, wherever it ends: commands, and an error that can be sent, and never
    anything else; and the same of both.
    """
    data = b"".join([*greeting, *lines, mistake])
    expected = decode_all([data], state)
    assert decode_all(single_bytes(data), state) == expected
    assert decode_all([data[:kept_bytes], data[kept_bytes:]], state) == expected


@given(topics, st.lists(st.binary(min_size=1, max_size=60), min_size=2, max_size=6))
def test_a_publish_that_comes_alone_is_the_one_that_was_sent(
    topic: bytes, some: list[bytes]
) -> None:
    pieces = [b"PUB " + topic + b"\n" + sized(body) for body in some]
    decoder = Decoder(LIMITS, is_valid_name)
    for number, (piece, body) in enumerate(zip(pieces, some, strict=True)):
        lone = decoder.lone_publish(bytearray(piece), len(piece))
        if number == 0:
            assert lone is None, "the name is not checked yet"
            assert decoder.decode(bytearray(piece), 0, len(piece)) is not None
        else:
            assert lone == (topic.decode(), len(piece) - len(body))
        assert decoder.lone_publish(bytearray(piece + b"x"), len(piece) + 1) is None
        assert decoder.lone_publish(bytearray(piece), len(piece) - 1) is None
