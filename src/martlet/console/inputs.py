"""The fields of a form or of an address, checked before they are used."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeVar

from aiohttp import web
from msgspec import inspect
from msgspec.structs import FieldInfo
from multidict import MultiMapping

from martlet.client.admin import Admin, AdminError, AdminNotFound, AnswerPage, Position
from martlet.console.cluster import ClusterView
from martlet.console.site import SITE, Site
from martlet.names import ID_RULE, NAME_RULE, is_message_id, is_valid_name
from martlet.options.checks import parse_time
from martlet.options.flag import OptionError
from martlet.schema.operation import RequestT
from martlet.schema.read import Refusal, fields_of, is_position, read_request, type_of
from martlet.text import MILLISECOND_NS

Form = MultiMapping[str]
T = TypeVar("T")
MAX_CHOSEN = 500
"""The maximum of topics or messages in one form."""
_MAX_S = 5.0
"""The time for the pages of a list."""
_UNSET = ("", "0", "false", "no", "off")
"""What a flag of a form is, where it is not set."""
_MAX_NUMBER = (1 << 63) - 1
_MAX_DIGITS = 19
_MAX_QUOTED = 80
_DATE = re.compile(r"\d{4}-")


def quoted(text: str) -> str:
    """Return the beginning of a text that a client made up, as a refusal names it."""
    return repr(text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}...")


class ActionRefused(Exception):
    """The fields of a form are wrong; the text says how."""


@dataclass(frozen=True)
class Inputs:
    """What a user gave. Each method raises ActionRefused where a field is wrong."""

    site: Site
    view: ClusterView
    fields: Form
    """Of the form or the address."""
    user: str = ""
    """The name of who acts."""

    def text(self, name: str) -> str:
        """Return a field without spaces around it; empty where it is missing."""
        return self.fields.get(name, "").strip()

    def flag(self, name: str) -> bool:
        """Return whether a field is set, and not to what says no."""
        return self.text(name).lower() not in _UNSET

    def name(self, field: str, *, optional: bool = False) -> str:
        """Return the name of a topic or a channel."""
        name = self.text(field)
        if (name or not optional) and not is_valid_name(name):
            raise ActionRefused(f"{field}: {quoted(name)} is no name, which has {NAME_RULE}")
        return name

    def number(self, field: str, default: int = 0) -> int:
        """Return a whole number."""
        text = self.text(field)
        if not text:
            return default
        digits = text.lstrip("0") or "0"
        is_number = text.isascii() and text.isdecimal() and len(digits) <= _MAX_DIGITS
        if not is_number or int(digits) > _MAX_NUMBER:
            raise ActionRefused(f"{field}: {quoted(text)} is no whole number from 0 on")
        return int(digits)

    def time_ns(self, field: str) -> int:
        """Return a time in nanoseconds since 1970, written as the page does, or how long ago. One
        before 1970 or after 2262 is the nearest that brokers know.
        """
        text = self.text(field)
        if _DATE.match(text):
            try:
                moment = datetime.fromisoformat(text.removesuffix("UTC").strip())
                moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
                return min(max(0, round(moment.timestamp() * 1e9)), _MAX_NUMBER)
            except (ValueError, OverflowError):
                pass
        try:
            return min(parse_time(field, text, time.time_ns()), _MAX_NUMBER)
        except OptionError:
            raise ActionRefused(
                f"{field}: {quoted(text)} is no time; write 2026-01-31 12:00:00, which is UTC, or"
                " how long ago, as 90m"
            ) from None

    def ids(self, field: str = "ids") -> list[str]:
        """Return the chosen messages' ids, at least one."""
        ids = list(dict.fromkeys(self.fields.getall(field, [])))
        if not ids:
            raise ActionRefused("no message was chosen: go back and choose some")
        if len(ids) > MAX_CHOSEN:
            raise ActionRefused(f"{len(ids)} messages were chosen; the maximum is {MAX_CHOSEN}")
        for message_id in ids:
            if not is_message_id(message_id):
                raise ActionRefused(f"{quoted(message_id)} is no message's id: {ID_RULE}")
        return ids

    def chosen(self, *filters: str) -> list[str] | None:
        """Return the chosen messages' ids; None for all, or for all that a filter leaves, where the
        form says so.
        """
        if self.flag("chosen"):
            return self.ids()
        if "ids" in self.fields or not (self.flag("all") or any(map(self.text, filters))):
            raise ActionRefused("nothing was chosen: go back and choose some, or all of them")
        return None

    def request(self, kind: type[RequestT], **fixed: object) -> RequestT:
        """Return the request that the fields make, with fixed values for some."""
        values = {
            name: fixed[name] if name in fixed else self._value(name, field)
            for name, field in fields_of(kind).items()
        }
        try:
            return read_request(kind, {name: v for name, v in values.items() if v is not None})
        except Refusal as refusal:
            raise ActionRefused(refusal.spelled(_spell)) from None

    def _value(self, name: str, field: FieldInfo) -> object:
        """Return the value of a request's field; None where the form leaves it empty."""
        kind, extra = type_of(field)
        if is_position(field):
            return None  # Where a list continues: the form says that by `start`.
        if isinstance(kind, inspect.CollectionType):
            return self.ids(name) if self.flag("chosen") else None
        if isinstance(kind, inspect.BoolType):
            return self.flag(name) or None
        if isinstance(kind, inspect.IntType):
            if self.text(name):
                return self.number(name)
            time_name = name.removesuffix("_ms")
            is_time = extra.get("kind") == "time" and self.text(time_name)
            return self.time_ns(time_name) // MILLISECOND_NS if is_time else None
        # Spaces belong to a text that is searched for, but to no name.
        is_name = extra.get("code") == "BAD_NAME"
        return (self.text(name) if is_name else self.fields.get(name)) or None

    @cached_property
    def broker(self) -> str:
        """The URL of the only broker; empty for all.

        Requests carry the operators' token: they go to no address that a request makes up.
        """
        url = self.fields.get("broker", "")
        if url and url not in self.view.brokers:
            raise ActionRefused(f"there is no broker {quoted(url)}")
        return url

    @property
    def admin(self) -> Admin:
        """The way to the broker, or to all."""
        return self.site.admin.at(self.broker) if self.broker else self.site.admin

    @property
    def start(self) -> Position | None:
        """Where a list of a broker continues, from the field ``on``; None for its beginning."""
        text = self.fields.get("on", "")
        if not text:
            return None
        try:
            where = json.loads(text)
        except (ValueError, RecursionError):
            where = None
        if not self.broker or not isinstance(where, dict):
            raise ActionRefused("the list does not continue there: begin again without 'on'")
        return Position(self.broker, where)

    def urls(self, topic: str) -> list[str]:
        """Return the only broker, or those that have a topic; all where that is not known."""
        if self.broker:
            return [self.broker]
        totals = self.view.topics.get(topic)
        return sorted(totals.nodes if totals else self.view.brokers)

    async def first_pages(
        self,
        urls: Iterable[str],
        read: Callable[[Admin], AsyncGenerator[AnswerPage[T], None]],
        max_rows: int,
        *,
        may_lack: bool = False,
    ) -> tuple[list[AnswerPage[T]], list[str]]:
        """Return the beginning of a list of each broker, and what went wrong.

        Args:
            urls: of the brokers.
            read: asks one for its pages, which may hold few rows.
            max_rows: the number of rows of each broker from which on no more pages are read.
            may_lack: whether all brokers may lack what is listed.

        Raises:
            AdminError: no broker answered.
        """

        async def first(url: str) -> AnswerPage[T] | AdminError:
            items: tuple[T, ...] = ()
            count = None
            try:
                async with aclosing(read(self.site.admin.at(url))) as pages:
                    async for page in pages:
                        items += page.items
                        count = page.count if count is None else count
                        if len(items) >= max_rows or time.monotonic() > ends_s:
                            return AnswerPage(broker=url, items=items, next=page.next, count=count)
            except AdminError as error:
                return error
            return AnswerPage(broker=url, items=items, count=count)

        ends_s = time.monotonic() + _MAX_S
        answers = await asyncio.gather(*map(first, urls))
        errors = [answer for answer in answers if isinstance(answer, AdminError)]
        serious = [error for error in errors if not isinstance(error, AdminNotFound)]
        if errors and len(errors) == len(answers) and (serious or not may_lack):
            raise (serious or errors)[0]
        pages = [answer for answer in answers if isinstance(answer, AnswerPage)]
        return pages, list(map(str, serious))


async def inputs_of(request: web.Request) -> Inputs:
    """Return what the address of a page says, with a fresh view of the brokers."""
    site = request.app[SITE]
    return Inputs(site, await site.collector.fresh(), request.query)


def _spell(name: str, value: str | None) -> str:
    return name if value is None else f"{name}: {value!r}"


def continued(position: Position | None) -> Mapping[str, Any]:
    """Return the fields of the address where a list continues; empty at its end."""
    if position is None:
        return {}
    return {"broker": position.broker, "on": json.dumps(dict(position.place))}
