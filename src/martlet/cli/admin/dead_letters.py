"""``martlet dead-letters``: what channels have given up, listed, shown, brought back or purged.

Each broker is asked by calls, page by page (see `martlet.server.rpc.dead_letters`).  What comes
there while they are worked through is left alone, or what fails again at once would go round for
ever.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from martlet.cli import tool
from martlet.cli.admin.replay import time_ns
from martlet.cli.broker_http import BrokerHttpClients, DoorOptions, NoHttpAnswer
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import laid_out, printable
from martlet.durations import MILLISECOND_NS
from martlet.options.flag import OptionError, Size, option
from martlet.options.options import require_names
from martlet.plural import counted

ACTIONS = ("list", "show", "redrive", "purge")
REASONS = ("max_attempts", "timeout", "disconnected", "rejected", "given_up")
_ID = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class DeadLetterOptions(DoorOptions):
    """What ``martlet dead-letters`` is started with.

    Raises:
        OptionError: there is no such action, or it is not said whose letters, or which.
    """

    action: str = option("", f"one of {', '.join(ACTIONS)}", section="what to do")
    all: bool = option(False, "redrive or purge all of the channel's")
    to_topic: str = option(
        "",
        "redrive to this topic, to all its channels (default: to the channel that they come from,"
        " and to no other)",
    )
    dry_run: bool = option(False, "only say what would be done")
    topic: str = option("", "the topic that they come from", section="whose dead letters")
    channel: str = option("", "the channel that gave them up")
    dead_letter_topic: str = option("", "where they are (default: where the channel's go)")
    ids: tuple[str, ...] = option(
        (), "only this one; may be given several times", name="id", section="which of them"
    )
    reason: str = option("", f"only these: {', '.join(REASONS[:-1])} or {REASONS[-1]}")
    error: str = option("", "only those whose errors contain this")
    since: str = option(
        "",
        "only those given up at or after this time: 2026-01-31T12:00:00 in local time, seconds"
        " since 1970, or how long ago, as 90m",
    )
    until: str = option("", "only those given up until this time")
    limit: int = option(
        20, "show so many of each broker (0: all of them)", limits=(0, None), section="output"
    )
    max_body_bytes: Size = option(1024, "show no more of a body", limits=(0, 8 << 20))
    json: bool = option(False, "lines of JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action not in ACTIONS:
            told = f"{self.action!r} is none of them" if self.action else "none is given"
            raise OptionError(f"what to do is one of {', '.join(ACTIONS)}: {told}")
        for flag in ("topic", "channel", "dead-letter-topic", "to-topic"):
            value = getattr(self, flag.replace("-", "_"))
            if value:
                require_names(flag, [value])
        for flag in ("since", "until"):
            if text := getattr(self, flag):
                time_ns(flag, text, 0)
        if self.reason and self.reason not in REASONS:
            raise OptionError(f"--reason={self.reason}: it is one of {', '.join(REASONS)}")
        for id in self.ids:
            if not _ID.fullmatch(id):
                raise OptionError(f"--id={id}: an id has 16 hexadecimal digits")
        if self.action == "list":
            if bool(self.topic) != bool(self.channel):
                raise OptionError("--topic and --channel go together; without them all are listed")
            return
        if not self.dead_letter_topic and not (self.topic and self.channel):
            raise OptionError(
                "whose dead letters? Name --topic and --channel, or --dead-letter-topic"
            )
        which = self.ids or self.reason or self.error or self.since or self.until
        if self.action != "show" and not which and not self.all:
            raise OptionError(
                "which dead letters are meant? Say --all, or any of --id, --reason,"
                " --error, --since and --until"
            )

    def whose(self) -> dict[str, object]:
        """The fields of a call that say whose letters are meant."""
        fields = {
            "topic": self.topic,
            "channel": self.channel,
            "dead_letter_topic": self.dead_letter_topic,
        }
        return {name: value for name, value in fields.items() if value}

    def which(self, now_ns: int) -> Mapping[str, object]:
        """The fields that say which of them."""
        fields: dict[str, object] = {"reason": self.reason, "error": self.error}
        if self.ids:
            fields["ids"] = list(self.ids)
        for flag in ("since", "until"):
            if text := getattr(self, flag):
                fields[f"{flag}_ms"] = time_ns(flag, text, now_ns) // MILLISECOND_NS
        return {name: value for name, value in fields.items() if value}


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


DESCRIPTION = (
    "List, show, bring back (redrive) or throw away (purge) the messages that channels with a retry"
    " policy have given up. What to do, the topic and the channel may stand without their flags:"
    " martlet dead-letters show TOPIC CHANNEL. Dead letters are in the topic TOPIC.CHANNEL.dead, or"
    " the one that the policy names, until they are redriven, purged, or finished by a consumer of"
    " its channel dead-letters."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Do it; the result is the exit code of the process."""
    found = tool.named(DeadLetterOptions, argv, "action", "topic", "channel")
    options = tool.options(
        "dead-letters", DESCRIPTION, DeadLetterOptions, found, "ACTION [TOPIC CHANNEL]"
    )
    work = DeadLetterTool(options)
    kept: Counter[tuple[str, str]] = Counter()

    async def show(output: StandardOutput) -> None:
        is_empty = True
        async for page in work.pages():
            lines = []
            for letter in page:
                lines += [line(letter)] if options.json else letter_lines(letter, _now_ms())
            if lines:
                is_empty = False
                await output.show([f"{each}\n".encode() for each in lines])
        if is_empty and not options.json:
            log.info("nothing of that is there")

    async def count(output: StandardOutput) -> None:
        topics = await work.counts()
        lines = [line(each) for each in topics] if options.json else count_lines(topics, _now_ms())
        if lines:
            await output.show([f"{each}\n".encode() for each in lines])
        elif not options.json:
            log.info("there are no dead letters")

    async def act() -> None:
        done = "redriven" if options.action == "redrive" else "purged"
        counts: Counter[str] = Counter()
        async for url, number, stay in work.act():
            counts[url] += number
            kept.update({(url, why): many for why, many in stay.items()})
        would_be = "would be " if options.dry_run else ""
        await tool.show(
            f"{url}: {counted(number, 'dead letter')} {would_be}{done}"
            for url, number in counts.items()
        )
        for (url, why), many in kept.items():
            log.error("%s: %d stay where they are: %s", url, many, why)
        for id in work.unknown:
            log.error("no dead letter that is meant has the id %s, or had it before", id)

    async def run() -> None:
        if options.action in ("redrive", "purge"):
            await act()
            return
        output = StandardOutput(sys.stdout.fileno())
        await (count(output) if options.action == "list" else show(output))

    code = tool.run_alone(run)
    return 1 if kept or work.unknown else code


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
