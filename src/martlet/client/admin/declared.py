"""Groups of operations that are declared in `martlet.schema`, each a line a method.

A redrive leaves newer dead letters alone: one that fails again at once would be redriven for ever.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, TypedDict

from msgspec import structs

from martlet.client.admin.answers import Answers, Position
from martlet.client.admin.http import AdminHttp
from martlet.client.admin.methods import (
    PAGE_ITEMS,
    Method,
    OperationGroup,
    PagesMethod,
    at_each,
    listed,
    search_timeout_s,
    summed,
)
from martlet.schema import dead_letters, delayed, groups, traces, transactions
from martlet.schema.access import OPERATORS
from martlet.schema.dead_letters import Reason
from martlet.schema.groups import GroupDescription, Groups, GroupSummary
from martlet.schema.kinds import Limit
from martlet.schema.operation import OperationRequest, operation
from martlet.schema.read import checked, read_answer


class ResetPosition(TypedDict, total=False):
    """Where a group is reset to: one of these.

    ``to_first``: to the first stored message. ``to_last``: to the end, so that it gets only new
    messages. ``to_time_ms``: to the first message published at or after this time, in milliseconds
    since 1970. ``to_offset``: to this offset; each queue of each broker has offsets of its own.
    """

    to_first: bool
    to_last: bool
    to_time_ms: int | None
    to_offset: int | None


def _groups(answer: Groups) -> tuple[GroupSummary, ...]:
    return answer.groups


def _lag(group: GroupDescription) -> int:
    """Return the messages that a group has not committed yet."""
    return group.lag


class GroupMethods:
    """The methods of both clients."""

    list = at_each(groups.LIST, _groups)
    describe = at_each(groups.DESCRIBE)
    lag = at_each(groups.DESCRIBE, _lag)
    reset = at_each(groups.RESET)


class GroupAdmin(GroupMethods, OperationGroup):
    """The groups of brokers: `Admin.groups`.

    Each method answers for each broker, which has members and offsets of its own, and raises
    AdminError only if none answered. ``reset`` wants one field of `ResetPosition`; the messages
    that a reset forward passes are not delivered.
    """


class DeadLetterFilter(TypedDict, total=False):
    """Which dead letters of a channel are meant; all of the given ones must hold.

    ``ids``: only these. ``reason``: ``max_attempts``, ``timeout``, ``disconnected``, ``rejected``
    or ``given_up``. ``error``: a part of their first or last error. ``since_ms``, ``until_ms``:
    when they were dead-lettered, in milliseconds since 1970.
    """

    ids: Collection[str | bytes]
    reason: Reason
    error: str
    since_ms: int
    until_ms: int


class _FirstDeadLetters(dead_letters.ShowDeadLetters, kw_only=True):
    """The parameters of `show`.

    limit: maximum dead letters of each broker; None for no limit
    """

    limit: Limit | None = 20


class _DeadLettersFrom(dead_letters.ShowDeadLetters, kw_only=True):
    """The parameters of `pages`.

    start: the `AnswerPage.next` of an earlier page, to continue there
    """

    start: Position | None = None


class DeadLetterMethods:
    """The methods of both clients."""

    list = at_each(dead_letters.LIST, lambda answer: answer.dead_letter_topics)
    show = listed(dead_letters.SHOW, _FirstDeadLetters)
    pages = PagesMethod(dead_letters.SHOW, _DeadLettersFrom)
    redrive = summed(dead_letters.REDRIVE)
    purge = summed(dead_letters.PURGE)


class DeadLetterAdmin(DeadLetterMethods, OperationGroup):
    """The dead letters of brokers: `Admin.dead_letters`.

    The dead letters of a channel are named by its topic and channel, or by their
    ``dead_letter_topic``. Each method answers for each broker, and raises AdminError only if none
    answered.

    ``pages`` yields what ``show`` answers in pages, for many dead letters: one broker after the
    other. It raises AdminError where one does not answer. ``redrive`` and ``purge`` want a filter
    or ``all=True``.
    """


class _FirstDelayed(delayed.ListDelayed, kw_only=True):
    """The parameters of `list`.

    limit: maximum messages of each broker; None for no limit
    """

    limit: Limit | None = 20


class _DelayedFrom(delayed.ListDelayed, kw_only=True):
    """The parameters of `pages`.

    start: the `AnswerPage.next` of an earlier page, to continue there
    """

    start: Position | None = None


async def _cancel_all(http: AdminHttp, request: OperationRequest) -> Answers[delayed.Cancelled]:
    topic: str = checked(delayed.OfTopic, request)["topic"]

    async def cancel_at(url: str) -> delayed.Cancelled:
        one = http.at(url)
        cancelled: tuple[str, ...] = ()
        async for page in DelayedMethods.pages.run(one, delayed.ListDelayed(topic)):
            ids = [message.id for message in page.items]
            # A batch that was sent as one may have more than a request takes.
            for start in range(0, len(ids), PAGE_ITEMS):
                some = delayed.CancelDelayed(topic, ids[start : start + PAGE_ITEMS])
                answers = await DelayedMethods.cancel.run(one, some)
                cancelled += answers.values[url].cancelled
        return delayed.Cancelled(cancelled, ())

    return await http.each(await http.brokers(topic), cancel_at)


_CANCEL_ALL = operation(
    delayed.CANCEL.name,
    delayed.OfTopic,
    delayed.Cancelled,
    OPERATORS,
    "Cancel all delayed messages of a topic.",
)


class DelayedMethods:
    """The methods of both clients."""

    list = listed(delayed.LIST, _FirstDelayed)
    pages = PagesMethod(delayed.LIST, _DelayedFrom)
    cancel = at_each(delayed.CANCEL)
    cancel_all = Method(_CANCEL_ALL, _CANCEL_ALL.make, "Answers[Cancelled]", _cancel_all)


class DelayedAdmin(DelayedMethods, OperationGroup):
    """The delayed messages of brokers: `Admin.delayed`.

    Each method answers for each broker, and raises AdminError only if none answered.

    ``pages`` yields what ``list`` answers in pages, for many messages: one broker after the other.
    It raises AdminError where one does not answer. `AnswerPage.count` is the number of all that
    wait there; messages that were sent as one batch are on one page, even beyond the limit.
    """


class ListedTransactions(transactions.ListTransactions, kw_only=True):
    """The parameters of `list`.

    state: only those in this state; all, where it is empty
    group: only those of this group; all, where it is empty
    """

    def __post_init__(self) -> None:
        self.state = self.state or None
        self.group = self.group or None


class TransactionMethods:
    """The methods of both clients."""

    list = at_each(
        dataclasses.replace(transactions.LIST, make=ListedTransactions),
        lambda answer: answer.transactions,
    )
    show = at_each(transactions.SHOW)
    commit = at_each(transactions.COMMIT)
    rollback = at_each(transactions.ROLLBACK)


class TransactionAdmin(TransactionMethods, OperationGroup):
    """The transactions of brokers: `Admin.transactions`.

    A transaction is at one broker, and the others have an `AdminNotFound` for it. AdminError is
    raised only if no broker answered.
    """


async def _find(http: AdminHttp, request: Any) -> Answers[traces.FoundMessages]:
    texts = {name: getattr(request, name) or None for name in ("id", "key", "topic")}
    fields = checked(traces.FindMessages, structs.replace(request, **texts))
    return await http.call_each(
        traces.FIND.name,
        fields,
        lambda answer: read_answer(traces.FoundMessages, answer),
        timeout_s=search_timeout_s(request.time_limit_ms),
    )


class TraceMethods:
    """The methods of both clients."""

    find = Method(traces.FIND, traces.FIND.make, "Answers[FoundMessages]", _find)


class TraceAdmin(TraceMethods, OperationGroup):
    """The history of messages: `Admin.trace`.

    A broker that has no such message answers `AdminNotFound`, and ``find`` raises it if none has.
    An empty text is one that is left out. A request may take the time limit of the search and some
    seconds, whatever ``request_timeout_s`` is.
    """
