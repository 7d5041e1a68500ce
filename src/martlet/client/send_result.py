"""Where a message that was sent is stored."""

from __future__ import annotations

from typing import NamedTuple

from martlet.put_status import PutStatus

_ID_MASK = (1 << 64) - 1


class SendResult(NamedTuple):
    """What a broker has answered to a send: the message is stored, whatever the status.

    Attributes:
        status: OK, or what is still missing (see `PutStatus`).
        queue: the queue's number.
        offset: the message's in that queue; None for one that is delivered later, which gets its
            place there at its time.
        id: the message's, as its consumers see it; of one that is delivered later the one by which
            it can be cancelled, None where a repeated send finds that it is on its way already.
        broker: the broker's address.
        is_duplicate: whether an earlier try of the same send had stored it.
    """

    status: PutStatus
    queue: int
    offset: int | None
    id: bytes | None
    broker: str
    is_duplicate: bool = False

    def behind(self, count: int) -> SendResult:
        """Of the message that was sent with it so many behind it."""
        if not count:
            return self
        offset = None if self.offset is None else self.offset + count
        id = None if self.id is None else b"%016x" % ((int(self.id, 16) + count) & _ID_MASK)
        return self._replace(offset=offset, id=id)
