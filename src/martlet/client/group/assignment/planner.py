"""The planner: assign the queues of all brokers while its consumer leads the group.

Brokers are not connected to each other, but members are to all of them. A consumer at several
brokers, or with a strategy of its own, volunteers at each; all of them choose the same leader
(`martlet.broker.groups.membership`). The leader requests each broker's members and queues, assigns
all queues to all members, and sends each broker its part. The broker moves the queues from holder
to holder::

    members come or go --roster--> leader --group.describe--> every broker
                                     |
                                  a strategy
                                     +---------group.plan---> every broker that it leads

A lost broker counts with its last state for ``ABSENT_S``, so that its restart moves no queues at
other brokers. A broker with another leader is independent: its members' queues count for
``sticky``, and are left as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from martlet.client.errors import CallRefused, ClientError
from martlet.client.group.assignment.plan import AllocationChoice, GroupView, plan

if TYPE_CHECKING:
    from martlet.client.group.assignment.membership import BrokerMembership

logger = logging.getLogger("martlet.client")

SETTLE_S = 0.1
"""The wait for further members to come or go."""
POLL_S = 20.0
"""The interval of plans without a change: RocketMQ's time between two rebalances."""
ABSENT_S = 20.0
RETRY_S = 1.0
ANSWER_S = 5.0
"""The time limit of a broker's answer."""


class Planner:
    """Assign the queues of all brokers while the consumer leads."""

    def __init__(self, topic: str, client_id: str, choice: AllocationChoice) -> None:
        self.name = f"{client_id}@{token_hex(8)}"
        """The consumer's at all brokers."""
        self._topic = topic
        self._choice = choice
        self._seen_s: dict[BrokerMembership, float] = {}
        """The last time of the consumer's membership there."""
        self._announced: dict[BrokerMembership, int] = {}
        """The consumer's number of brokers, as last reported to each broker."""
        self._alone: set[BrokerMembership] = set()
        """The memberships at older brokers, which have no leaders."""
        self._views: dict[BrokerMembership, GroupView] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_failed = False
        self._is_closed = False

    def met(self, member: BrokerMembership) -> None:
        """Note that the consumer has become a member."""
        self._announced.pop(member, None)
        self._alone.discard(member)
        for other in list(self._seen_s):
            if other is not member and other.broker.name == member.broker.name:
                self._forget(other)  # The broker is reached at another address now.
        self._seen_s[member] = asyncio.get_running_loop().time()
        self.wake()

    def lost(self, member: BrokerMembership) -> None:
        """Note that the consumer is no longer a member."""
        if member in self._seen_s:
            self._seen_s[member] = asyncio.get_running_loop().time()
            self.wake()

    def wake(self) -> None:
        """Plan again after members came or went."""
        self._woken.set()
        if self._task is None and not self._is_closed:
            self._task = asyncio.create_task(self._run(), name="martlet planner")

    async def close(self) -> None:
        """Stop planning."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            is_unasked = False
            try:
                async with asyncio.timeout(RETRY_S if self._has_failed else POLL_S):
                    await self._woken.wait()
            except TimeoutError:
                is_unasked = True
            await asyncio.sleep(SETTLE_S)
            self._woken.clear()
            self._has_failed = False
            try:
                members = self._members()
                await self._volunteer(members, is_unasked)
                await self._plan(members)
            except Exception:
                logger.exception(
                    "assigning the queues of %s failed unexpectedly, and begins again", self._topic
                )
                self._has_failed = True

    def _members(self) -> list[BrokerMembership]:
        """Return the current memberships; forget those that ended too long ago."""
        now_s = asyncio.get_running_loop().time()
        for member, seen_s in list(self._seen_s.items()):
            if not member.is_member and now_s - seen_s >= ABSENT_S:
                self._forget(member)
        return [member for member in self._seen_s if member.is_member]

    def _forget(self, member: BrokerMembership) -> None:
        del self._seen_s[member]
        self._announced.pop(member, None)
        self._alone.discard(member)
        self._views.pop(member, None)

    async def _volunteer(self, members: Sequence[BrokerMembership], is_again: bool) -> None:
        """Report the consumer's number of brokers to those that have an older one, or to all."""
        count = len(self._seen_s.keys() - self._alone)
        if not self._choice.is_own and (count < 2 or self._choice.name == "by-config"):
            count = 0  # Each broker assigns its queues as well alone.
        is_again = is_again and count > 0
        outdated = [
            member
            for member in members
            if member not in self._alone and (is_again or self._announced.get(member, 0) != count)
        ]
        answers = await asyncio.gather(
            *(
                self._ask(member, member.call("group.volunteer", name=self.name, brokers=count))
                for member in outdated
            )
        )
        for member, answer in zip(outdated, answers, strict=True):
            if answer is not None and member not in self._alone:
                self._announced[member] = count

    async def _plan(self, members: Sequence[BrokerMembership]) -> None:
        """Assign the queues, if the consumer leads."""
        if all(member.roster is None for member in members):
            return
        members = sorted(set(members) - self._alone, key=lambda member: str(member.address))
        answers = await asyncio.gather(
            *(self._ask(member, member.describe_group()) for member in members)
        )
        live: dict[BrokerMembership, GroupView] = {}
        names: set[str] = set()
        for member, fields in zip(members, answers, strict=True):
            if fields is not None:
                live[member] = GroupView.of(fields, str(member.address), names)
        self._views |= live
        absent = [view for member, view in self._views.items() if member not in live]
        led = {view.broker: member for member, view in live.items() if member.roster is not None}
        parts = plan(self._topic, self._choice, list(live.values()), absent, led.keys())
        await asyncio.gather(
            *(
                self._ask(
                    member,
                    member.call(
                        "group.plan",
                        roster=live[member].roster,
                        count=len(live[member].queues),
                        members=parts[broker],
                    ),
                )
                for broker, member in led.items()
            )
        )

    async def _ask(
        self, member: BrokerMembership, call: Awaitable[Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """Wait for a broker's answer; None if there is none, and try again soon."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await call
        except CallRefused as error:
            if error.code == "UNKNOWN_METHOD":
                logger.warning(
                    "%s is of an older version, and assigns its queues of %s by"
                    " itself, not evenly over all brokers",
                    *(member.address, self._topic),
                )
                self._alone.add(member)
                self._woken.set()
                return None
            logger.debug("%s: the queues are not assigned now: %s", member.address, error)
        except (ClientError, TimeoutError) as error:
            logger.debug("%s: the queues are not assigned now: %r", member.address, error)
        self._has_failed = True
        return None
