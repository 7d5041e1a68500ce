"""Started messages: which of its messages a client has started to handle.

Only those fail when they time out or the connection is lost; the others were waiting in the client
and are redelivered without a failure.  Deliveries have ranks, rising over all queues, one for each
grant; so rank and offset together are the order of delivery to a client.

Martlet's clients announce the messages that they start; for NSQ's clients, which cannot, it is
inferred from the order, since clients handle messages in the order of delivery::

    event             the client announces    it does not
    STARTED m         reached: m              reached: m
    FIN, REQ of m     -                       reached: m; from the touched one on: none is touched
    TOUCH m           -                       reached: m; touched: m, unless it is before reached
    m times out       one more copy of a timed-out message is in the client
    FIN, REQ of       one copy less, unless the client has another of it; the client is at the
    a copy            copies now

    m times out, or its client is lost: the first row that fits
    up to reached                             charged; if it is touched: none is, a round begins
    the client announces                      not charged: it waits in the client
    delivered before the round began          not charged: it waited behind the one charged then
    one is touched, and not timed out         not charged: the client is at that one
    copies are left, and the client was at    not charged: the client has not come to m yet
    them after the delivery of m
    anything else: the first behind reached   charged: a handler may have it; a round begins

Reached and touched only move forward. Each answer to a copy uses one up, so no message is
redelivered for ever without a failure.

A message that crashes clients which announce it fails at each loss. The first loss makes no dead
letter, since the client's last answers and announcements may be lost with it: the messages that
fail become suspects, which a client handles one at a time, each once the broker has answered its
announcement. So a poison message is dead after ``max_attempts`` losses, or 2 if that is 1, and a
harmless one fails at most once. If the broker is killed while it moves a dead letter, the message
is delivered once more, which costs up to 2 losses.
"""

from __future__ import annotations

from itertools import count

from martlet.properties.model import Properties

Rank = tuple[int, int]
"""The rank and offset of a message: the order of delivery to a client."""
NOTHING: Rank = (0, -1)

next_rank = count(1).__next__


def notes_of(failures: int, *, is_suspect: bool) -> bytes:
    """Return the notes on a failed message for a client that announces messages, as packed
    properties: ``failures``, and ``suspect`` if the last failure was a lost connection.
    """
    suspect = {"suspect": "1"} if is_suspect else {}
    return Properties(system={"failures": str(failures), **suspect}).pack()


class StartedMessages:
    """The progress of a client in its deliveries, on all queues of a channel."""

    __slots__ = (
        "_at_copies_ns",
        "_copy_count",
        "_reached",
        "_round_rank",
        "_touched",
        "_touched_until_ns",
        "in_order",
        "says_started",
        "takes_no_more",
    )

    def __init__(self, *, says_started: bool = False) -> None:
        self.says_started = says_started
        """Whether the client announces the messages that it starts."""
        self.in_order = False
        """Whether the client handles each queue's messages one after the other, and drops those
        behind one that fails. It announces each, so not all delivered before were started.
        """
        self.takes_no_more = False
        """Whether the client closes by CLS: messages that it returns then were not started."""
        self._reached = NOTHING
        self._touched = NOTHING
        self._touched_until_ns = 0
        self._round_rank = 0
        """Messages of a lower rank were delivered before this round began."""
        self._copy_count = 0
        """The number of copies of timed-out messages that the client has yet to handle."""
        self._at_copies_ns = 0
        """When it last answered such a copy."""

    def started(self, rank: int, offset: int) -> None:
        """Record that the client starts this message, and started all delivered before it."""
        self._reached = max(self._reached, (rank, offset))

    def answered(self, rank: int, offset: int) -> None:
        """Record the client's answer to this message."""
        if not self.says_started:
            self.started(rank, offset)
            if (rank, offset) >= self._touched:
                self._touched_until_ns = 0

    def touched(self, rank: int, offset: int, until_ns: int) -> None:
        """Record that the client extended this message's timeout."""
        if not self.says_started:
            if (rank, offset) >= self._reached:
                self._touched, self._touched_until_ns = (rank, offset), until_ns
            self.started(rank, offset)

    def timed_out(self) -> None:
        """Record that the client has a copy of a message that timed out."""
        self._copy_count += 1

    def answered_late(self, now_ns: int, *, used_up: bool = True) -> None:
        """Record the client's answer to such a copy; unless `used_up`, it has another copy."""
        if self._copy_count:
            self._copy_count -= used_up
            self._at_copies_ns = now_ns

    def charges(self, rank: int, offset: int, delivered_at_ns: int, now_ns: int) -> bool:
        """Whether a message gets a failure when its client is lost, or it times out.

        Must be called in the order of delivery.
        """
        if (rank, offset) <= self._reached:
            if (rank, offset) == self._touched and self._touched_until_ns:
                self._touched_until_ns = 0
                self._round_rank = next_rank()
            return True
        if (
            self.says_started
            or rank < self._round_rank
            or now_ns < self._touched_until_ns
            or (self._copy_count and self._at_copies_ns > delivered_at_ns)
        ):
            return False
        self._round_rank = next_rank()
        return True

    def is_blamed_for(self, *, is_suspect: bool) -> bool:
        """Whether the loss of the client may make this message, which failed by it, a dead letter:
        if it is a suspect, or the client announces nothing.
        """
        return not self.says_started or is_suspect
