"""The planner: shares the queues of all brokers out, where its consumer leads the group.

Brokers do not talk to each other, but members talk to all of them.  A consumer that is at several
brokers, or that has a strategy of its own, volunteers at each; all of them take the same one for
their leader (`martlet.broker.groups.membership`).  The leader asks each broker which members and
queues it has, shares all of the queues out among all of the members, and tells each broker its
part.  The broker has the queues go from holder to holder::

    members come or go --roster--> leader --group.describe--> every broker
                                     |
                                  a strategy
                                     +---------group.plan---> every broker that it leads

A broker that has gone counts as it was for ``ABSENT_S``, so that one that is started again has
queues go to and fro at no other.  One that takes another for its leader goes its own way: what its
members have there counts for ``sticky``, and is left as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Protocol

from martlet.addresses import Address
from martlet.client.errors import CallRefused, ClientError
from martlet.client.group.assignment.plan import AllocationChoice, GroupView, plan

logger = logging.getLogger("martlet.client")

SETTLE_S = 0.1
"""How long it waits for others to come and go too."""
LOOK_S = 20.0
"""How often it looks unasked: RocketMQ's time between two rebalances."""
ABSENT_S = 20.0
RETRY_S = 1.0
ANSWER_S = 5.0
"""How long a broker may take to answer."""


class Member(Protocol):
    """A membership of the consumer at one broker, as far as the planner needs it."""

    address: Address
    roster: int | None

    @property
    def is_member(self) -> bool:
        """Whether the broker counts the consumer as a member."""

    async def call(self, method: str, **fields: Any) -> Mapping[str, Any]:
        """Call the broker as a member."""

    async def describe_group(self) -> Mapping[str, Any]:
        """Ask what the broker knows of the group."""


class Planner:
    """Shares the queues of all brokers out, where it leads.

    Args:
        topic: its name.
        client_id: what the consumer calls itself.
        choice: how.

    Attributes:
        name: what the consumer is called at all brokers.
    """

    def __init__(self, topic: str, client_id: str, choice: AllocationChoice) -> None:
        self.name = f"{client_id}@{token_hex(8)}"
        self._topic = topic
        self._choice = choice
        self._seen_s: dict[Member, float] = {}
        """When it was a member there for the last time."""
        self._announced: dict[Member, int] = {}
        """At how many brokers we are, as the broker was told last."""
        self._alone: set[Member] = set()
        """Where the broker knows no leaders."""
        self._pictures: dict[Member, GroupView] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_failed = False
        self._is_closed = False

    def met(self, post: Member) -> None:
        """It has become a member there."""
        self._announced.pop(post, None)
        self._alone.discard(post)
        for known in [each for each in self._seen_s if each.address == post.address]:
            if known is not post:
                self._forget(known)  # It was left, and found anew by a lookup daemon.
        self._seen_s[post] = asyncio.get_running_loop().time()
        self.wake()

    def lost(self, post: Member) -> None:
        """It is no member there any more."""
        if post in self._seen_s:
            self._seen_s[post] = asyncio.get_running_loop().time()
            self.wake()

    def wake(self) -> None:
        """Members have come or gone."""
        self._woken.set()
        if self._task is None and not self._is_closed:
            self._task = asyncio.create_task(self._run(), name="martlet planner")

    async def close(self) -> None:
        """Plan no more."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            is_unasked = False
            try:
                async with asyncio.timeout(RETRY_S if self._has_failed else LOOK_S):
                    await self._woken.wait()
            except TimeoutError:
                is_unasked = True
            await asyncio.sleep(SETTLE_S)
            self._woken.clear()
            self._has_failed = False
            try:
                posts = self._posts()
                await self._volunteer(posts, is_unasked)
                await self._plan(posts)
            except Exception:
                logger.exception(
                    "sharing out the queues of %s broke, and begins again", self._topic
                )
                self._has_failed = True

    def _posts(self) -> list[Member]:
        """Where we are a member; who has gone for too long is forgotten."""
        now_s = asyncio.get_running_loop().time()
        for post, seen_s in list(self._seen_s.items()):
            if not post.is_member and now_s - seen_s >= ABSENT_S:
                self._forget(post)
        return [post for post in self._seen_s if post.is_member]

    def _forget(self, post: Member) -> None:
        del self._seen_s[post]
        self._announced.pop(post, None)
        self._alone.discard(post)
        self._pictures.pop(post, None)

    async def _volunteer(self, posts: Sequence[Member], is_again: bool) -> None:
        """Tell brokers at how many of them we are, where they do not know; or all of them, since
        one may have passed us over.
        """
        count = len(self._seen_s.keys() - self._alone)
        if not self._choice.is_own and (count < 2 or self._choice.name == "by-config"):
            count = 0  # Each broker does as well alone.
        is_again = is_again and count > 0
        asked = [
            post
            for post in posts
            if post not in self._alone and (is_again or self._announced.get(post, 0) != count)
        ]
        answers = [
            self._ask(p, p.call("group.volunteer", name=self.name, brokers=count)) for p in asked
        ]
        for post, answer in zip(asked, await asyncio.gather(*answers), strict=True):
            if answer is not None and post not in self._alone:
                self._announced[post] = count

    async def _plan(self, posts: Sequence[Member]) -> None:
        """Share the queues out, where we lead."""
        if all(post.roster is None for post in posts):
            return
        asked = sorted((p for p in posts if p not in self._alone), key=lambda p: str(p.address))
        told = await asyncio.gather(*(self._ask(p, p.describe_group()) for p in asked))
        live: dict[Member, GroupView] = {}
        names: set[str] = set()
        for post, fields in zip(asked, told, strict=True):
            if fields is not None:
                live[post] = GroupView.of(fields, str(post.address), names)
        self._pictures |= live
        absent = [picture for post, picture in self._pictures.items() if post not in live]
        led = {picture.broker: p for p, picture in live.items() if p.roster is not None}
        parts = plan(self._topic, self._choice, list(live.values()), absent, led.keys())
        await asyncio.gather(
            *(
                self._ask(
                    post,
                    post.call(
                        "group.plan",
                        roster=live[post].roster,
                        count=len(live[post].queues),
                        members=parts[broker],
                    ),
                )
                for broker, post in led.items()
            )
        )

    async def _ask(
        self, post: Member, call: Awaitable[Mapping[str, Any]]
    ) -> Mapping[str, Any] | None:
        """What a broker answers; None where it does not, and is asked again soon."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await call
        except CallRefused as error:
            if error.code == "UNKNOWN_METHOD":
                logger.warning(
                    "%s is of an older version, and shares the queues of %s that it has out by"
                    " itself, not evenly over all brokers",
                    *(post.address, self._topic),
                )
                self._alone.add(post)
                self._woken.set()
                return None
            logger.debug("%s: the queues are not shared out now: %s", post.address, error)
        except (ClientError, TimeoutError) as error:
            logger.debug("%s: the queues are not shared out now: %r", post.address, error)
        self._has_failed = True
        return None
