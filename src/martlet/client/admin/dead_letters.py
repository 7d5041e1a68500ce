"""Dead letters: count, show, redrive and purge them.

New dead letters are left alone by a redrive: one that fails again at once would be redriven for
ever.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypedDict

from martlet.client.admin.answers import Position
from martlet.client.admin.methods import PagesMethod, at_each, listed, summed
from martlet.client.admin.operation_group import OperationGroup
from martlet.schema.dead_letters import LIST, PURGE, REDRIVE, SHOW, Reason, ShowDeadLetters
from martlet.schema.kinds import Limit


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


class _FirstDeadLetters(ShowDeadLetters, kw_only=True):
    """The parameters of `show`.

    limit: maximum dead letters of each broker; None for no limit
    """

    limit: Limit | None = 20


class _DeadLettersFrom(ShowDeadLetters, kw_only=True):
    """The parameters of `pages`.

    start: the `AnswerPage.next` of an earlier page, to continue there
    """

    start: Position | None = None


class DeadLetterMethods:
    """The methods of both clients."""

    list = at_each(LIST, lambda answer: answer.dead_letter_topics)
    show = listed(SHOW, _FirstDeadLetters)
    pages = PagesMethod(SHOW, _DeadLettersFrom)
    redrive = summed(REDRIVE)
    purge = summed(PURGE)


class DeadLetterAdmin(DeadLetterMethods, OperationGroup):
    """The dead letters of brokers: `Admin.dead_letters`.

    The dead letters of a channel are named by its topic and channel, or by their
    ``dead_letter_topic``. Each method answers for each broker, and raises AdminError only if none
    answered.

    ``pages`` yields what ``show`` answers in pages, for many dead letters: one broker after the
    other. It raises AdminError where one does not answer. ``redrive`` and ``purge`` want a filter
    or ``all=True``.
    """
