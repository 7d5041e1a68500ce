"""Delayed messages: list and cancel them."""

from __future__ import annotations

from martlet.client.admin.answers import Answers, Position
from martlet.client.admin.http import AdminHttp
from martlet.client.admin.methods import PAGE_ITEMS, Method, PagesMethod, at_each, listed
from martlet.client.admin.operation_group import OperationGroup
from martlet.schema.access import OPERATORS
from martlet.schema.delayed import CANCEL, LIST, CancelDelayed, Cancelled, ListDelayed, OfTopic
from martlet.schema.kinds import Limit
from martlet.schema.operation import OperationRequest, operation
from martlet.schema.read import checked


class _FirstDelayed(ListDelayed, kw_only=True):
    """The parameters of `list`.

    limit: maximum messages of each broker; None for no limit
    """

    limit: Limit | None = 20


class _DelayedFrom(ListDelayed, kw_only=True):
    """The parameters of `pages`.

    start: the `AnswerPage.next` of an earlier page, to continue there
    """

    start: Position | None = None


async def _cancel_all(http: AdminHttp, request: OperationRequest) -> Answers[Cancelled]:
    topic: str = checked(OfTopic, request)["topic"]

    async def cancel_at(url: str) -> Cancelled:
        one = http.at(url)
        cancelled: tuple[str, ...] = ()
        async for page in DelayedMethods.pages.run(one, ListDelayed(topic)):
            ids = [message.id for message in page.items]
            # A batch that was sent as one may have more than a request takes.
            for start in range(0, len(ids), PAGE_ITEMS):
                some = CancelDelayed(topic, ids[start : start + PAGE_ITEMS])
                answers = await DelayedMethods.cancel.run(one, some)
                cancelled += answers.values[url].cancelled
        return Cancelled(cancelled, ())

    return await http.each(await http.brokers(topic), cancel_at)


_CANCEL_ALL = operation(
    CANCEL.name, OfTopic, Cancelled, OPERATORS, "Cancel all delayed messages of a topic."
)


class DelayedMethods:
    """The methods of both clients."""

    list = listed(LIST, _FirstDelayed)
    pages = PagesMethod(LIST, _DelayedFrom)
    cancel = at_each(CANCEL)
    cancel_all = Method(_CANCEL_ALL, _CANCEL_ALL.make, "Answers[Cancelled]", _cancel_all)


class DelayedAdmin(DelayedMethods, OperationGroup):
    """The delayed messages of brokers: `Admin.delayed`.

    Each method answers for each broker, and raises AdminError only if none answered.

    ``pages`` yields what ``list`` answers in pages, for many messages: one broker after the other.
    It raises AdminError where one does not answer. `AnswerPage.count` is the number of all that
    wait there; messages that were sent as one batch are on one page, even beyond the limit.
    """
