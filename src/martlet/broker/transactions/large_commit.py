"""The commit of a large transaction: published in steps, visible at once.

::

    commit --> its messages are on the disk
           --> bundle 1, with a CommittingEntry: decided
           --> bundle 2, 3 ..., with a CommittingEntry each; other requests are served in between
           --> all of these are on the disk
           --> last bundle, with the CommittedEntry: ended, and readers see all messages

The broker serves nothing else while it copies a bundle, so a bundle is small
(`TransactionLimits.bundle_bytes`), and a transaction may have any size. Readers see no message of
the touched queues from the first one of the commit on, before it has ended: other messages that
arrive meanwhile wait too (see `SingleQueueTopic.hold`). So one large commit is under way at a time,
and others wait for it.

From the first bundle on, the commit goes on after any crash, and nothing can undo it. A power cut
may have lost some of its bundles, and kept later ones: it publishes again what is missing. This
takes that the half messages were durable before the first bundle, that they are kept until the
end, and that all bundles but the last are durable before the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from martlet.broker.errors import BrokerError, WritesRefused
from martlet.broker.journal.entries import CommittingEntry, HalfBatch, PublishedRange

if TYPE_CHECKING:
    from martlet.broker.transactions.half_messages import HalfMessageStore, TransactionContext
    from martlet.broker.transactions.state import CommitSequence, OpenTransaction

_REST_NS = 1_000_000
"""The pause after a bundle, in which other requests are served."""
_FLUSH_CHECK_NS = 5_000_000
"""The interval at which the end of a flush is awaited."""
_RETRY_NS = 1_000_000_000
"""The delay before a refused step is tried again."""


class LargeCommit:
    """The commit of one large transaction, decided or about to be.

    Args:
        end: called to store the last messages with the entry that ends the commit. Raises
            WritesRefused and BrokerError.
        on_unflushed: called when the commit goes on once the log is flushed.
    """

    def __init__(
        self,
        context: TransactionContext,
        messages: HalfMessageStore,
        transaction: OpenTransaction,
        bundle_bytes: int,
        end: Callable[[OpenTransaction, Sequence[HalfBatch]], None],
        on_unflushed: Callable[[], None],
    ) -> None:
        self.transaction = transaction
        self.trouble = ""
        """Why the last step was refused; empty if it was not."""
        self._context = context
        self._messages = messages
        self._bundle_bytes = bundle_bytes
        self._end = end
        self._on_unflushed = on_unflushed
        self._remaining: deque[HalfBatch] = deque()
        self._alarm = context.schedule.alarm(self._go_on)

    def begin(self, batches: Sequence[HalfBatch], branches: Mapping[str, int]) -> None:
        """Decide the commit of batches, those of all branches in order, and publish the first.
        Raises BrokerError and WritesRefused; then it has not begun.
        """
        assert self._context.log.durable_position >= self.transaction.position
        self._messages.check(self.transaction, batches)
        self._remaining.extend(batches)
        self._publish(self._next_bundle(), branches)
        self._alarm.at(self._context.clock())

    def resume(self) -> None:
        """Go on after a start."""
        self._messages.hold_again(self.transaction)
        self._remaining.extend(self.transaction.unpublished())
        self._alarm.at(self._context.clock())

    def delays(self, transaction_id: str, sequence: CommitSequence | None) -> bool:
        """Whether the outcome of another commit depends on this one's end."""
        own = self.transaction
        return own.id == transaction_id or (
            own.sequence is not None and sequence is not None and own.sequence.name == sequence.name
        )

    def _publish(self, batches: Sequence[HalfBatch], branches: Mapping[str, int]) -> None:
        """Publish the next messages."""
        own, first, end = self.transaction, batches[0].first_offset, batches[-1].first_offset + 1
        position = self._messages.forward_held(
            own,
            batches,
            lambda held, topics: CommittingEntry(own.id, branches, first, end, held, topics),
        )
        own.publish(branches, PublishedRange(first, end, position))
        for _ in batches:
            self._remaining.popleft()

    def _next_bundle(self) -> list[HalfBatch]:
        batches: list[HalfBatch] = []
        size_bytes = 0
        for batch in self._remaining:
            size_bytes += batch.size_bytes
            if batches and size_bytes > self._bundle_bytes:
                break
            batches.append(batch)
        return batches

    def _go_on(self, now_ns: int) -> int | None:
        """Take the next step. Returns the time of the one after it."""
        own, log = self.transaction, self._context.log
        try:
            batches = self._next_bundle()
            if len(batches) < len(self._remaining):
                assert own.chosen is not None
                self._publish(batches, own.chosen)
            elif log.durable_position < max((p.position for p in own.published), default=0):
                self._on_unflushed()
                return now_ns + _FLUSH_CHECK_NS
            else:
                self._end(own, batches)
                return None
        except (BrokerError, WritesRefused) as error:
            self.trouble = str(error)
            return now_ns + _RETRY_NS
        self.trouble = ""
        return now_ns + _REST_NS
