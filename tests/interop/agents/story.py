"""The steps of each agent, the same for every client library, so that one test judges them all.

An agent is a process with a producer and a consumer of one library.  It publishes the bodies below,
is quiet for a while, and then publishes a tick every now and then until it is ended.  It prints
what happens, a JSON object a line:

    {"event": "published", "body": B}                    the broker answered OK
    {"event": "failed", "body": B, "reason": TEXT}       it did not, or could not be reached
    {"event": "received", "body": B, "attempts": N}
    {"event": "heartbeat"}                               where the library reports them
    {"event": "quiet"}, {"event": "ticking"}             where it is in the story

A library is used as its own documentation shows, with nothing set but what the story needs.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

PLAIN = "plain"
TOGETHER = ["first", "second", "third"]
"""Published in one command."""
LATER = "later"
"""Published with a delay."""
LATER_MS = 700
AGAIN = "again"
"""Requeued at its first delivery, finished at its second."""
AGAIN_MS = 100
SLOW = "slow"
"""Takes longer than the message timeout, and is touched meanwhile."""
SLOW_S = 2.5
TOUCH_S = 0.4
MESSAGE_TIMEOUT_S = 1
HEARTBEAT_S = 1
QUIET_S = 3.5
"""Longer than two heartbeats: who does not answer them is cut off."""
TICK_S = 0.2
PUBLISH_S = 2.0
"""How long an agent waits for the answer to a publish."""


class Arguments:
    """Where an agent is to work: ``AGENT HOST:PORT TOPIC CHANNEL [FEATURES]``.

    Features are a JSON object: ``snappy``, ``deflate`` and ``tls``, the file of an authority.
    """

    def __init__(self) -> None:
        self.address, self.topic, self.channel, *more = sys.argv[1:]
        self.features = json.loads(more[0]) if more else {}
        host, _, port = self.address.rpartition(":")
        self.host, self.port = host, int(port)

    def negotiated(self) -> dict[str, Any]:
        """The features by the names that both pynsq and gnsq give them."""
        options: dict[str, Any] = dict(self.features)
        if authority := options.pop("tls", None):
            options |= {"tls_v1": True, "tls_options": {"ca_certs": authority}}
        return options


def report(event: str, **fields: object) -> None:
    """Print what happened."""
    print(json.dumps({"event": event, "at_s": time.monotonic(), **fields}), flush=True)
