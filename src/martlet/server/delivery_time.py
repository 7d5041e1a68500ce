"""The delivery time of delayed messages.

The answer has the id of the first message, which cancels it; the ids of the others count up from
it::

    {"status": "OK", "queue": 0, "offset": null, "count": 1, "id": "00c0ffee00c0ffee"}

A delayed message has no offset before it is due.  When due it gets a new id, like any message
published then; the property ``delayed`` keeps the first id.
"""

from __future__ import annotations

from martlet.server.rpc.arguments import CallArguments, CallError
from martlet.text import MILLISECOND_NS

LATEST_MS = 1 << 43
"""The year 2248: nanoseconds until then fit into 63 bits."""


def deliver_at_ns(arguments: CallArguments, now_ns: int, max_delay_ns: int) -> int:
    """Return the argument ``deliver_at_ms`` in nanoseconds: 0 for now or a time in the past.

    Raises CallError.
    """
    at_ms = arguments.number("deliver_at_ms", 0, max_value=LATEST_MS)
    at_ns = at_ms * MILLISECOND_NS
    if at_ns > now_ns + max_delay_ns:
        raise CallError(
            "BAD_ARGUMENT",
            f"'deliver_at_ms' is {(at_ns - now_ns) // 10**9} s from now; the longest delay is"
            f" {max_delay_ns // 10**9} s (--max-delay)",
        )
    return at_ns if at_ns > now_ns else 0
