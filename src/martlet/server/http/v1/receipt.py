"""The receipt: names one delivery of a message to a client over HTTP.

It is text to clients, with hexadecimal numbers::

    1-5-2a-9-00c0ffee00000007-18c3f2a1b0c4d5e6-1
    |  |  | |        |               |          attempts: deliveries of the message so far
    |  |  | |        |               when the message was stored, in nanoseconds since 1970
    |  |  | |        id of the message, which has its queue and offset
    |  |  | number of the channel in the log, which has the topic
    |  |  number of the lease in this epoch
    |  epoch: the run of the broker
    version

Within an epoch the lease decides: it knows which messages its consumer holds. A receipt of an
earlier epoch, from before a restart or a failover, is compared with the message: where a failover
cut the log, another message may have the id, but it was not stored at the same time.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_CHARACTERS = 128
_PATTERN = re.compile(
    r"1-([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{16})-([0-9a-f]{1,16})-"
    r"([0-9a-f]{1,8})"
)


class BadReceipt(ValueError):
    """A text that is no receipt."""


class LeaseReceipt(NamedTuple):
    """One delivery of a message.

    Attributes:
        epoch: the run of the broker.
        lease: its number in the epoch.
        channel: the channel's number in the log.
        message_id: 16 hexadecimal digits.
        stored_at_ns: the message's timestamp.
        attempts: the number of deliveries, with this one.
    """

    epoch: int
    lease: int
    channel: int
    message_id: bytes
    stored_at_ns: int
    attempts: int

    def __str__(self) -> str:
        return (
            f"1-{self.epoch:x}-{self.lease:x}-{self.channel:x}-{self.message_id.decode()}"
            f"-{self.stored_at_ns:x}-{self.attempts:x}"
        )

    @classmethod
    def parse(cls, text: str) -> LeaseReceipt:
        """Read the text of a receipt. Raises BadReceipt."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise BadReceipt("it is no receipt: send the text 'receipt' of a received message")
        epoch, lease, channel = (int(match[number], 16) for number in (1, 2, 3))
        return cls(epoch, lease, channel, match[4].encode(), int(match[5], 16), int(match[6], 16))
