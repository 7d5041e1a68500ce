"""The bytes of other brokers' protocols: what is counted is what came, in any pieces."""

from __future__ import annotations

import struct

import pytest

from bench.peers.protocols import BODY, PROTOCOLS, Protocol
from bench.servers.link import LoadFailed

ACK = struct.pack(">BHIHHQBB", 1, 1, 13, 60, 80, 3, 1, 0xCE)
ONE_ACK = struct.pack(">BHIHHQBB", 1, 1, 13, 60, 80, 5, 0, 0xCE)
ANSWERS = {
    "redis": (b"$15\r\n1700000000000-0\r\n" * 3, 3),
    "nats": (b'MSG _R 1 27\r\n{"stream":"q", "seq":1}\r\nPING\r\n', 1),
    "beanstalk": (b"INSERTED 1\r\nINSERTED 2\r\n", 2),
    "amqp": (ACK + ONE_ACK, 4),
}
REFUSALS = {
    "redis": b"-ERR no such stream\r\n",
    "nats": b'MSG _R 1 9\r\n{"error":{"code":503}}\r\n',
    "beanstalk": b"OUT_OF_MEMORY\r\n",
    "amqp": struct.pack(">BHIHHQBB", 1, 1, 13, 60, 120, 3, 1, 0xCE),
}


def deliveries(name: str) -> bytes:
    if name == "redis":
        entry = b"*2\r\n$3\r\n%d-0\r\n*2\r\n$1\r\nd\r\n$200\r\n" + BODY + b"\r\n"
        return b"*1\r\n*2\r\n$1\r\nq\r\n*2\r\n" + entry % 1 + entry % 2
    if name == "nats":
        return b"".join(
            b"MSG _R 1 $JS.ACK.q.q.1.%d.1.1.0 200\r\n%b\r\n" % (n, BODY) for n in (1, 2)
        )
    if name == "beanstalk":
        return b"".join(b"RESERVED %d 200\r\n%b\r\n" % (n, BODY) for n in (1, 2))
    return (b"a method and a header" + struct.pack(">BHI", 3, 1, 200) + BODY + b"\xce") * 2


def protocol(name: str) -> Protocol:
    return PROTOCOLS[name]("q", 2)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_answers_are_counted_in_any_pieces(name: str, step: int) -> None:
    data, count = ANSWERS[name]
    if name == "nats" and step < len(data):
        data = data.removesuffix(b"PING\r\n")  # Only whole ones are told from answers.
    some = protocol(name)
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    assert sum(some.answered(piece)[0] for piece in pieces) == count


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_ends_the_run(name: str) -> None:
    with pytest.raises(LoadFailed, match="the broker answered"):
        protocol(name).answered(REFUSALS[name])


@pytest.mark.parametrize("name", ANSWERS)
def test_deliveries_are_acknowledged_when_they_are_whole(name: str) -> None:
    some, data = protocol(name), deliveries(name)
    received = bytearray(data[:-1])
    before, first = some.delivered(received)
    received += data[-1:]
    count, second = some.delivered(received)
    assert before + count == 2
    assert not received
    acknowledged = {
        "redis": b"1-0\r\n$3\r\n2-0",
        "nats": b"$JS.ACK.q.q.1.2",
        "beanstalk": b"delete 2",
        "amqp": struct.pack(">HHQ", 60, 80, 2),
    }
    assert acknowledged[name] in first + second
