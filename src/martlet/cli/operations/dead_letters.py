"""``martlet dead-letters``: list, show, redrive or purge dead letters.

The command calls each broker, page by page (see `martlet.schema.dead_letters`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from martlet.cli import tool
from martlet.cli.operation_flags import OperationOptions, with_flags_of
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import age, body_text, json_line, laid_out, local_time, printable
from martlet.client.admin import DeadLetterAdmin, DeadLetterMessage, DeadLetterTopicCounts
from martlet.options.flag import option
from martlet.schema import dead_letters as schema
from martlet.text import MILLISECOND_NS, counted


@with_flags_of(list=schema.LIST, show=schema.SHOW, redrive=schema.REDRIVE, purge=schema.PURGE)
@dataclass(frozen=True, kw_only=True)
class DeadLetterOptions(OperationOptions):
    """The options of ``martlet dead-letters``."""

    limit: int = option(
        20,
        "maximum dead letters to show of each broker; 0: no limit",
        limits=(0, None),
        section="output",
    )
    json: bool = option(False, "lines of JSON")


def none_there(request: schema.SelectedDeadLetters) -> str:
    """Return the text for no dead letters."""
    source = f"topic {request.dead_letter_topic}"
    if request.channel:
        source = f"channel {request.channel} of topic {request.topic}"
    return f"{source} has no{' such' if request.is_filtered else ''} dead letters"


def count_lines(topics: Iterable[DeadLetterTopicCounts], now_ms: int) -> list[str]:
    """Format dead-letter topics as text: a line for each channel that has some."""
    rows = [("TOPIC", "CHANNEL", "COUNT", "OLDEST", "REASONS", "DEAD-LETTER TOPIC")]
    for topic in topics:
        if not topic.count:
            continue
        dead_letter_topic = topic.dead_letter_topic
        for group in topic.channels:
            reasons = ", ".join(f"{name} {n}" for name, n in sorted(group.reasons.items()))
            origin = group.topic or "(unknown)", group.channel or "(unknown)"
            rows.append(
                (
                    *origin,
                    str(group.count),
                    _age(now_ms, group.oldest_ms),
                    reasons,
                    dead_letter_topic,
                )
            )
        others = topic.count - sum(group.count for group in topic.channels)
        if others > 0:
            rows.append(("", "", str(others), "", "more, not examined", dead_letter_topic))
    return laid_out(rows, (2, 3))


def letter_lines(letter: DeadLetterMessage, now_ms: int) -> list[str]:
    """Format a dead letter as text."""
    numbers = {"failure": letter.failures, "attempt": letter.attempts}
    counts = ", ".join(counted(n, name) for name, n in numbers.items() if n is not None)
    died = f"{letter.reason} after {counts or '? attempts'}, {_age(now_ms, letter.at_ms)} ago"
    held = ", with a consumer" if letter.state == "in_flight" else ""
    lines = [f"{letter.id}  {letter.topic or '?'}/{letter.channel or '?'}  {died}{held}"]
    first, last = letter.first_error, letter.last_error
    if first and first != last:
        lines.append(f"  first error: {printable(first)}")
    if last:
        lines.append(f"  last error:  {printable(last)}")
    if letter.instead_of:
        before = letter.before.replace(" ", ", ")
        lines.append(
            f"  kept here instead of topic {printable(letter.instead_of)}: it has failed in"
            f" {printable(before)} before, and would go round without end"
        )
    if letter.message_id:
        ms = letter.stored_ms
        when = f", published {local_time(int(ms))}" if ms.isdecimal() else ""
        lines.append(f"  was message {letter.message_id}{when}")
    if letter.redrives:
        lines.append(f"  brought back {counted(letter.redrives, 'time')} before")
    if letter.tag:
        lines.append(f"  tag: {printable(letter.tag)}")
    if letter.order_key:
        lines.append(f"  order key: {printable(letter.order_key)}")
    if letter.order_key_base64:
        lines.append(f"  order key, base64: {letter.order_key_base64}")
    if letter.keys:
        lines.append(f"  keys: {printable(', '.join(letter.keys))}")
    for name, value in letter.headers.items():
        lines.append(f"  header {printable(name)}: {printable(value)}")
    for name, value in letter.headers_base64.items():
        lines.append(f"  header {printable(name)}, base64: {value}")
    lines.append(f"  body, {counted(letter.body_bytes, 'byte')}: {body_text(letter.fields)}")
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
        request = replace(options.request(schema.ShowDeadLetters), limit=options.limit or None)
        is_empty = True
        async with options.admin() as admin:
            async for page in DeadLetterAdmin.pages.run(admin.http, request):
                lines: list[str] = []
                for letter in page.items:
                    fields = {"broker": page.broker, **letter.fields}
                    lines += (
                        [json_line(fields)] if options.json else letter_lines(letter, _now_ms())
                    )
                is_empty = is_empty and not lines
                await output.print(lines)
        if is_empty and not options.json:
            log.info("%s", none_there(request))

    async def count(output: StandardOutput) -> None:
        request = options.request(schema.ListDeadLetters)
        async with options.admin() as admin:
            answers = (await DeadLetterAdmin.list.run(admin.http, request)).check()
        topics = [(url, topic) for url, some in answers.values.items() for topic in some]
        if options.json:
            lines = [json_line({"broker": url, **topic.fields}) for url, topic in topics]
        else:
            lines = count_lines((topic for _, topic in topics), _now_ms())
        await output.print(lines)
        if not (lines or options.json):
            log.info("there are no dead letters")

    async def move(output: StandardOutput) -> None:
        request: schema.PurgeDeadLetters
        async with options.admin() as admin:
            if options.action == "redrive":
                done, request = "redriven", options.request(schema.RedriveDeadLetters)
                answers = await DeadLetterAdmin.redrive.run(admin.http, request)
            else:
                done, request = "purged", options.request(schema.PurgeDeadLetters)
                answers = await DeadLetterAdmin.purge.run(admin.http, request)
        ids = list(map(str, request.ids or ()))
        unknown.update(dict.fromkeys(ids))
        for url, moved in answers.values.items():
            kept.update({(url, why): many for why, many in moved.kept.items()})
            for one in ids if moved.found is None else moved.found:
                unknown.pop(one, None)
        would_be = "would be " if request.dry_run else ""
        await output.print(
            f"{url}: {counted(moved.count, 'dead letter')} {would_be}{done}"
            for url, moved in answers.values.items()
        )
        for (url, why), many in kept.items():
            log.error("%s: %d stay where they are: %s", url, many, why)
        for one in unknown:
            log.error("no selected dead letter has the id %s, or had it before", one)
        answers.check()

    async def run() -> None:
        run_action = {"list": count, "show": show}.get(options.action, move)
        await run_action(StandardOutput())

    code = tool.run_alone(run)
    return 1 if kept or unknown else code


def _now_ms() -> int:
    return time.time_ns() // MILLISECOND_NS
