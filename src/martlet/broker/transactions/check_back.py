"""Check-back: producers are asked what has become of a transaction that was not heard of.

::

    heard of     silent, asked   asked again          asked again         set aside
    |------ 6 s -----|----- 30 s -----|-- ... -- 30 s -----|----- 30 s -----|
                     1                2                    15

Whoever knows a group's transactions takes those that are due: to take one is to be asked.  While
nobody of the group is there nobody is asked, and nothing is counted; a transaction waits then for
as long as an outcome would be remembered.  RocketMQ counts such times too; but producers that are
down for eight minutes would leave all their work to a person, though they know what became of it.

A transaction without a group has nobody to ask.  It goes aside after the time that asking takes.
One whose producer does it all again is not asked about: it is rolled back when it was silent.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from martlet.broker.transactions.state import (
    OpenTransaction,
    TransactionEvent,
    TransactionState,
    after,
)
from martlet.plural import counted

if TYPE_CHECKING:
    from martlet.broker.schedule import Schedule
    from martlet.broker.transactions.state import TransactionLimits

_FEW = 64
_ASKED = frozenset({TransactionState.SILENT, TransactionState.IN_DOUBT})


class CheckBack:
    """Which transactions are to be asked about, and when.

    Args:
        limits: how long, and how often.
        clock: nanoseconds since 1970.
        schedule: the broker's.
        give_up: called with a transaction that was asked about in vain, and why; False where it
            has to be called again.
    """

    def __init__(
        self,
        limits: TransactionLimits,
        clock: Callable[[], int],
        schedule: Schedule,
        give_up: Callable[[OpenTransaction, str], bool],
    ) -> None:
        self.on_due: Callable[[str], None] = lambda group: None
        """Called with a group whose producers are to be asked."""
        self._limits = limits
        self._clock = clock
        self._give_up = give_up
        self._due: dict[str, dict[str, OpenTransaction]] = {}
        """By group and id: those whose producers are to be asked."""
        self._times: list[tuple[int, int, OpenTransaction]] = []
        self._pushed_count = 0
        self._outdated_count = 0
        """How many of the times are for nothing any more."""
        self._alarm = schedule.alarm(self._look)

    def heard(self, transaction: OpenTransaction) -> None:
        """Its producer lives: nobody is asked before it has been silent again."""
        transaction.checks = 0
        self.forget(transaction)
        self._look_at(transaction, transaction.check_after_ns)

    def watch(self, transaction: OpenTransaction) -> None:
        """Go on after a start: its producers have time to come back."""
        if transaction.state is not TransactionState.SET_ASIDE:
            self._look_at(transaction, transaction.check_after_ns)

    def forget(self, transaction: OpenTransaction) -> None:
        """Nobody needs to be asked about it now."""
        waiting = self._due.get(transaction.group)
        if waiting is not None and waiting.pop(transaction.id, None) is not None and not waiting:
            del self._due[transaction.group]

    def ended(self, transaction: OpenTransaction) -> None:
        """Nobody will be asked about it any more."""
        self.forget(transaction)
        if transaction.timer_ns:
            transaction.timer_ns = 0
            self._outdate()

    @property
    def waiting_count(self) -> int:
        """How many times are known at which to look at one, some of them in vain."""
        return len(self._times)

    def take(
        self, group: str, max_count: int, suits: Callable[[OpenTransaction], bool]
    ) -> list[OpenTransaction]:
        """Those whose producers are to be asked, for one who is going to be, of those that suit."""
        taken = list(islice(filter(suits, self._due.get(group, {}).values()), max_count))
        for transaction in taken:
            transaction.checks += 1
            self.forget(transaction)
            self._look_at(transaction, self._limits.check_every_ns)
        return taken

    def _look_at(self, transaction: OpenTransaction, delay_ns: int) -> None:
        """Look at it after some time, and no earlier."""
        transaction.due_ns = due_ns = self._clock() + delay_ns
        if not 0 < transaction.timer_ns <= due_ns:
            self._wind(transaction)

    def _outdate(self) -> None:
        """One of the times is for nothing: when most are, they leave, though they may be far."""
        self._outdated_count += 1
        if self._outdated_count > len(self._times) // 2 + _FEW:
            self._times = [each for each in self._times if each[2].timer_ns == each[0]]
            heapify(self._times)
            self._outdated_count = 0

    def _wind(self, transaction: OpenTransaction) -> None:
        if transaction.timer_ns:
            self._outdate()
        transaction.timer_ns = transaction.due_ns
        self._pushed_count += 1
        heappush(self._times, (transaction.due_ns, self._pushed_count, transaction))
        self._alarm.at(self._times[0][0])

    def _look(self, now_ns: int) -> int | None:
        """Do what is due. Returns when to look again."""
        groups: dict[str, None] = {}
        while self._times and self._times[0][0] <= now_ns:
            time_ns, _, transaction = heappop(self._times)
            if transaction.timer_ns != time_ns:
                self._outdated_count -= 1
                continue  # It has ended, or is looked at earlier.
            transaction.timer_ns = 0
            if transaction.due_ns > now_ns:
                self._wind(transaction)  # It was heard of since.
            elif why := self._in_vain(transaction, now_ns):
                if not self._give_up(transaction, why):
                    self._look_at(transaction, self._limits.check_every_ns)
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
        self._look_at(transaction, patience_ns)

    def _in_vain(self, transaction: OpenTransaction, now_ns: int) -> str:
        """Why one that is due is not worth another question; empty if it is."""
        limits = self._limits
        if transaction.may_be_abandoned:
            silent_s = transaction.check_after_ns // 10**9
            return f"nothing was heard of it for {silent_s} s, so its producer does it all again"
        if transaction.checks >= limits.max_checks:
            return (
                f"its producers were asked {counted(transaction.checks, 'time')}, and did not tell"
            )
        if transaction.state not in _ASKED:
            return ""
        if not transaction.group:
            return "it has no group that could be asked, and was not heard of"
        if now_ns - transaction.begun_at_ns >= limits.remembered_ns:
            return f"nobody of group {transaction.group!r} could be asked for too long"
        return ""
