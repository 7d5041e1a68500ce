"""The planner: what it takes for the brokers of a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from martlet.addresses import Address
from martlet.client.group.assignment import planner
from martlet.client.group.assignment.membership import BrokerMembership
from martlet.client.group.assignment.plan import AllocationChoice
from martlet.client.group.assignment.planner import Planner
from martlet.client.group.known_brokers import KnownBroker


class Post:
    """A place at a broker of two queues, at which this consumer leads."""

    def __init__(self, address: str, members: list[str]) -> None:
        self.address = Address.parse(address)
        self.broker = KnownBroker(address)
        self.is_member = True
        self.roster = 1
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.planned = asyncio.Event()
        self._members = members

    async def call(self, method: str, **fields: Any) -> Mapping[str, Any]:
        self.calls.append((method, fields))
        if method == "group.plan":
            self.planned.set()
        return {}

    async def describe_group(self) -> Mapping[str, Any]:
        return {
            "place": {"broker": str(self.address), "room": ""},
            "roster": self.roster,
            "members": [
                {"member": id, "name": id, "room": "", "client_id": id, "address": ""}
                for id in self._members
            ],
            "queues": [{"queue": number, "target": None} for number in range(2)],
        }

    def of(self, method: str) -> list[Mapping[str, Any]]:
        """Return the arguments of the calls of a method."""
        return [fields for called, fields in self.calls if called == method]


@pytest.mark.parametrize("strategy", ["sticky", "averagely"])
async def test_a_broker_that_is_found_anew_counts_once(
    monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Its queues were planned twice, which the broker refused until it was forgotten."""
    monkeypatch.setattr(planner, "SETTLE_S", 0.0)
    before, anew, other = (Post(at, ["a", "b"]) for at in ("x:1", "x:1", "y:1"))
    planning = Planner("t", "a", AllocationChoice(strategy))
    try:
        async with asyncio.timeout(50):
            for post in (before, other):
                planning.met(cast("BrokerMembership", post))
            await before.planned.wait()
            before.is_member = False
            planning.lost(cast("BrokerMembership", before))
            planning.met(cast("BrokerMembership", anew))
            await anew.planned.wait()
    finally:
        await planning.close()
    assert anew.of("group.volunteer")[-1]["brokers"] == 2
    planned = [number for mine in anew.of("group.plan")[-1]["members"].values() for number in mine]
    assert sorted(planned) == [0, 1]
