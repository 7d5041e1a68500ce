"""``martlet trace``: show the history of a message.

::

    message 9c41d0... of topic orders, offset 17: 28 bytes, key order-17
      21:55:34.123  stored
    channel billing: done
      21:55:34.124     +1 ms  delivered to till-3 127.0.0.1:41904
      21:55:35.126    +1.0 s  requeued by till-3 127.0.0.1:41904, to come again in 10.0 s: no card
      21:55:45.127   +11.0 s  delivered to till-3 127.0.0.1:41904, attempt 2
      21:55:45.130   +11.0 s  finished by till-3 127.0.0.1:41904
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from martlet.broker.recovery.trace_search import Search, TraceNotFound
from martlet.cli import tool
from martlet.cli.operation_flags import RequestOptions, with_flags_of
from martlet.cli.standard_output import StandardOutput
from martlet.client.admin import TraceAdmin
from martlet.log.folder import Folder, NoLog
from martlet.options.flag import OptionError, option
from martlet.options.options import Options
from martlet.schema.read import to_json
from martlet.schema.traces import (
    FIND,
    FindMessages,
    FoundMessages,
    MessageEvent,
    MessageStanding,
    TracedMessage,
)
from martlet.server.rpc.traces import found_messages
from martlet.text import MILLISECOND_NS, SECOND_NS, counted


@with_flags_of(find=FIND)
@dataclass(frozen=True, kw_only=True)
class TraceOptions(RequestOptions):
    """The options of ``martlet trace``."""

    since_ns: int = option(
        0,
        "with --key, the maximum age of messages (default: no limit)",
        limits=(0, None),
        section="message",
    )
    data_path: str = option(
        "",
        "read this data folder instead of asking a broker; a broker may run on it",
        section="search",
    )
    time_limit_ns: int = option(
        10 * SECOND_NS, "the time limit of the search", limits=(MILLISECOND_NS, 600 * SECOND_NS)
    )
    json: bool = option(False, "a line of JSON for each message", section="output")

    def __post_init__(self) -> None:
        if not self.data_path:
            super().__post_init__()
        else:
            Options.__post_init__(self)
            if self.nsqd_http_addresses or self.lookupd_http_addresses:
                raise OptionError(
                    "give brokers to ask or, with --data-path, a folder to read: not both"
                )
        self.request(FindMessages)

    def _values(self) -> dict[str, Any]:
        values = super()._values() | {"time_limit_ms": self.time_limit_ns // MILLISECOND_NS}
        if self.since_ns:
            values["since_ns"] = max(0, time.time_ns() - self.since_ns)
        return values


_STATES = {
    "waiting": "waits for its first delivery",
    "unfinished": "was delivered and is not finished",
    "deferred": "waits for its time",
    "done": "done",
}
_GROUP_STATES = {
    "waiting": "not committed yet",
    "unfinished": "not committed yet",
    "deferred": "waits for its time",
    "done": "committed past it",
}
_DELAYED = {
    "waiting": "it waits for its delivery time; then it goes to the topic, with a new id",
    "done": "it no longer waits: it was cancelled, or delivered and has gone since",
}


async def answers(options: TraceOptions, errors: list[str]) -> list[FoundMessages]:
    """Find messages at brokers; return the answer of each that has any.

    Args:
        options: the messages and the brokers.
        errors: filled with the reasons why brokers did not answer or, if none has found any, did
            not find it.
    """
    async with options.admin() as admin:
        searched = await tool.settled(
            TraceAdmin.find.run(admin.http, options.request(FindMessages))
        )
    failures = searched.failures if searched.values else searched.errors
    errors += map(str, failures.values())
    return list(searched.values.values())


def line(message: TracedMessage) -> bytes:
    """Write a message as a line of JSON."""
    fields = message.fields or to_json(message)
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def text(message: TracedMessage, answer: FoundMessages) -> bytes:
    """Format a message as text."""
    return "\n".join([*_lines(message, answer), ""]).encode()


def _lines(message: TracedMessage, answer: FoundMessages) -> Iterator[str]:
    queue = f", queue {message.queue}" if message.queue else ""
    offset = "" if message.offset is None else f", offset {message.offset}"
    yield (
        f"message {message.id} of topic {message.topic}{queue}{offset}:"
        f" {', '.join([counted(message.body_bytes, 'byte'), *_carried(message.properties)])}"
    )
    stored_ns, due_ns = message.stored_at_ns, message.deliver_at_ns
    due = f", to be delivered {_time(due_ns, stored_ns)}" if due_ns else ""
    yield f"  {_day(stored_ns)} {_clock(stored_ns)}  stored{due}"
    if message.delayed:
        yield f"  {_DELAYED[message.delayed]}"
        return
    standing = {channel.channel: channel for channel in message.channels}
    for name in dict.fromkeys([*standing, *(event.channel for event in message.events)]):
        yield from _channel(name, standing.get(name), message, answer.are_traced)
    if not answer.are_traced:
        yield "events of this topic's messages are not recorded: see --trace of the broker"
    elif message.known_since_ns > stored_ns:
        since_ns = message.known_since_ns
        yield f"its events before {_day(since_ns)} {_clock(since_ns)} are no longer known"


def _channel(
    name: str, standing: MessageStanding | None, message: TracedMessage, is_traced: bool
) -> Iterator[str]:
    stored_ns = message.stored_at_ns
    happened = [
        (event.time_ns, _happened(event)) for event in message.events if event.channel == name
    ]
    if happened:
        first_ns = happened[0][0]
        starts = [(at_ns, "the broker was started") for at_ns in message.starts_ns]
        happened = sorted(
            [*happened, *(start for start in starts if start[0] > first_ns)], key=lambda t: t[0]
        )
    if standing is None:
        yield f"channel {name}: it was deleted"
    elif standing.is_group:
        state = _GROUP_STATES.get(standing.state, standing.state)
        if standing.state == "done" and is_traced and not happened:
            state += ": it was created later, or passed it before it was traced"
        yield f"group {name}: {state}"
    else:
        due_ns = standing.due_ns
        state = _STATES.get(standing.state, standing.state)
        due = f": {_time(due_ns, stored_ns)}" if due_ns else ""
        if due_ns and due_ns <= time.time_ns():
            state, due = f"due since {_time(due_ns, stored_ns)}; waits for a consumer", ""
        attempts = standing.attempts
        if standing.state == "done" and is_traced and not happened:
            due = ": it was created later, or emptied, or passed it before it was traced"
        tried = f", {attempts} attempts" if attempts > 1 else ""
        yield f"channel {name}: {state}{due}{tried}"
    for time_ns, what in happened:
        yield f"  {_time(time_ns, stored_ns)}  {'+' + _span(time_ns - stored_ns):>9}  {what}"


def _happened(event: MessageEvent) -> str:
    who = event.client
    attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
    why = f": {event.reason}" if event.reason else ""
    again = f", redelivery in {_span(event.delay_ms * 1_000_000)}" if event.delay_ms else ""
    by = f" by {who}" if who else ""
    return {
        "delivered": f"delivered to {who}{attempt}",
        "finished": f"finished{by}",
        "requeued": f"requeued{by}{again}{why}",
        "timed_out": f"timed out at {who}{again}{why}",
        "given_back": f"given back{by}, which has gone or stopped{again}{why}",
        "fetched": f"fetched{by}",
        "committed": f"committed{by or ' by its reader'}",
        "set_back": f"set back{by}, to fetch it again",
        "set_forward": f"set forward past it{by}",
        "given_up": f"not tried again after {counted(event.attempt, 'attempt')}{by}{why}",
    }.get(event.event, f"{event.event}{by}{attempt}{again}{why}")


def _carried(properties: Mapping[str, Any]) -> Iterator[str]:
    for key in properties.get("keys", ()):
        yield f"key {key}"
    for name in ("tag", "order_key", "order_key_base64", "priority"):
        if properties.get(name) not in (None, ""):
            yield f"{name.replace('_', ' ')} {properties[name]}"
    for name, value in properties.get("system", {}).items():
        yield f"{name} {value}"


def _moment(time_ns: int) -> datetime:
    return datetime.fromtimestamp(time_ns / 1e9, UTC)


def _day(time_ns: int) -> str:
    return f"{_moment(time_ns):%Y-%m-%d}"


def _clock(time_ns: int) -> str:
    moment = _moment(time_ns)
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"


def _time(time_ns: int, reference_ns: int) -> str:
    """Return the time of day, with the date if it differs from that of a reference."""
    day = "" if _day(time_ns) == _day(reference_ns) else f"{_day(time_ns)} "
    return day + _clock(time_ns)


def _span(duration_ns: int) -> str:
    milliseconds = duration_ns / 1e6
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


DESCRIPTION = (
    "Show the history of a message, by its id or a key: stored, delivered to a consumer, failed,"
    " delivered again, finished or dead-lettered. The id may stand without its flag: martlet trace"
    " ID. A broker records events if it is started with --trace, or if a topic's"
    " policy says so, and keeps them as long as the segments of the log that have them."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Show the history of messages; return the exit code of the process."""
    options = tool.options("trace", DESCRIPTION, TraceOptions, argv, "ID", ["id"])
    errors: list[str] = []

    async def show() -> None:
        output = StandardOutput()
        results = [read(options)] if options.data_path else await answers(options, errors)
        for answer in results:
            await output.show(
                [line(m) if options.json else text(m, answer) for m in answer.messages]
            )
            if not answer.is_complete:
                log.warning(
                    "the search is incomplete: there are more messages, or its time was over"
                    " (--limit, --since, --time-limit)"
                )
        for error in errors:
            log.error("%s", error)

    try:
        code = tool.run_alone(show)
    except (TraceNotFound, NoLog) as error:
        log.error("%s", error)
        return 1
    return code or int(bool(errors))


def read(options: TraceOptions) -> FoundMessages:
    """Search a data folder. Raises TraceNotFound and NoLog."""
    ends_s = time.monotonic() + options.time_limit_ns / SECOND_NS
    request = options.request(FindMessages)
    folder = Folder(Path(options.data_path))
    search = Search(folder, lambda: time.monotonic() >= ends_s, request.topic or "")
    if request.id is not None:
        return found_messages(search.by_id(str(request.id)))
    assert request.key is not None
    return found_messages(search.by_key(request.key, request.since_ns, request.limit))
