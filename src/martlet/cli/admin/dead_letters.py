"""``martlet dead-letters``: list, show, redrive or purge dead letters.

The command calls each broker, page by page (see `martlet.server.rpc.dead_letters`). New dead
letters are left alone: one that fails again at once would be redriven for ever.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

from martlet.cli import tool
from martlet.cli.broker_http import BrokerHttpOptions
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import age, body_text, json_line, laid_out, local_time, printable
from martlet.client.admin import Answers, DeadLetterFilter, Moved
from martlet.durations import MILLISECOND_NS
from martlet.options.checks import parse_time, require_action, require_ids, require_name
from martlet.options.flag import OptionError, Size, option
from martlet.plural import counted
from martlet.schema.dead_letters import Reason

Fields = Mapping[str, Any]
ACTIONS = ("list", "show", "redrive", "purge")
REASONS = ("max_attempts", "timeout", "disconnected", "rejected", "given_up")


class Whose(TypedDict):
    """The names of the dead letters' channel."""

    topic: str | None
    channel: str | None
    dead_letter_topic: str | None


@dataclass(frozen=True, kw_only=True)
class DeadLetterOptions(BrokerHttpOptions):
    """The options of ``martlet dead-letters``."""

    action: str = option("", f"one of {', '.join(ACTIONS)}", section="what to do")
    all: bool = option(False, "redrive or purge all of the channel's")
    to_topic: str | None = option(
        None,
        "redrive to this topic, to all its channels (default: to the channel that they come from,"
        " and to no other)",
    )
    dry_run: bool = option(False, "only show the effect")
    topic: str | None = option(None, "the topic that they come from", section="whose dead letters")
    channel: str | None = option(None, "the channel that they come from")
    dead_letter_topic: str | None = option(None, "the dead-letter topic (default: the channel's)")
    ids: tuple[str, ...] = option(
        (), "only this one; may be given several times", name="id", section="which of them"
    )
    reason: str | None = option(None, f"only these: {', '.join(REASONS[:-1])} or {REASONS[-1]}")
    error: str | None = option(None, "only those whose errors contain this")
    since: str | None = option(
        None,
        "only those dead-lettered at or after this time: 2026-01-31T12:00:00 in local time, seconds"
        " since 1970, or how long ago, as 90m",
    )
    until: str | None = option(None, "only those dead-lettered until this time")
    limit: int = option(
        20,
        "maximum dead letters to show of each broker; 0: no limit",
        limits=(0, None),
        section="output",
    )
    max_body_bytes: Size = option(1024, "maximum bytes of a body to show", limits=(0, 8 << 20))
    json: bool = option(False, "lines of JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_action(self.action, ACTIONS)
        names = ("topic", "channel", "dead-letter-topic", "to-topic")
        for flag in (*names, "reason", "error", "since", "until"):
            value = getattr(self, flag.replace("-", "_"))
            if value == "":
                raise OptionError(f"--{flag} is empty: leave it out, or say what it selects")
            if value and flag in names:
                require_name(flag, value)
        for flag in ("since", "until"):
            if text := getattr(self, flag):
                parse_time(flag, text, 0)
        if self.reason and self.reason not in REASONS:
            raise OptionError(f"--reason={self.reason}: it is one of {', '.join(REASONS)}")
        require_ids(self.ids)
        if self.action == "list":
            if bool(self.topic) != bool(self.channel):
                raise OptionError("--topic and --channel go together; without them all are listed")
            return
        if not self.dead_letter_topic and not (self.topic and self.channel):
            raise OptionError(
                "the channel is missing: add --topic and --channel, or --dead-letter-topic"
            )
        if self.action != "show" and not self.is_filtered and not self.all:
            raise OptionError(
                "the selection is missing: add --all, or any of --id, --reason, --error, --since"
                " and --until"
            )

    @property
    def is_filtered(self) -> bool:
        """Whether only some of them are meant."""
        return bool(self.ids or self.reason or self.error or self.since or self.until)

    def whose(self) -> Whose:
        """Return the names of the dead letters' channel."""
        return {
            "topic": self.topic,
            "channel": self.channel,
            "dead_letter_topic": self.dead_letter_topic,
        }

    def none_there(self) -> str:
        """Return the text for no dead letters."""
        place = f"topic {self.dead_letter_topic}"
        if self.channel:
            place = f"channel {self.channel} of topic {self.topic}"
        return f"{place} has no{' such' if self.is_filtered else ''} dead letters"

    def which(self, now_ns: int) -> DeadLetterFilter:
        """Return the fields of a call that select some of them."""
        fields: DeadLetterFilter = {}
        if self.reason:
            fields["reason"] = cast("Reason", self.reason)
        if self.error:
            fields["error"] = self.error
        if self.ids:
            fields["ids"] = self.ids
        if self.since:
            fields["since_ms"] = parse_time("since", self.since, now_ns) // MILLISECOND_NS
        if self.until:
            fields["until_ms"] = parse_time("until", self.until, now_ns) // MILLISECOND_NS
        return fields


async def counts(options: DeadLetterOptions) -> list[Fields]:
    """List the dead-letter topics of all brokers, with ``broker`` in each. Raises AdminError."""
    async with options.admin() as admin:
        answers = await admin.dead_letters.list(**options.whose())
    found = answers.check().values.items()
    return [{"broker": url, **each.fields} for url, topics in found for each in topics]


async def pages(options: DeadLetterOptions) -> AsyncIterator[list[Fields]]:
    """Yield the dead letters of each broker, the oldest first. Raises AdminError."""
    async with options.admin() as admin:
        async for page in admin.dead_letters.pages(
            **options.whose(),
            limit=options.limit or None,
            max_body_bytes=options.max_body_bytes,
            **options.which(time.time_ns()),
        ):
            yield [{"broker": page.broker, **each.fields} for each in page.items]


async def act(options: DeadLetterOptions) -> Answers[Moved]:
    """Redrive or purge. Raises AdminError."""
    which = options.which(time.time_ns())
    everything, is_dry = options.all, options.dry_run
    async with options.admin() as admin:
        if options.action == "purge":
            return await admin.dead_letters.purge(
                **options.whose(), all=everything, dry_run=is_dry, **which
            )
        return await admin.dead_letters.redrive(
            **options.whose(),
            to_topic=options.to_topic,
            all=everything,
            dry_run=is_dry,
            **which,
        )


def count_lines(topics: Iterable[Fields], now_ms: int) -> list[str]:
    """Format dead-letter topics as text: a line for each channel that has some."""
    rows = [("TOPIC", "CHANNEL", "COUNT", "OLDEST", "REASONS", "DEAD-LETTER TOPIC")]
    for each in topics:
        if not each["count"]:
            continue
        seen = sum(group["count"] for group in each["channels"])
        place = each["dead_letter_topic"]
        for group in each["channels"]:
            reasons = ", ".join(f"{name} {n}" for name, n in sorted(group["reasons"].items()))
            age = _age(now_ms, group["oldest_ms"])
            count = str(group["count"])
            origin = group["topic"] or "(unknown)", group["channel"] or "(unknown)"
            rows.append((*origin, count, age, reasons, place))
        if each["count"] > seen:
            rows.append(("", "", f"{each['count'] - seen}", "", "more, not examined", place))
    return laid_out(rows, (2, 3))


def letter_lines(letter: Fields, now_ms: int) -> list[str]:
    """Format a dead letter as text."""
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
    if letter.get("instead_of"):
        before = letter.get("before", "").replace(" ", ", ")
        lines.append(
            f"  kept here instead of topic {printable(letter['instead_of'])}: it has failed in"
            f" {printable(before)} before, and would go round without end"
        )
    if letter["message_id"]:
        stored_ms = letter.get("stored_ms", "")
        when = f", published {local_time(int(stored_ms))}" if stored_ms.isdecimal() else ""
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
    lines.append(f"  body, {counted(letter['body_bytes'], 'byte')}: {body_text(letter)}")
    return lines


def _age(now_ms: int, then_ms: int) -> str:
    return age((now_ms - then_ms) / 1000)


DESCRIPTION = (
    "List, show, move back (redrive) or delete (purge) the dead letters of channels with a retry"
    " policy. The action, the topic and the channel may stand without their flags:"
    " martlet dead-letters show TOPIC CHANNEL. Dead letters are in the topic TOPIC.CHANNEL.dead, or"
    " the one that the policy names, until they are redriven, purged, or finished by a consumer of"
    " its channel dead-letters."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run the action; return the exit code of the process."""
    operands = ("action", "topic", "channel")
    options = tool.options(
        "dead-letters", DESCRIPTION, DeadLetterOptions, argv, "ACTION [TOPIC CHANNEL]", operands
    )
    kept: Counter[tuple[str, str]] = Counter()
    unknown: dict[str, None] = {}

    async def show(output: StandardOutput) -> None:
        is_empty = True
        async for page in pages(options):
            lines: list[str] = []
            for letter in page:
                lines += [json_line(letter)] if options.json else letter_lines(letter, _now_ms())
            is_empty = is_empty and not lines
            await output.print(lines)
        if is_empty and not options.json:
            log.info("%s", options.none_there())

    async def count(output: StandardOutput) -> None:
        topics = await counts(options)
        lines = list(map(json_line, topics)) if options.json else count_lines(topics, _now_ms())
        await output.print(lines)
        if not (lines or options.json):
            log.info("there are no dead letters")

    async def move(output: StandardOutput) -> None:
        done = "redriven" if options.action == "redrive" else "purged"
        answers = await act(options)
        unknown.update(dict.fromkeys(options.ids))
        for url, moved in answers.values.items():
            kept.update({(url, why): many for why, many in moved.kept.items()})
            for each in options.ids if moved.found is None else moved.found:
                unknown.pop(each, None)
        would_be = "would be " if options.dry_run else ""
        await output.print(
            f"{url}: {counted(moved.count, 'dead letter')} {would_be}{done}"
            for url, moved in answers.values.items()
        )
        for (url, why), many in kept.items():
            log.error("%s: %d stay where they are: %s", url, many, why)
        for each in unknown:
            log.error("no selected dead letter has the id %s, or had it before", each)
        answers.check()

    async def run() -> None:
        run_action = {"list": count, "show": show}.get(options.action, move)
        await run_action(StandardOutput())

    code = tool.run_alone(run)
    return 1 if kept or unknown else code


def _now_ms() -> int:
    return time.time_ns() // MILLISECOND_NS
