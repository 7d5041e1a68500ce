"""How order keys lead to queues: patterned keys fill all of them, and the function is exact."""

from __future__ import annotations

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from martlet.properties.model import KeyHash

PATTERNED = {
    "counting up": [b"%d" % number for number in range(1000, 1100)],
    "names": [b"user-%d" % number for number in range(1, 101)],
    "even": [b"%d" % number for number in range(0, 200, 2)],
    "hundreds": [b"%d" % number for number in range(0, 10_000, 100)],
    "hexadecimal": [b"%08x" % (16 * number) for number in range(100)],
    "of one width": [b"%010d" % number for number in range(100)],
    "binary": [number.to_bytes(4, "little") for number in range(100)],
}


def test_the_number_of_a_key_is_the_documented_one() -> None:
    numbers = {key: KeyHash.CRC32C_FMIX32.of(crc32c(key)) for key in (b"123456789", b"customer-7")}
    assert numbers == {b"123456789": 0xAC7081CC, b"customer-7": 0x113AE7A6}
    # The 32 bits of MurmurHash3 of no bytes are the last step for its seed.
    assert (KeyHash.CRC32C_FMIX32.of(0), KeyHash.CRC32C_FMIX32.of(1)) == (0, 0x514E28B7)


def test_the_first_hash_is_the_crc_itself() -> None:
    # CRC-32C as RFC 3720 has it: 0xE3069283 for these nine digits.
    assert KeyHash.CRC32C.of(crc32c(b"123456789")) == 0xE3069283


@pytest.mark.parametrize("queues", [2, 3, 4, 6, 8, 12, 16])
@pytest.mark.parametrize("keys", PATTERNED.values(), ids=PATTERNED)
def test_a_hundred_patterned_keys_leave_no_queue_empty(keys: list[bytes], queues: int) -> None:
    used = {KeyHash.CRC32C_FMIX32.of(crc32c(key)) % queues for key in keys}
    assert used == set(range(queues))


@pytest.mark.parametrize("queues", [4, 8, 16])
def test_twenty_keys_that_count_up_use_as_many_queues_as_random_ones(queues: int) -> None:
    used = {KeyHash.CRC32C_FMIX32.of(crc32c(b"%d" % key)) % queues for key in range(1000, 1020)}
    # Twenty random keys leave some four of 16 queues empty; the CRC alone leaves half of them.
    assert len(used) >= {4: 4, 8: 8, 16: 12}[queues]


@pytest.mark.parametrize("key_hash", KeyHash)
@given(crcs=st.lists(st.integers(0, (1 << 32) - 1)))
def test_numbers_of_many_keys_are_those_of_each(key_hash: KeyHash, crcs: list[int]) -> None:
    assert key_hash.of(np.array(crcs, np.int64)).tolist() == [key_hash.of(crc) for crc in crcs]
