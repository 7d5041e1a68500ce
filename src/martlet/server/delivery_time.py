"""Delaying: messages that are sent now and delivered at a time.

The answer tells the id of the first message, by which it can be cancelled; those of the others
count up from it::

    {"status": "OK", "queue": 0, "offset": null, "count": 1, "id": "00c0ffee00c0ffee"}

It has no offset before its time comes, and then another id, as any message that is published then;
the property ``delayed`` tells the one it had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.durations import MILLISECOND_NS
from martlet.server.rpc.arguments import CallArguments, CallError

if TYPE_CHECKING:
    from martlet.server.server import Server

LATEST_MS = 1 << 43
"""The year 2248: nanoseconds until then fit into 63 bits."""


def deliver_at_ns(arguments: CallArguments, server: Server) -> int:
    """When messages are to be delivered, 0 for at once, as for a time that has passed.

    Raises CallError.
    """
    at_ms = arguments.number("deliver_at_ms", 0, max_value=LATEST_MS)
    at_ns, now_ns = at_ms * MILLISECOND_NS, server.broker.clock()
    max_ns = server.options.max_delay_ns
    if at_ns > now_ns + max_ns:
        raise CallError(
            "BAD_ARGUMENT",
            f"'deliver_at_ms' is {(at_ns - now_ns) // 10**9} s from now; the longest delay is"
            f" {max_ns // 10**9} s (--max-delay)",
        )
    return at_ns if at_ns > now_ns else 0
