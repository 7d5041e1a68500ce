"""Dead letters: by topic, channel, reason and error, one by one, and back to where they failed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from aiohttp import web

from martlet.admin.actions import ActionRefused
from martlet.admin.asked import Asked, continued
from martlet.admin.guard import user_of
from martlet.admin.operations import TYPED_FROM, Preview, PreviewedChange, silent, with_failures
from martlet.admin.pages.bodies import LISTED_BYTES, body_text
from martlet.admin.pages.export import check_may_download, send_lines
from martlet.admin.site import SITE
from martlet.client.admin import (
    Admin,
    AdminError,
    AdminNotFound,
    AnswerPage,
    Answers,
    DeadLetterFilter,
    DeadLetterMessage,
    Moved,
)
from martlet.plural import counted
from martlet.schema.dead_letters import Reason

_MAX_TOPICS = 100
_MAX_GROUPED = 1000
"""The letters of each dead-letter topic and broker that are read to group them."""
_MAX_S = 5.0
_ROWS = 50
_MAX_EXPORTED = 10_000
_MAX_EXPORTED_BODY = 1 << 20
_ERROR_LENGTH = 200
_FILTER = ("topic", "channel", "dead_letter_topic", "reason", "error", "since", "until")


@dataclass
class LetterGroup:
    """Dead letters of one channel with one reason and one latest error.

    Attributes:
        dead_letter_topic: where they are.
        topic, channel: where they come from.
        reason: why they are dead.
        error: the latest error of each; empty where they are not grouped by it.
        count: how many.
        tries: how often they were delivered, the least and the greatest; empty if unknown.
        first, latest: the one that died first, and last.
    """

    dead_letter_topic: str
    topic: str
    channel: str
    reason: str
    error: str
    first: DeadLetterMessage
    latest: DeadLetterMessage
    count: int = 0
    tries: set[int] = field(default_factory=set)

    def add(self, letter: DeadLetterMessage) -> None:
        """Count a letter."""
        self.count += 1
        if letter.attempts is not None:
            self.tries = {min({letter.attempts, *self.tries}), max({letter.attempts, *self.tries})}
        self.first = min(self.first, letter, key=lambda each: each.at_ms)
        self.latest = max(self.latest, letter, key=lambda each: each.at_ms)

    @property
    def selection(self) -> dict[str, str]:
        """The fields that select them."""
        fields = {"reason": self.reason, "error": self.error}
        if self.topic and self.channel:
            return {"topic": self.topic, "channel": self.channel, **fields}
        return {"dead_letter_topic": self.dead_letter_topic, **fields}


@dataclass
class KeptLetters:
    """A dead-letter topic of all brokers, with the channels whose letters it has.

    Attributes:
        name: of the topic.
        count: its dead letters.
        grouped: how many of those were read to group them.
        groups: by channel, reason and error, the largest first.
        errors: why some could not be read.
    """

    name: str
    count: int = 0
    grouped: int = 0
    groups: list[LetterGroup] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def overview(request: web.Request) -> web.StreamResponse:
    """``/dead``"""
    site = request.app[SITE]
    answers = await site.admin.dead_letters.list()
    counts: Counter[str] = Counter()
    for each in answers.joined():
        counts[each.dead_letter_topic] += each.count
    text = request.query.get("q", "").strip().lower()
    found = [name for name, count in counts.most_common() if count and text in name.lower()]
    ends_s = time.monotonic() + _MAX_S
    by_error = user_of(request).sees_texts
    topics = [
        await _grouped(site.admin, name, counts[name], ends_s, by_error=by_error)
        for name in found[:_MAX_TOPICS]
    ]
    return site.page(
        request,
        "dead.html",
        {
            "topics": topics,
            "total": sum(counts.values()),
            "left_out": len(found) - len(topics),
            "failures": list(answers.failures.values()),
            "max_grouped": _MAX_GROUPED,
        },
    )


async def _grouped(
    admin: Admin, name: str, count: int, ends_s: float, *, by_error: bool
) -> KeptLetters:
    kept = KeptLetters(name, count)
    if time.monotonic() > ends_s:
        kept.errors.append("not read: the others took long")
        return kept
    try:
        answers = await admin.dead_letters.show(
            dead_letter_topic=name, limit=_MAX_GROUPED, max_body_bytes=0
        )
    except AdminError as error:
        kept.errors.append(str(error))
        return kept
    kept.errors += map(str, answers.failures.values())
    groups: dict[tuple[str, str, str, str], LetterGroup] = {}
    for letter in answers.joined():
        latest = letter.last_error[:_ERROR_LENGTH] if by_error else ""
        key = letter.topic, letter.channel, letter.reason, latest
        if key not in groups:
            groups[key] = LetterGroup(name, *key, first=letter, latest=letter)
        groups[key].add(letter)
        kept.grouped += 1
    kept.groups = sorted(groups.values(), key=lambda each: -each.count)
    return kept


async def letters(request: web.Request) -> web.StreamResponse:
    """``/dead/letters``: some of them, one by one."""
    site = request.app[SITE]
    asked = Asked(site, await site.collector.fresh(), request.query)
    whose, which = _whose(asked), _which(asked)
    if "error" in which and not user_of(request).sees_texts:
        # Else a search would tell what is in an error.
        raise web.HTTPForbidden(text="this user does not see errors, and so searches none")
    size = LISTED_BYTES if user_of(request).sees_bodies else 0
    pages, errors = await _first_pages(asked, whose, which, size)
    rows = [(page.broker, letter) for page in pages for letter in page.items]
    rows.sort(key=lambda row: row[1].at_ms)
    return site.page(
        request,
        "dead_letters.html",
        {
            "whose": whose,
            "of": _of(whose),
            "filter": {name: asked.text(name) for name in _FILTER},
            "rows": [
                (broker, letter, body_text(letter.body, letter.body_bytes, max_bytes=size))
                for broker, letter in rows
            ],
            "nexts": [(page.broker, continued(page.next)) for page in pages if page.next],
            "errors": errors,
            "is_continued": asked.start is not None,
        },
    )


async def _first_pages(
    asked: Asked, whose: Mapping[str, Any], which: DeadLetterFilter, body_bytes: int
) -> tuple[list[AnswerPage[DeadLetterMessage]], list[str]]:
    """Return a page of each broker, or the next one of one broker; and what went wrong."""

    async def first(url: str) -> AnswerPage[DeadLetterMessage] | AdminError:
        pages = asked.site.admin.at(url).dead_letters.pages(
            **whose, limit=_ROWS, max_body_bytes=body_bytes, start=asked.start, **which
        )
        items: tuple[DeadLetterMessage, ...] = ()
        try:
            async with aclosing(pages):
                async for page in pages:
                    items += page.items
                    if len(items) >= _ROWS or time.monotonic() > ends_s:
                        return AnswerPage(broker=url, items=items, next=page.next)
        except AdminError as error:
            return error
        return AnswerPage(broker=url, items=items)

    ends_s = time.monotonic() + _MAX_S
    urls = [asked.broker] if asked.broker else list(asked.view.brokers)
    found = await asyncio.gather(*map(first, urls))
    pages = [each for each in found if isinstance(each, AnswerPage)]
    errors = [each for each in found if isinstance(each, AdminError)]
    serious = [each for each in errors if not isinstance(each, AdminNotFound)]
    # A channel without dead letters is well, and its page says so; not so a topic of none.
    if errors and not pages and (serious or "dead_letter_topic" in whose):
        raise (serious or errors)[0]
    return pages, [str(each) for each in serious]


async def export(request: web.Request) -> web.StreamResponse:
    """``/dead/export``: the same letters as JSON lines."""
    check_may_download(request)
    site = request.app[SITE]
    asked = Asked(site, await site.collector.fresh(), request.query)
    whose, which = _whose(asked), _which(asked)
    where = {"topic": whose.get("topic", ""), "channel": whose.get("channel", "")}
    return await send_lines(request, "dead-letters", _lines(asked, whose, which), **where)


async def _lines(
    asked: Asked, whose: Mapping[str, Any], which: DeadLetterFilter
) -> AsyncIterator[Mapping[str, Any]]:
    count = 0
    pages = asked.admin.dead_letters.pages(**whose, max_body_bytes=_MAX_EXPORTED_BODY, **which)
    async with aclosing(pages):
        async for page in pages:
            for letter in page.items:
                if count == _MAX_EXPORTED:
                    yield {"cut": f"no more than {_MAX_EXPORTED:,} are exported: choose by time"}
                    return
                count += 1
                yield {"broker": page.broker, **letter.fields}


# what is chosen


def _whose(asked: Asked) -> dict[str, Any]:
    """Return the fields that name the dead letters' channel."""
    if kept := asked.name("dead_letter_topic", optional=True):
        return {"dead_letter_topic": kept}
    return {"topic": asked.name("topic"), "channel": asked.name("channel")}


def _which(asked: Asked) -> DeadLetterFilter:
    """Return the fields that select some of them."""
    which: DeadLetterFilter = {}
    if reason := asked.text("reason"):
        which["reason"] = cast("Reason", reason)
    if error := asked.fields.get("error", ""):
        which["error"] = error
    if asked.text("since"):
        which["since_ms"] = asked.time_ns("since") // 1_000_000
    if asked.text("until"):
        which["until_ms"] = asked.time_ns("until") // 1_000_000
    return which


def _chosen(asked: Asked) -> DeadLetterFilter:
    """Return the selection of a form: the chosen ones, or all that the filter leaves."""
    which = _which(asked)
    ids = asked.chosen("reason", "error", "since", "until")
    if ids is not None:
        which["ids"] = ids
    if asked.text("until_ms"):
        which["until_ms"] = asked.number("until_ms")
    return which


def _selected(which: DeadLetterFilter) -> list[str]:
    """Return a line that says how letters were selected."""
    words = []
    if "ids" in which:
        words.append("those chosen")
    if "reason" in which:
        words.append(f"with the reason {which['reason']}")
    if "error" in which:
        words.append(f"with an error that contains “{which['error']}”")
    if "since_ms" in which:
        words.append("since the time given")
    return [f"Only {', '.join(words)}."] if words else []


async def _move(asked: Asked, which: DeadLetterFilter, how: str, *, is_dry: bool) -> Answers[Moved]:
    admin, whose = asked.admin.dead_letters, _whose(asked)
    if how == "purge":
        return await admin.purge(**whose, all=True, dry_run=is_dry, **which)
    to_topic = asked.name("to_topic", optional=True)
    if to_topic and to_topic in whose.values() and "dead_letter_topic" in whose:
        raise ActionRefused(f"they are in topic {to_topic} already")
    to = to_topic or None
    return await admin.redrive(**whose, to_topic=to, all=True, dry_run=is_dry, **which)


def _of(whose: Mapping[str, Any]) -> str:
    if "channel" in whose:
        return f"channel {whose['channel']} of {whose['topic']}"
    return f"topic {whose['dead_letter_topic']}"


async def _preview(asked: Asked, how: str) -> Preview:
    whose, which = _whose(asked), _chosen(asked)
    until_ms = which.setdefault("until_ms", time.time_ns() // 1_000_000)
    fields = {"until_ms": str(until_ms), "until": ""}
    if "since_ms" in which:
        # A time such as 90m would be another one when the button is pressed.
        fields["since"] = f"{which['since_ms'] / 1000:.3f}"
    answers = await _move(asked, which, how, is_dry=True)
    count = answers.total(lambda each: each.count)
    some = counted(count, "dead letter", form=",")
    to = f" to topic {asked.text('to_topic')}" if asked.text("to_topic") else ""
    where = counted(sum(bool(each.count) for each in answers.values.values()), "broker")
    verb = "Purge" if how == "purge" else "Redrive"
    lines = _selected(which)
    if how == "purge":
        lines.append("They are deleted: no redrive brings them back.")
    elif to:
        lines.append(f"All channels of topic {asked.text('to_topic')} get them.")
    else:
        lines.append("They go back to the channels that they come from, with attempts from 1.")
    kept: Counter[str] = Counter()
    for each in answers.values.values():
        kept.update(each.kept)
    lines += [f"{number:,} stay: {why}." for why, number in kept.items()]
    lines.append("Those that die from now on are left alone.")
    return Preview(
        title=f"{verb} dead letters of {_of(whose)}{to}",
        button=f"{verb} {some} on {where}{to}",
        lines=[*lines, *silent(answers)],
        fields=fields,
        typed=_of(whose) if how == "purge" and count > TYPED_FROM else "",
        is_possible=count > 0,
    )


async def _do(asked: Asked, how: str) -> str:
    answers = await _move(asked, _chosen(asked), how, is_dry=False)
    count = answers.total(lambda each: each.count)
    to = f" to topic {asked.text('to_topic')}" if asked.text("to_topic") else ""
    done = "purged" if how == "purge" else f"redriven{to}"
    verb = "was" if count == 1 else "were"
    some = counted(count, "dead letter", form=",")
    text = f"{some} of {_of(_whose(asked))} {verb} {done}"
    kept = sum(sum(each.kept.values()) for each in answers.values.values())
    return with_failures(f"{text}; {kept:,} stayed" if kept else text, answers)


OPERATIONS = {
    f"{how}_dead_letters": PreviewedChange(partial(_preview, how=how), partial(_do, how=how))
    for how in ("redrive", "purge")
}
