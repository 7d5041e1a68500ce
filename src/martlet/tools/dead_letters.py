"""Dead letters: what channels have given up, as an operator sees it and deals with it.

Each broker is asked by calls, page by page (see `martlet.server.rpc.dead_letters`).  What comes
there while they are worked through is left alone, or what fails again at once would go round for
ever.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from martlet.options.dead_letters import DeadLetterOptions
from martlet.plural import counted
from martlet.tools.columns import laid_out, printable
from martlet.tools.door import BrokerHttpClients, NoHttpAnswer

Fields = dict[str, Any]
_PAGE = 500
_ALL = 1 << 62
_NOT_THERE = 404


class DeadLetterTool:
    """Does what the flags say.

    Args:
        options: as the flags give them.
        clock: nanoseconds since 1970.

    Attributes:
        unknown: ids that were asked for and not found.
    """

    def __init__(self, options: DeadLetterOptions, clock: Callable[[], int] = time.time_ns) -> None:
        self._options = options
        self._clock = clock
        self.unknown: dict[str, None] = {}

    async def counts(self) -> list[Fields]:
        """The dead-letter topics of all brokers, with ``broker`` in each. Raises NoHttpAnswer."""
        options = self._options
        found: list[Fields] = []
        async with BrokerHttpClients(options) as doors:
            async for url, told in self._ask(doors, options.topic, "list", options.whose()):
                found += [{"broker": url} | each for each in told["dead_letter_topics"]]
        return found

    async def pages(self) -> AsyncIterator[list[Fields]]:
        """The dead letters of each broker, the oldest first. Raises NoHttpAnswer."""
        options = self._options
        fields = options.whose() | dict(options.which(self._clock()))
        fields |= {"max_body_bytes": options.max_body_bytes, "limit": _PAGE}
        left: dict[str, int] = {}
        async with BrokerHttpClients(options) as doors:
            async for url, page in self._ask(doors, options.topic, "show", fields):
                max_count = left.setdefault(url, options.limit or _ALL)
                messages = page["messages"][:max_count]
                left[url] -= len(messages)
                if not left[url]:
                    page["next"] = None
                yield [{"broker": url} | message for message in messages]

    async def act(self) -> AsyncIterator[tuple[str, int, Mapping[str, int]]]:
        """Redrive or purge: how many, and how many stay why, some at a time. At the end `unknown`
        are those of the ids asked for that no broker has. Raises NoHttpAnswer.
        """
        self.unknown = dict.fromkeys(self._options.ids)
        options = self._options
        fields = options.whose() | dict(options.which(self._clock()))
        fields |= {"all": options.all, "dry_run": options.dry_run}
        if options.to_topic:
            fields["to_topic"] = options.to_topic
        async with BrokerHttpClients(options) as doors:
            async for url, done in self._ask(doors, options.topic, options.action, fields):
                for id in done.get("found", self._options.ids):  # An older broker does not say.
                    self.unknown.pop(id, None)
                yield url, done["count"], done["kept"]

    async def _ask(
        self, doors: BrokerHttpClients, topic: str, what: str, fields: Mapping[str, object]
    ) -> AsyncIterator[tuple[str, Fields]]:
        """What each broker answers, page by page. One that has no such dead letters is passed over,
        if another has.
        """
        missing: NoHttpAnswer | None = None
        some = False
        for url in await doors.brokers(topic):
            place: Mapping[str, object] | None = {}
            while place is not None:
                try:
                    page = await doors.call(url, f"dead_letters.{what}", {**fields, **place})
                except NoHttpAnswer as error:
                    if error.status != _NOT_THERE:
                        raise
                    missing = error
                    break
                some = True
                yield url, page
                place = page.get("next")
                if place is not None and "until_ms" in page:
                    place = {**place, "until_ms": page["until_ms"]}
        if missing is not None and not some:
            raise missing


def count_lines(topics: Iterable[Fields], now_ms: int) -> list[str]:
    """Dead-letter topics for people: a line for each channel that has given something up."""
    rows = [("TOPIC", "CHANNEL", "COUNT", "OLDEST", "REASONS", "DEAD-LETTER TOPIC")]
    for told in topics:
        if not told["count"]:
            continue
        seen = sum(group["count"] for group in told["channels"])
        place = told["dead_letter_topic"]
        for group in told["channels"]:
            reasons = ", ".join(f"{name} {n}" for name, n in sorted(group["reasons"].items()))
            age = _age(now_ms, group["oldest_ms"])
            count = str(group["count"])
            origin = group["topic"] or "(unknown)", group["channel"] or "(unknown)"
            rows.append((*origin, count, age, reasons, place))
        if told["count"] > seen:
            rows.append(("", "", f"{told['count'] - seen}", "", "more, not looked at", place))
    return laid_out(rows, (2, 3))


def letter_lines(letter: Fields, now_ms: int) -> list[str]:
    """A dead letter for people."""
    origin = f"{letter.get('topic', '?')}/{letter.get('channel', '?')}"
    counts = [
        counted(int(letter[name]), name.removesuffix("s"))
        for name in ("failures", "attempts")
        if name in letter
    ]
    died = f"{letter.get('reason', 'unknown')} after {', '.join(counts) or '? attempts'}"
    held = ", with a consumer" if letter["state"] == "in_flight" else ""
    lines = [f"{letter['id']}  {origin}  {died}, {_age(now_ms, letter['at_ms'])} ago{held}"]
    first, last = letter.get("first_error", ""), letter.get("last_error", "")
    if first and first != last:
        lines.append(f"  first error: {printable(first)}")
    if last:
        lines.append(f"  last error:  {printable(last)}")
    if letter["message_id"]:
        stored_ms = letter.get("stored_ms", "")
        when = f", published {_when(int(stored_ms))}" if stored_ms.isdecimal() else ""
        lines.append(f"  was message {letter['message_id']}{when}")
    if letter.get("redrives"):
        lines.append(f"  brought back {counted(int(letter['redrives']), 'time')} before")
    if letter["tag"]:
        lines.append(f"  tag: {printable(letter['tag'])}")
    if letter["order_key"]:
        lines.append(f"  order key: {printable(letter['order_key'])}")
    if letter["keys"]:
        lines.append(f"  keys: {printable(', '.join(letter['keys']))}")
    for name, value in letter["headers"].items():
        lines.append(f"  header {printable(name)}: {printable(value)}")
    lines.append(f"  body, {counted(letter['body_bytes'], 'byte')}: {_body(letter)}")
    return lines


def line(told: Fields) -> str:
    """As a line of JSON."""
    return json.dumps(told, ensure_ascii=False)


def _body(letter: Fields) -> str:
    if letter["body"] is None:
        return repr(b64decode(letter["body_base64"]))[2:-1]
    return printable(letter["body"])


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(timespec="seconds")


def _age(now_ms: int, then_ms: int) -> str:
    seconds = max(0, now_ms - then_ms) // 1000
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
