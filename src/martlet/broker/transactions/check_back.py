"""Check-back: asks producers for the outcome of an inactive transaction.

::

    last call     inactive, asked   again                again               set aside
    |------ 6 s -----|----- 30 s -----|-- ... -- 30 s -----|----- 30 s -----|
                     1                2                    15

The producers of a group poll for due transactions: to receive one is to be asked. While no producer
of the group is connected, no check is counted; the transaction then waits for as long as an outcome
would be remembered. RocketMQ counts such times too; but then an outage of the producers of eight
minutes would leave all their transactions to an operator, although the producers know the outcomes.

A transaction without a group cannot be checked. It is set aside after the time that all checks
take. One whose producer repeats it from the start is not checked: it is rolled back when it was
inactive.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from martlet.broker.transactions.state import (
    UNWATCHED,
    OpenTransaction,
    TransactionEvent,
    TransactionLimits,
    TransactionState,
    after,
)
from martlet.text import counted

if TYPE_CHECKING:
    from martlet.broker.schedule import Schedule

_FEW = 64
_CHECKED = frozenset({TransactionState.SILENT, TransactionState.IN_DOUBT})


class CheckBack:
    """The transactions to check, and when.

    `give_up` is called with a transaction whose checks failed, and the reason; it returns False to
    be called again.
    """

    def __init__(
        self,
        limits: TransactionLimits,
        clock: Callable[[], int],
        schedule: Schedule,
        give_up: Callable[[OpenTransaction, str], bool],
    ) -> None:
        self.on_due: Callable[[str], None] = lambda group: None
        """Called with a group whose producers have transactions to check."""
        self._limits = limits
        self._clock = clock
        self._give_up = give_up
        self._due: dict[str, dict[str, OpenTransaction]] = {}
        """By group and id: the transactions to check."""
        self._times: list[tuple[int, int, OpenTransaction]] = []
        self._pushed_count = 0
        self._outdated_count = 0
        """The number of outdated times."""
        self._alarm = schedule.alarm(self._examine_due)

    def note_activity(self, transaction: OpenTransaction) -> None:
        """Record activity of a transaction: it is not checked before it is inactive again."""
        transaction.checks = 0
        self.forget(transaction)
        self._examine_after(transaction, transaction.check_after_ns)

    def watch(self, transaction: OpenTransaction) -> None:
        """Start to watch a transaction after a restart: its producers have time to reconnect."""
        if transaction.state not in UNWATCHED:
            self._examine_after(transaction, transaction.check_after_ns)

    def forget(self, transaction: OpenTransaction) -> None:
        """Stop checking a transaction for now."""
        waiting = self._due.get(transaction.group)
        if waiting is not None and waiting.pop(transaction.id, None) is not None and not waiting:
            del self._due[transaction.group]

    def ended(self, transaction: OpenTransaction) -> None:
        """Stop watching a transaction that has ended."""
        self.forget(transaction)
        if transaction.timer_ns:
            transaction.timer_ns = 0
            self._outdate()

    @property
    def waiting_count(self) -> int:
        """The number of scheduled times, outdated ones included."""
        return len(self._times)

    def take(
        self, group: str, max_count: int, suits: Callable[[OpenTransaction], bool]
    ) -> list[OpenTransaction]:
        """Return transactions to check, for a producer that will be asked, if they suit."""
        taken = list(islice(filter(suits, self._due.get(group, {}).values()), max_count))
        for transaction in taken:
            transaction.checks += 1
            self.forget(transaction)
            self._examine_after(transaction, self._limits.check_every_ns)
        return taken

    def _examine_after(self, transaction: OpenTransaction, delay_ns: int) -> None:
        """Examine a transaction after some time, and no earlier."""
        transaction.due_ns = due_ns = self._clock() + delay_ns
        if not 0 < transaction.timer_ns <= due_ns:
            self._wind(transaction)

    def _outdate(self) -> None:
        """Count an outdated time; when most are outdated, remove them."""
        self._outdated_count += 1
        if self._outdated_count > len(self._times) // 2 + _FEW:
            self._times = [time for time in self._times if time[2].timer_ns == time[0]]
            heapify(self._times)
            self._outdated_count = 0

    def _wind(self, transaction: OpenTransaction) -> None:
        if transaction.timer_ns:
            self._outdate()
        transaction.timer_ns = transaction.due_ns
        self._pushed_count += 1
        heappush(self._times, (transaction.due_ns, self._pushed_count, transaction))
        self._alarm.at(self._times[0][0])

    def _examine_due(self, now_ns: int) -> int | None:
        """Examine due transactions. Returns when to run again."""
        groups: dict[str, None] = {}
        while self._times and self._times[0][0] <= now_ns:
            time_ns, _, transaction = heappop(self._times)
            if transaction.timer_ns != time_ns:
                self._outdated_count -= 1
                continue  # It has ended, or has an earlier time.
            transaction.timer_ns = 0
            if transaction.due_ns > now_ns:
                self._wind(transaction)  # It was active since.
            elif why := self._reason_to_stop(transaction, now_ns):
                if not self._give_up(transaction, why):
                    self._examine_after(transaction, self._limits.check_every_ns)
            else:
                self._check(transaction, now_ns)
                if transaction.group:
                    groups[transaction.group] = None
        for group in groups:
            self.on_due(group)
        return self._times[0][0] if self._times else None

    def _check(self, transaction: OpenTransaction, now_ns: int) -> None:
        limits = self._limits
        transaction.state = after(transaction.id, transaction.state, TransactionEvent.CHECK)
        if transaction.group:
            self._due.setdefault(transaction.group, {})[transaction.id] = transaction
            patience_ns = max(limits.remembered_ns - (now_ns - transaction.begun_at_ns), 1)
        else:
            patience_ns = limits.check_every_ns * limits.max_checks
        self._examine_after(transaction, patience_ns)

    def _reason_to_stop(self, transaction: OpenTransaction, now_ns: int) -> str:
        """Return why a due transaction is not checked again; empty if it is."""
        limits = self._limits
        if transaction.may_be_abandoned:
            silent_s = transaction.check_after_ns // 10**9
            return f"no command came for it in {silent_s} s, so its producer begins it again"
        if transaction.checks >= limits.max_checks:
            times = counted(transaction.checks, "time")
            return f"its producers were asked {times}, and did not answer"
        if transaction.state not in _CHECKED:
            return ""
        if not transaction.group:
            return "it has no group that could be asked, and no command came for it"
        if now_ns - transaction.begun_at_ns >= limits.remembered_ns:
            return f"no producer of group {transaction.group!r} could be asked for too long"
        return ""
