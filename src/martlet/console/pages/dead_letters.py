"""Dead letters: by topic, channel, reason and error, one by one, and back to where they failed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from aiohttp import web
from msgspec.structs import replace

from martlet.client.admin import (
    Admin,
    AdminError,
    Answers,
    DeadLetterAdmin,
    DeadLetterMessage,
    Moved,
)
from martlet.console.actions import TYPED_FROM, Action, Preview, silent, with_failures
from martlet.console.guard import user_of
from martlet.console.inputs import ActionRefused, Inputs, continued, inputs_of
from martlet.console.pages.bodies import LISTED_BYTES, body_text
from martlet.console.pages.export import check_may_download, send_lines
from martlet.console.site import SITE
from martlet.schema.dead_letters import (
    REASONS,
    PurgeDeadLetters,
    RedriveDeadLetters,
    SelectedDeadLetters,
    ShowDeadLetters,
)
from martlet.text import MILLISECOND_NS, counted

_MAX_TOPICS = 100
_MAX_GROUPED = 1000
"""The letters of each dead-letter topic and broker that are read to group them."""
_MAX_S = 5.0
_ROWS = 50
_MAX_EXPORTED = 10_000
_MAX_EXPORTED_BODY = 1 << 20
_ERROR_LENGTH = 200
SelectedT = TypeVar("SelectedT", bound=SelectedDeadLetters)
_FILTER = ("topic", "channel", "dead_letter_topic", "reason", "error", "since", "until")


@dataclass
class LetterGroup:
    """Dead letters of one channel with one reason and one latest error."""

    dead_letter_topic: str
    topic: str
    channel: str
    """Where they come from."""
    reason: str
    error: str
    """The latest error of each; empty where they are not grouped by it."""
    first: DeadLetterMessage
    latest: DeadLetterMessage
    """The one that died first, and last."""
    count: int = 0
    tries: set[int] = field(default_factory=set)
    """How often they were delivered, the least and the greatest; empty if unknown."""

    def add(self, letter: DeadLetterMessage) -> None:
        """Count a letter."""
        self.count += 1
        if letter.attempts is not None:
            self.tries = {min({letter.attempts, *self.tries}), max({letter.attempts, *self.tries})}
        self.first = min(self.first, letter, key=lambda one: one.at_ms)
        self.latest = max(self.latest, letter, key=lambda one: one.at_ms)

    @property
    def selection(self) -> dict[str, str]:
        """The fields that select them; letters that no broker has put there have no reason."""
        reason = self.reason if self.reason in REASONS else ""
        fields = {"reason": reason, "error": self.error}
        if self.topic and self.channel:
            return {"topic": self.topic, "channel": self.channel, **fields}
        return {"dead_letter_topic": self.dead_letter_topic, **fields}


@dataclass
class KeptLetters:
    """A dead-letter topic of all brokers, with the channels whose letters it has."""

    name: str
    count: int = 0
    grouped: int = 0
    """How many of those were read to group them."""
    groups: list[LetterGroup] = field(default_factory=list)
    """By channel, reason and error, the largest first."""
    errors: list[str] = field(default_factory=list)
    """Why some could not be read."""


async def overview(request: web.Request) -> web.StreamResponse:
    """``/dead``"""
    site = request.app[SITE]
    answers = await site.admin.dead_letters.list()
    counts: Counter[str] = Counter()
    for topic_counts in answers.joined():
        counts[topic_counts.dead_letter_topic] += topic_counts.count
    text = request.query.get("q", "").strip().lower()
    names = [name for name, count in counts.most_common() if count and text in name.lower()]
    ends_s = time.monotonic() + _MAX_S
    by_error = user_of(request).sees_texts
    topics = [
        await _grouped(site.admin, name, counts[name], ends_s, by_error=by_error)
        for name in names[:_MAX_TOPICS]
    ]
    return site.page(
        request,
        "dead.html",
        {
            "topics": topics,
            "total": sum(counts.values()),
            "left_out": len(names) - len(topics),
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
    kept.groups = sorted(groups.values(), key=lambda group: -group.count)
    return kept


async def letters(request: web.Request) -> web.StreamResponse:
    """``/dead/letters``: some of them, one by one."""
    inputs = await inputs_of(request)
    size = LISTED_BYTES if user_of(request).sees_bodies else 0
    shown = _selected(inputs, ShowDeadLetters, limit=_ROWS, max_body_bytes=size)
    if shown.error and not user_of(request).sees_texts:
        # Else a search would tell what is in an error.
        raise web.HTTPForbidden(text="this user does not see errors, and so searches none")
    # A channel without dead letters is well, and its page says so; not so a topic of none.
    pages, errors = await inputs.first_pages(
        inputs.urls(""),
        lambda admin: DeadLetterAdmin.pages.run(admin.http, shown, inputs.start),
        _ROWS,
        may_lack=not shown.dead_letter_topic,
    )
    rows = [(page.broker, letter) for page in pages for letter in page.items]
    rows.sort(key=lambda row: row[1].at_ms)
    return inputs.site.page(
        request,
        "dead_letters.html",
        {
            "whose": _whose(shown),
            "of": _of(shown),
            "reasons": REASONS,
            "filter": {name: inputs.text(name) for name in _FILTER},
            "rows": [
                (broker, letter, body_text(letter.body, letter.body_bytes, max_bytes=size))
                for broker, letter in rows
            ],
            "nexts": [(page.broker, continued(page.next)) for page in pages if page.next],
            "errors": errors,
            "is_continued": inputs.start is not None,
        },
    )


async def export(request: web.Request) -> web.StreamResponse:
    """``/dead/export``: the same letters as JSON lines."""
    check_may_download(request)
    inputs = await inputs_of(request)
    shown = _selected(inputs, ShowDeadLetters, limit=None, max_body_bytes=_MAX_EXPORTED_BODY)
    where = {"topic": shown.topic or "", "channel": shown.channel or ""}
    return await send_lines(request, "dead-letters", _lines(inputs, shown), **where)


async def _lines(inputs: Inputs, shown: ShowDeadLetters) -> AsyncIterator[Mapping[str, Any]]:
    count = 0
    pages = DeadLetterAdmin.pages.run(inputs.admin.http, shown)
    async with aclosing(pages):
        async for page in pages:
            for letter in page.items:
                if count == _MAX_EXPORTED:
                    yield {"cut": f"no more than {_MAX_EXPORTED:,} are exported: choose by time"}
                    return
                count += 1
                yield {"broker": page.broker, **letter.fields}


# what is chosen


def _selected(inputs: Inputs, kind: type[SelectedT], **fixed: object) -> SelectedT:
    """Return the request of a form or an address; a dead-letter topic is enough to name them."""
    if inputs.text("dead_letter_topic"):
        fixed |= {"topic": None, "channel": None}
    return inputs.request(kind, **fixed)


def _to_change(inputs: Inputs, how: str, *, is_dry: bool) -> PurgeDeadLetters:
    """Return the request of a form: of the chosen letters, or of all that the filter leaves."""
    inputs.chosen("reason", "error", "since", "until")
    kind = PurgeDeadLetters if how == "purge" else RedriveDeadLetters
    request = _selected(inputs, kind, all=True, dry_run=is_dry)
    if isinstance(request, RedriveDeadLetters):
        to_topic = request.to_topic
        if to_topic and to_topic == request.dead_letter_topic:
            raise ActionRefused(f"they are in topic {to_topic} already")
    return request


def _described(request: SelectedDeadLetters) -> list[str]:
    """Return a line that says how letters are selected."""
    words = []
    if request.ids:
        words.append("those chosen")
    if request.reason:
        words.append(f"with the reason {request.reason}")
    if request.error:
        words.append(f"with an error that contains “{request.error}”")
    if request.since_ms:
        words.append("since the time given")
    return [f"Only {', '.join(words)}."] if words else []


async def _move(inputs: Inputs, request: PurgeDeadLetters) -> Answers[Moved]:
    is_redrive = isinstance(request, RedriveDeadLetters)
    method = DeadLetterAdmin.redrive if is_redrive else DeadLetterAdmin.purge
    return await method.run(inputs.admin.http, request)


def _whose(request: SelectedDeadLetters) -> dict[str, str]:
    """Return the fields that name the dead letters' channel."""
    if request.dead_letter_topic:
        return {"dead_letter_topic": request.dead_letter_topic}
    return {"topic": request.topic or "", "channel": request.channel or ""}


def _of(request: SelectedDeadLetters) -> str:
    if request.dead_letter_topic:
        return f"topic {request.dead_letter_topic}"
    return f"channel {request.channel} of {request.topic}"


async def _preview(inputs: Inputs, how: str) -> Preview:
    request = _to_change(inputs, how, is_dry=True)
    if request.until_ms is None:
        request = replace(request, until_ms=time.time_ns() // MILLISECOND_NS)
    fields = {"until_ms": str(request.until_ms), "until": ""}
    if request.since_ms is not None:
        # A time such as 90m would be another one when the button is pressed.
        fields["since"] = f"{request.since_ms / 1000:.3f}"
    answers = await _move(inputs, request)
    count = answers.total(lambda moved: moved.count)
    some = counted(count, "dead letter", form=",")
    to = f" to topic {inputs.text('to_topic')}" if inputs.text("to_topic") else ""
    where = counted(sum(bool(answer.count) for answer in answers.values.values()), "broker")
    verb = "Purge" if how == "purge" else "Redrive"
    lines = _described(request)
    if request.dead_letter_topic:
        others = ""
        if inputs.text("topic") and inputs.text("channel"):
            others = f", not of channel {inputs.text('channel')} of {inputs.text('topic')} alone"
        lines.append(
            f"The whole topic {request.dead_letter_topic} is meant: the dead letters of every"
            f" channel in it{others}."
        )
    if how == "purge":
        lines.append("They are deleted: no redrive brings them back.")
    elif to:
        lines.append(f"All channels of topic {inputs.text('to_topic')} get them.")
    else:
        lines.append("They go back to the channels that they come from, with attempts from 1.")
    kept: Counter[str] = Counter()
    for moved in answers.values.values():
        kept.update(moved.kept)
    lines += [f"{number:,} stay: {why}." for why, number in kept.items()]
    lines.append("Those that die from now on are left alone.")
    return Preview(
        title=f"{verb} dead letters of {_of(request)}{to}",
        button=f"{verb} {some} on {where}{to}",
        lines=[*lines, *silent(answers)],
        fields=fields,
        typed=_of(request) if how == "purge" and count > TYPED_FROM else "",
        is_possible=count > 0,
    )


async def _do(inputs: Inputs, how: str) -> str:
    request = _to_change(inputs, how, is_dry=False)
    answers = await _move(inputs, request)
    count = answers.total(lambda moved: moved.count)
    to = f" to topic {inputs.text('to_topic')}" if inputs.text("to_topic") else ""
    done = "purged" if how == "purge" else f"redriven{to}"
    verb = "was" if count == 1 else "were"
    some = counted(count, "dead letter", form=",")
    text = f"{some} of {_of(request)} {verb} {done}"
    kept = sum(sum(answer.kept.values()) for answer in answers.values.values())
    if kept:
        text += f"; {kept:,} stayed"
    moved = answers.values.values()
    if request.ids and all(one.found is not None for one in moved):
        missing = set(map(str, request.ids)).difference(*(one.found or () for one in moved))
        if missing:
            text += f"; {len(missing):,} {'was' if len(missing) == 1 else 'were'} not there"
    return with_failures(text, answers)


ACTIONS = {
    f"{how}_dead_letters": Action(partial(_preview, how=how), partial(_do, how=how))
    for how in ("redrive", "purge")
}
