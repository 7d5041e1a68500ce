"""What the tools that send messages on have in common: to which of several, and what they tell."""

from __future__ import annotations

from typing import Any

from martlet.options.flag import FlagKind, option

_MODES = {
    "hostpool": "each in its turn of those that work",
    "epsilon-greedy": "those that answer quickly more often",
    "round-robin": "each in its turn",
    "multicast": "all of them",
}


def mode(of: str, *, multicast: bool = False) -> Any:
    """``--mode``: which of several gets a message."""
    modes = [name for name in _MODES if multicast or name != "multicast"]
    meanings = "; ".join(f"{name}, {_MODES[name]}" for name in modes)
    choices = tuple((name, name) for name in modes)
    return option(
        "mode", FlagKind.CHOICE, modes[0], f"of several {of}: {meanings}", choices=choices
    )


def status_every(help: str) -> Any:
    """``--status-every``: after how many messages it is logged how long they take."""
    return option("status-every", FlagKind.INT, 250, help, limits=(0, 10**6))
