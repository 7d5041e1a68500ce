"""Key hashes: how an order key leads to a queue of its topic.

The queue of a key is a number of 32 bits, modulo the number of queues of normal priority.
Patterned keys, such as those that count up, differ in few bits of their CRC-32C, and would leave
queues empty. So the number is the CRC-32C mixed by fmix32, the last step of MurmurHash3. A topic
keeps the function that it was made with: at another queue, a key would lose its order.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MASK = 0xFFFFFFFF
Crcs = TypeVar("Crcs", "int", "npt.NDArray[np.int64]")


class KeyHash(StrEnum):
    """A function from an order key to the number that chooses its queue."""

    CRC32C = "crc32c"
    """That of topics which versions before 0.2 have made."""
    CRC32C_FMIX32 = "crc32c-fmix32"
    """That of new topics."""

    def of(self, crcs: Crcs) -> Crcs:
        """Return the number of a key, or those of many, by the CRC-32C of its bytes."""
        return crcs if self is KeyHash.CRC32C else _fmix32(crcs)


def _fmix32(crcs: Crcs) -> Crcs:
    """Mix numbers of 32 bits. Products of an array wrap at 64 bits, above the bits that count."""
    mixed = crcs ^ crcs >> 16
    mixed = mixed * 0x85EBCA6B & _MASK
    mixed = mixed ^ mixed >> 13
    mixed = mixed * 0xC2B2AE35 & _MASK
    return mixed ^ mixed >> 16
