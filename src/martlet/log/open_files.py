"""The limit of open files: the last ones are for the log, and not for further connections.

Each connection is a file, and so is each segment that the log begins. A server that gives its last
descriptor to a connection can store nothing more. So it refuses connections whose descriptor is one
of the last: the system always gives the lowest that is free.
"""

from __future__ import annotations

import asyncio
import resource

MAX_SPARE = 64
"""The descriptors that no accepted connection gets, or a quarter of a low limit."""


def is_for_the_log(transport: asyncio.BaseTransport) -> bool:
    """Whether an accepted connection has one of the last descriptors, and is to be refused."""
    sock = transport.get_extra_info("socket")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if sock is None or limit == resource.RLIM_INFINITY:
        return False
    return bool(sock.fileno() >= limit - min(MAX_SPARE, limit // 4))


REFUSAL = "%s: refusing %s: too few files are left for the log; raise LimitNOFILE (ulimit -n)"
"""The line of the log, of a listener and a client."""
