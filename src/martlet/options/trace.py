"""The options of ``martlet trace``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.durations import MILLISECOND_NS, SECOND_NS
from martlet.options.door import DoorOptions
from martlet.options.flag import FlagKind, OptionError, option
from martlet.options.options import Options


@dataclass(frozen=True, kw_only=True)
class TraceOptions(DoorOptions):
    """What ``martlet trace`` is started with.

    Raises:
        OptionError: it does not say which message, or where to look.
    """

    id: str = option(
        "id", FlagKind.STRING, "", "the message's id, 16 hexadecimal digits", section="message"
    )
    key: str = option(
        "key", FlagKind.STRING, "", "messages with this key, instead of one with an id"
    )
    topic: str = option("topic", FlagKind.STRING, "", "look only at this topic")
    since_ns: int = option(
        "since",
        FlagKind.DURATION,
        0,
        "with --key, look only at what was stored so long ago or later (default: at everything)",
        limits=(0, None),
    )
    limit: int = option(
        "limit", FlagKind.INT, 20, "with --key, show so many messages", limits=(1, 1000)
    )
    data_path: str = option(
        "data-path",
        FlagKind.STRING,
        "",
        "read this data folder instead of asking a broker; one may run on it, or not",
        section="search",
    )
    time_limit_ns: int = option(
        "time-limit",
        FlagKind.DURATION,
        10 * SECOND_NS,
        "look for so long and no longer",
        limits=(MILLISECOND_NS, 600 * SECOND_NS),
    )
    json: bool = option(
        "json", FlagKind.BOOL, False, "a line of JSON for each message", section="output"
    )

    def __post_init__(self) -> None:
        if bool(self.id) == bool(self.key):
            raise OptionError("which message? Give its id or, with --key, a key, and not both")
        if not self.data_path:
            super().__post_init__()
            return
        Options.__post_init__(self)
        if self.nsqd_http_addresses or self.lookupd_http_addresses:
            raise OptionError(
                "give brokers to ask or, with --data-path, a folder to read: not both"
            )
