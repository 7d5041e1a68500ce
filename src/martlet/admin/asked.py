"""The fields of a form or of an address, checked before they are used."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from multidict import MultiMapping

from martlet.admin.actions import ActionRefused
from martlet.admin.cluster import ClusterView
from martlet.admin.site import Site
from martlet.client.admin import Admin, Position
from martlet.names import NAME_RULE, is_valid_name
from martlet.options.checks import parse_time
from martlet.options.flag import OptionError

Form = MultiMapping[str]
MAX_CHOSEN = 500
"""The maximum of ids in one form."""
_MAX_NUMBER = (1 << 63) - 1
_ID = re.compile(r"[0-9a-f]{16}")
_DATE = re.compile(r"\d{4}-")


@dataclass(frozen=True)
class Asked:
    """What a request asks for. Each method raises ActionRefused where a field is wrong.

    Attributes:
        site: of the page.
        view: the brokers that there are.
        fields: of the form or the address.
    """

    site: Site
    view: ClusterView
    fields: Form

    def text(self, name: str) -> str:
        """Return a field without spaces around it; empty where it is missing."""
        return self.fields.get(name, "").strip()

    def name(self, field: str, *, optional: bool = False) -> str:
        """Return the name of a topic or a channel."""
        found = self.text(field)
        if (found or not optional) and not is_valid_name(found):
            raise ActionRefused(f"{field}: {found!r} is no name, which has {NAME_RULE}")
        return found

    def number(self, field: str, default: int = 0) -> int:
        """Return a whole number."""
        text = self.text(field)
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and int(text[:20]) <= _MAX_NUMBER):
            raise ActionRefused(f"{field}: {text[:40]!r} is no whole number from 0 on")
        return int(text)

    def time_ns(self, field: str) -> int:
        """Return a time in nanoseconds since 1970, written as the page does, or how long ago."""
        text = self.text(field)
        if _DATE.match(text):
            try:
                found = datetime.fromisoformat(text.removesuffix("UTC").strip())
                return round(
                    (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1e9
                )
            except (ValueError, OverflowError):
                pass
        try:
            return parse_time(field, text, time.time_ns())
        except OptionError:
            raise ActionRefused(
                f"{field}: {text[:40]!r} is no time; write 2026-01-31 12:00:00, which is UTC, or"
                " how long ago, as 90m"
            ) from None

    def ids(self, field: str = "ids") -> list[str]:
        """Return the chosen messages' ids, at least one."""
        found = list(dict.fromkeys(self.fields.getall(field, [])))
        if not found:
            raise ActionRefused("no message was chosen: go back and choose some")
        if len(found) > MAX_CHOSEN:
            raise ActionRefused(f"{len(found)} messages were chosen; the maximum is {MAX_CHOSEN}")
        for each in found:
            if not _ID.fullmatch(each):
                raise ActionRefused(f"{each[:40]!r} is no message's id: 16 hexadecimal digits")
        return found

    def chosen(self, *filters: str) -> list[str] | None:
        """Return the chosen messages' ids; None for all, or for all that a filter leaves, where the
        form says so.

        Args:
            filters: the fields that can select messages instead.
        """
        if self.text("chosen"):
            return self.ids()
        if "ids" in self.fields or not any(map(self.text, ("all", *filters))):
            raise ActionRefused("nothing was chosen: go back and choose some, or all of them")
        return None

    @cached_property
    def broker(self) -> str:
        """The URL of the only broker; empty for all.

        Requests carry the operators' token: they go to no address that a request makes up.
        """
        found = self.fields.get("broker", "")
        if found and found not in self.view.brokers:
            raise ActionRefused(f"there is no broker {found!r}")
        return found

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
            place = json.loads(text)
        except (ValueError, RecursionError):
            place = None
        if not self.broker or not isinstance(place, dict):
            raise ActionRefused("the list does not continue there: begin again without 'on'")
        return Position(self.broker, place)


def continued(position: Position | None) -> Mapping[str, Any]:
    """Return the fields of the address where a list continues; empty at its end."""
    if position is None:
        return {}
    return {"broker": position.broker, "on": json.dumps(dict(position.place))}
