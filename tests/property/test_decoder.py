"""However a client's bytes come, and however they are gathered into runs, the commands are those
that were sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from martlet.broker.name import is_valid_name
from martlet.protocol.decoder import Decoder
from martlet.protocol.nsq_v2 import (
    Command,
    Finish,
    FinishRun,
    Limits,
    ProtocolError,
    Publish,
    State,
)

LIMITS = Limits(max_rdy_count=2500, max_msg_size=200, max_body_size=1000, max_req_timeout_ms=60_000)

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


def flat(command: Command) -> Iterator[object]:
    """A command as its single parts, whatever way it came."""
    if isinstance(command, FinishRun):
        for number in command.ids.tolist():
            yield Finish(b"%016x" % number)
    elif isinstance(command, Publish):
        rows = command.bodies
        some = rows if isinstance(rows, list) else [row.tobytes() for row in rows]
        if command.verb == "PUB":
            assert command.commands == len(some)
            for body in some:
                yield ("PUB", command.topic, [body], None)
        else:
            assert command.commands == 1
            yield (command.verb, command.topic, some, command.delay_ms)
    else:
        yield command


def decode(pieces: list[bytes]) -> list[object]:
    """All commands of bytes that come in pieces, kept as a connection keeps them."""
    decoder = Decoder(LIMITS, is_valid_name)
    decoder.state = State.SUBSCRIBED
    kept = bytearray()
    found: list[object] = []
    for piece in pieces:
        kept += piece
        at = 0
        while at < len(kept):
            decoded = decoder.decode(kept, at, len(kept))
            if decoded is None:
                assert not 0 < decoder.wanted_bytes <= len(kept) - at
                break
            command, at = decoded
            found += list(flat(command))
            del command, decoded
        kept = kept[at:]
    assert not kept, "something is left"
    return found


@settings(deadline=None)
@given(conversations, st.randoms(use_true_random=False))
def test_whole_or_in_pieces_the_commands_are_the_same(lines: list[bytes], random: Random) -> None:
    data = b"".join(lines)
    one_by_one = [command for line in lines for command in decode([line])]
    assert decode([data]) == one_by_one
    assert decode([data[n : n + 1] for n in range(len(data))]) == one_by_one
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(5))
    edges = [0, *cuts, len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    assert decode(pieces) == one_by_one


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(list(State)), conversations)
def test_garbage_is_an_error_or_is_waited_for(
    garbage: bytes, state: State, before: list[bytes]
) -> None:
    """Whatever comes: an error that can be sent, or more is needed, and never anything else."""
    data = bytearray(b"".join(before) + garbage)
    decoder = Decoder(LIMITS, is_valid_name)
    decoder.state = state
    at = 0
    told: ProtocolError | None = None
    while at < len(data):
        try:
            decoded = decoder.decode(data, at, len(data))
        except ProtocolError as error:
            told = error
            break
        if decoded is None:
            told = decoder.cut_off(data[at:], len(data) - at)
            break
        assert at < decoded[1] <= len(data)
        at = decoded[1]
    assert told is None or told.frame()[8:].startswith(b"E_")
