"""The load for Kafka: batches as its protocol has them."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from crc32c import crc32c

from bench.spark.kafka_wire import record_batch

TIME_MS = 1_700_000_000_000


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A signed number of 7 bits a byte, and where the next field begins."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


@pytest.mark.parametrize("count", [1, 64, 65, 200])
@pytest.mark.parametrize("size", [1, 200, 20_000])
def test_a_batch_has_its_bodies_in_order(count: int, size: int) -> None:
    bodies = np.random.default_rng(7).integers(97, 123, (count, size), dtype=np.uint8)
    data = record_batch(bodies, TIME_MS)
    base, length, epoch, magic, checksum = struct.unpack_from(">qiibI", data)
    assert (base, length, epoch, magic) == (0, len(data) - 12, -1, 2)
    assert checksum == crc32c(data[21:])
    fields = struct.unpack_from(">hiqqqhii", data, 21)
    assert fields == (0, count - 1, TIME_MS, TIME_MS, -1, -1, -1, count)
    at = 21 + struct.calcsize(">hiqqqhii")
    for number in range(count):
        length, at = varint(data, at)
        end = at + length
        attributes, (time_ms, at) = data[at], varint(data, at + 1)
        offset, at = varint(data, at)
        key_size, at = varint(data, at)
        body_size, at = varint(data, at)
        assert (attributes, time_ms, offset, key_size) == (0, 0, number, -1)
        assert data[at : at + body_size] == bodies[number].tobytes()
        assert (data[at + body_size], at + body_size + 1) == (0, end)
        at = end
    assert at == len(data)
