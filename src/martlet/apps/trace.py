"""``martlet trace``: shows where a message has been."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from martlet.apps import tool
from martlet.broker.recovery.trace_search import Search, TraceNotFound
from martlet.broker.tracing.model import fields_of
from martlet.log.folder import Folder, NoLog
from martlet.options.trace import TraceOptions
from martlet.tools.standard_output import StandardOutput
from martlet.tools.trace import Tracing, line, text

DESCRIPTION = (
    "Show where a message has been, by its id or a key: stored, delivered to whom, failed why,"
    " delivered again, finished or given up. The id may stand without its flag: martlet trace ID."
    " What becomes of messages is written down where the broker is started with --trace, or a"
    " topic's policy says so, and is kept as long as the segments of the log that it stands in."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Show it; the result is the exit code of the process."""
    found = tool.named(TraceOptions, argv, "id")
    options = tool.options("trace", DESCRIPTION, TraceOptions, found, "ID")
    tracing = Tracing(options)

    async def show() -> None:
        output = StandardOutput(sys.stdout.fileno())
        answers = [read(options, tracing)] if options.data_path else await tracing.answers()
        for answer in answers:
            messages = answer["messages"]
            shown = map(line, messages) if options.json else (text(m, answer) for m in messages)
            await output.show(list(shown))
            if not answer["complete"]:
                log.warning(
                    "not all was looked at: there are more, or the time was over (--limit, --since,"
                    " --time-limit)"
                )
        for error in tracing.errors:
            log.error("%s", error)

    try:
        code = tool.run_alone(show)
    except (TraceNotFound, NoLog) as error:
        log.error("%s", error)
        return 1
    return code or (1 if tracing.errors else 0)


def read(options: TraceOptions, tracing: Tracing) -> dict[str, Any]:
    """What a data folder says. Raises TraceNotFound and NoLog."""
    ends_s = time.monotonic() + options.time_limit_ns / 1e9
    folder = Folder(Path(options.data_path))
    search = Search(folder, lambda: time.monotonic() >= ends_s, options.topic)
    if options.id:
        return fields_of(search.by_id(options.id))
    return fields_of(search.by_key(options.key, tracing.since_ns, options.limit))
