"""Started messages: which of its messages a client has started to handle.

Only those fail when they time out or the connection is lost; the others were waiting in the client
and are redelivered without a failure.  Deliveries have ranks, rising over all queues, one for each
grant; so rank and offset together are the order of delivery to a client::

    rank, offset      7,100   7,101   7,102   9,40    12,103   12,104   12,105
                      FIN     FIN     -       FIN     -        -        -
                                      |       |       |        |______________ not started
                                      |       |       the first one behind those reached
                                      started before the answered ones

Martlet's clients announce the messages that they start (STARTED): only this counts. For NSQ's
clients, which cannot, it is inferred from the order, since clients handle messages in the order of
delivery. An answered or touched message was started, and so were all delivered before it; behind
those, the first message may be in a handler, unless a touched one is known to be. This first one
gets a failure once for each round of deliveries: messages delivered before its failure, and still
unanswered, waited behind it. A slow client also has copies of timed-out messages, which it handles
before later ones: as long as it answers those, it has not reached the first one behind. Each such
answer uses up one copy, so no message can be redelivered for ever without a failure.

With a client that announces messages, one that crashes it fails at each such loss, since it was
announced before. It does not become a dead letter for the first loss, even if the broker knows of
no other started message: the client's last answers and announcements may be lost with it. All that
fail are suspects from then on, and the client handles suspects one at a time, each once the broker
has answered its announcement. So a poison message is dead after ``max_attempts`` losses, or 2 if
that is 1; and a harmless message fails in at most one loss, since it is never again beside a
message that crashes a client. If the broker is killed while it moves a dead letter, the message is
delivered once more, which costs up to 2 losses.
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
    """The progress of a client in its deliveries, on all queues of a channel.

    Args:
        says_started: whether the client announces the messages that it starts.

    Attributes:
        in_order: whether the client handles the messages of each queue one after the other, and
            drops those behind one that fails. It announces each message, and so those delivered
            before were not all started.
    """

    __slots__ = (
        "_charged_rank",
        "_late_ns",
        "_reached",
        "_stale_count",
        "_touched",
        "_touched_until_ns",
        "in_order",
        "says_started",
        "takes_no_more",
    )

    def __init__(self, *, says_started: bool = False) -> None:
        self.says_started = says_started
        self.in_order = False
        self.takes_no_more = False
        """Whether the client closes by CLS: messages that it returns then were not started."""
        self._reached = NOTHING
        self._touched = NOTHING
        self._touched_until_ns = 0
        self._charged_rank = 0
        """Messages of a lower rank were delivered before the last failure of a first message."""
        self._stale_count = 0
        """The number of copies of timed-out messages that the client has yet to handle."""
        self._late_ns = 0
        """When it last answered such a copy."""

    def started(self, rank: int, offset: int) -> None:
        """Record that the client starts this message, and started all delivered before it."""
        self._reached = max(self._reached, (rank, offset))

    def answered(self, rank: int, offset: int) -> None:
        """Record the client's answer to this message."""
        if self.says_started:
            return
        self._reached = max(self._reached, (rank, offset))
        if (rank, offset) >= self._touched:
            self._touched_until_ns = 0

    def touched(self, rank: int, offset: int, until_ns: int) -> None:
        """Record that the client extended this message's timeout."""
        if self.says_started:
            return
        if (rank, offset) >= max(self._reached, self._touched):
            self._touched, self._touched_until_ns = (rank, offset), until_ns
        self._reached = max(self._reached, (rank, offset))

    def timed_out(self) -> None:
        """Record that the client has a copy of a message that timed out."""
        self._stale_count += 1

    def answered_late(self, now_ns: int, *, used_up: bool = True) -> None:
        """Record the client's answer to such a copy; unless `used_up`, it has another copy."""
        if self._stale_count:
            self._stale_count -= used_up
            self._late_ns = now_ns

    def charges(self, rank: int, offset: int, delivered_at_ns: int, now_ns: int) -> bool:
        """Whether a message gets a failure when its client is lost, or it times out.

        Must be called in the order of delivery.
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
        """Whether a message that failed because its client was lost may become a dead letter for
        that.

        It may only have been beside the one that crashed the client: as a suspect it is redelivered
        first, to be handled alone. For a client that announces nothing, the first one is blamed.
        """
        return not self.says_started or is_suspect
