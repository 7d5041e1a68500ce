"""The two limits of time of requests to somebody else's HTTP, under nsqd's names."""

from __future__ import annotations

from typing import Any

from martlet.durations import SECOND_NS
from martlet.options.flag import FlagKind, option


def connect_timeout(
    help: str = "how long connecting over HTTP may take", min_value: int = 1
) -> Any:
    """``--http-client-connect-timeout``, two seconds unless told otherwise."""
    name = "http-client-connect-timeout"
    return option(name, FlagKind.DURATION, 2 * SECOND_NS, help, limits=(min_value, None))


def request_timeout(
    help: str = "how long an HTTP request may take", seconds: int = 5, min_value: int = 1
) -> Any:
    """``--http-client-request-timeout``, so many seconds unless told otherwise."""
    name = "http-client-request-timeout"
    return option(name, FlagKind.DURATION, seconds * SECOND_NS, help, limits=(min_value, None))
