"""Progress: which of the messages that a client holds it has started to handle.

Only those are charged with a failure when their time runs out or the connection is lost; the others
were waiting in the client and go to others free of charge.  Deliveries have ranks, rising over all
queues, one for each grant; so rank and offset together are the order of delivery to a client::

    rank, offset      7,100   7,101   7,102   9,40    12,103   12,104   12,105
                      FIN     FIN     -       FIN     -        -        -
                                      |       |       |        |______________ not started
                                      |       |       the first one behind what was reached
                                      started before what was answered

Martlet's clients say what they start (STARTED): that counts, and nothing else.  Of NSQ's clients,
which cannot, it is inferred from the order, as clients handle messages in the order of delivery.
What was answered or touched was started, and all that was delivered before it; behind that, the
first message may be in a handler, unless a touched one is known to be.  The first one behind is
charged once for each round of deliveries: what was delivered before it was charged, and is still
unanswered, waited behind it.  A slow client also has copies of what timed out, which it handles
before what came since: as long as it answers those, it has not come to the first one behind.  Each
such answer uses one of them up; so nothing can come back for ever without being charged.

Of a client that says what it starts, a message that ends it is charged at each such loss, as it was
told as started first.  If others had been started as well, none is given up: they are suspects from
then on, which the client handles one at a time.  So a poison is dead after ``max_attempts`` losses
at most, or 2 where that is 1; and what is always finished when it is handled is charged for at most
one loss, as it is beside nothing that ends a client after that.  A broker that is killed while a
dead letter is on its way has the message alive once more, which costs up to 2 losses.
"""

from __future__ import annotations

from itertools import count

from martlet.properties.model import Properties

Rank = tuple[int, int]
"""Rank and offset of a message: the order of delivery to a client."""
NOTHING: Rank = (0, -1)

next_rank = count(1).__next__


def notes_of(failures: int, *, is_suspect: bool) -> bytes:
    """What a client that says what it starts is told of a message that has failed before, packed
    as properties: ``failures``, and ``suspect`` where the last one was a lost connection.
    """
    suspect = {"suspect": "1"} if is_suspect else {}
    return Properties(system={"failures": str(failures), **suspect}).pack()


class StartedMessages:
    """How far a client has come with what was delivered to it, on all queues of a channel.

    Args:
        says_started: whether the client says which messages it starts.
    """

    __slots__ = (
        "_charged_rank",
        "_late_ns",
        "_reached",
        "_stale_count",
        "_touched",
        "_touched_until_ns",
        "lost_count",
        "says_started",
        "takes_no_more",
    )

    def __init__(self, *, says_started: bool = False) -> None:
        self.says_started = says_started
        self.takes_no_more = False
        """It said so (CLS): what it leaves when it goes was not tried."""
        self.lost_count = 0
        """How many messages it was charged with when it was lost."""
        self._reached = NOTHING
        self._touched = NOTHING
        self._touched_until_ns = 0
        self._charged_rank = 0
        """What has a lower rank was delivered before the last one was charged as the first."""
        self._stale_count = 0
        """Copies of messages that timed out, which the client has yet to come to."""
        self._late_ns = 0
        """When it last answered one of those."""

    def started(self, rank: int, offset: int) -> None:
        """The client says that it starts this one, and all that was delivered before it."""
        self._reached = max(self._reached, (rank, offset))

    def answered(self, rank: int, offset: int) -> None:
        """The client has answered this one."""
        if self.says_started:
            return
        self._reached = max(self._reached, (rank, offset))
        if (rank, offset) >= self._touched:
            self._touched_until_ns = 0

    def touched(self, rank: int, offset: int, until_ns: int) -> None:
        """The client has asked for more time for this one."""
        if self.says_started:
            return
        if (rank, offset) >= max(self._reached, self._touched):
            self._touched, self._touched_until_ns = (rank, offset), until_ns
        self._reached = max(self._reached, (rank, offset))

    def timed_out(self) -> None:
        """The client has a copy of a message that is not its own any more."""
        self._stale_count += 1

    def answered_late(self, now_ns: int, *, used_up: bool = True) -> None:
        """The client has answered such a copy; it has another one of the message where that is not
        used up.
        """
        if self._stale_count:
            self._stale_count -= used_up
            self._late_ns = now_ns

    def charges(self, rank: int, offset: int, delivered_at_ns: int, now_ns: int) -> bool:
        """Whether a message that the client lost, or let time out, is charged with a failure.

        To be asked in the order of delivery.
        """
        if (rank, offset) <= self._reached:
            if (rank, offset) == self._touched and self._touched_until_ns:
                self._touched_until_ns = 0
                self._charged_rank = next_rank()
            return True
        if self.says_started or rank < self._charged_rank or now_ns < self._touched_until_ns:
            return False
        if self._stale_count and self._late_ns > delivered_at_ns:
            return False
        self._charged_rank = next_rank()
        return True

    def is_blamed_for(self, *, is_suspect: bool) -> bool:
        """Whether a message that was charged when the client was lost may be given up for that.

        One of several may only have been beside the one that ended the client: as a suspect it
        comes again first, to be handled alone.  Of a client that says nothing, the first one is.
        """
        return not self.says_started or is_suspect or self.lost_count == 1
