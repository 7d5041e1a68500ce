"""Find brokers that share an id since a data folder was copied.

A run is the random name of one process of a broker without replicas. Two runs at the same time are
two brokers; one run at two addresses is one broker. An answer may name a run that has ended, as
after a restart at another address: so callers poll twice, and report what both saw (`confirmed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

WAY_OUT = (
    "stop one and delete the broker.json in its folder, and it begins again as a broker of its own"
)


class Process(NamedTuple):
    """A broker's process."""

    broker: str
    """The broker's id; empty if it does not report it."""
    run: str
    """A random name of the process; empty of a replica."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Process:
        """Return the process that an answer of a broker or a lookup daemon names."""
        return cls(str(answer.get("broker", "")), str(answer.get("run", "")))


class Copies(NamedTuple):
    """Brokers that have one id."""

    broker: str
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        first, second = ", ".join(self.addresses[:-1]), self.addresses[-1]
        return (
            f"the brokers at {first} and {second} both have the id {self.broker}, since the data"
            " folder of one is a copy of the other's"
        )


def refusal(copies: Copies, loss: str) -> str:
    """Return the error of a client that does not go on while two brokers share an id.

    Args:
        loss: what would be lost otherwise.
    """
    return f"{copies}: {loss}. Name one of them alone; or {WAY_OUT}"


def copies_in(processes: Mapping[str, Process]) -> list[Copies]:
    """Return the brokers of several addresses that have one id."""
    by_id: dict[str, dict[str, str]] = {}
    for address, process in processes.items():
        if process.broker and process.run:
            by_id.setdefault(process.broker, {}).setdefault(process.run, address)
    return [Copies(broker, tuple(runs.values())) for broker, runs in by_id.items() if len(runs) > 1]


def confirmed(before: Mapping[str, Process], now: Mapping[str, Process]) -> list[Copies]:
    """Return the copies that two polls have seen, which ran at the same time."""
    return copies_in(
        {address: process for address, process in now.items() if before.get(address) == process}
    )
