"""The options of ``martlet transactions``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.door import DoorOptions
from martlet.options.flag import FlagKind, OptionError, option

ACTIONS = ("list", "show", "commit", "rollback")
_STATES = ("open", "silent", "prepared", "in-doubt", "set-aside")


@dataclass(frozen=True, kw_only=True)
class TransactionToolOptions(DoorOptions):
    """What ``martlet transactions`` is started with.

    Raises:
        OptionError: there is no such action or state, or it is not said which transaction.
    """

    action: str = option(
        "action", FlagKind.STRING, "", f"one of {', '.join(ACTIONS)}", section="what to do"
    )
    ids: tuple[str, ...] = option(
        "id", FlagKind.STRINGS, (), "the transaction; may be given several times"
    )
    state: str = option(
        "state",
        FlagKind.STRING,
        "",
        f"list only those in this state: {', '.join(_STATES)}",
        section="which of them",
    )
    group: str = option("group", FlagKind.STRING, "", "list only those of this group")
    limit: int = option(
        "limit",
        FlagKind.INT,
        100,
        "list so many transactions, or show so many messages, of each broker",
        limits=(1, 1000),
        section="output",
    )
    max_body_bytes: int = option(
        "max-body-bytes", FlagKind.SIZE, 1024, "show no more of a body", limits=(0, 8 << 20)
    )
    json: bool = option("json", FlagKind.BOOL, False, "lines of JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action not in ACTIONS:
            told = f"{self.action!r} is none of them" if self.action else "none is given"
            raise OptionError(f"what to do is one of {', '.join(ACTIONS)}: {told}")
        if self.state and self.state not in _STATES:
            raise OptionError(f"--state is {self.state!r}; it must be one of {', '.join(_STATES)}")
        if self.action == "list" and self.ids:
            raise OptionError("'list' takes no --id: 'show' tells of one transaction")
        if self.action != "list" and not self.ids:
            raise OptionError(
                f"which transaction? martlet transactions {self.action} ID, as 'list' tells it"
            )
