"""Traces: find a message and its history."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from martlet.client.admin.answers import Answers
from martlet.client.admin.http import AdminHttp
from martlet.client.admin.methods import Method, search_timeout_s
from martlet.client.admin.operation_group import OperationGroup
from martlet.schema.read import checked, read_answer
from martlet.schema.traces import FIND, FindMessages, FoundMessages


async def _find(http: AdminHttp, request: Any) -> Answers[FoundMessages]:
    texts = {name: getattr(request, name) or None for name in ("id", "key", "topic")}
    fields = checked(FindMessages, replace(request, **texts))
    return await http.call_each(
        FIND.name,
        fields,
        lambda answer: read_answer(FoundMessages, answer),
        timeout_s=search_timeout_s(request.time_limit_ms),
    )


class TraceMethods:
    """The methods of both clients."""

    find = Method(FIND, FIND.make, "Answers[FoundMessages]", _find)


class TraceAdmin(TraceMethods, OperationGroup):
    """The history of messages: `Admin.trace`.

    A broker that has no such message answers `AdminNotFound`, and ``find`` raises it if none has.
    An empty text is one that is left out. A request may take the time limit of the search and some
    seconds, whatever ``request_timeout_s`` is.
    """
