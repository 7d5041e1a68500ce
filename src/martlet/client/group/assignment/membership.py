"""A member of a group at one broker.

It joins, and then always requests its assignment; the broker holds the request until that changes
(a long poll), and takes it as a heartbeat that renews the lease. The member stops handing out a
queue that moves to another member; after its running handlers have ended, or after
``leave_timeout_s``, it releases the queue with its offset. If the queue is assigned here again
meanwhile, the member continues where it was.

A member that lost its membership (its lease ended, or the broker restarted) joins again. Other
members may have had its queues since, so the broker refuses its commits of them: they would undo
the progress of those members.

If a topic's queues are at several brokers, one of the members assigns them: see
`martlet.client.group.assignment.planner`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from martlet.addresses import Address
from martlet.client.errors import CallRefused, ClientError, ConnectionLost
from martlet.client.group.assignment.planner import Planner
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.assigned_queue import AssignedQueue, AssignmentState
from martlet.client.group.queues.fetcher import ERROR_PAUSE_S, GONE
from martlet.client.group.session import PullSession, SessionSettings
from martlet.client.group.started import OnKnown
from martlet.client.transport.connection import Connection
from martlet.client.transport.dialer import Dialer

logger = logging.getLogger("martlet.client")

FAREWELL_S = 5.0
"""The time to wait for the answer to leaving, before joining again."""
ASK_MS = 15_000
"""The maximum time of a request for the assignment; never above half a lease."""


class BrokerMembership(PullSession):
    """Keep the consumer a member of a group at one broker; ``joining`` has the arguments of
    ``group.join``.
    """

    def __init__(
        self,
        address: Address,
        dialer: Dialer,
        settings: SessionSettings,
        group: str,
        joining: Mapping[str, Any],
        planner: Planner,
    ) -> None:
        super().__init__(address, dialer, settings)
        self.roster: int | None = None
        """The broker's number for the current members while the consumer leads; else None."""
        self._planner = planner
        self._group = {"topic": settings.topic, "group": group}
        self._joining = joining
        self._member: dict[str, Any] | None = None
        """The arguments of each call of the member."""
        self._generation = 0
        self._since: dict[int, int] = {}
        """The generation in which each queue was assigned."""
        self._leaving: dict[AssignedQueue, asyncio.Task[None]] = {}
        self._releasing: set[int] = set()
        """Those of the queues to release that can no longer be kept."""
        self._errands: set[asyncio.Task[None]] = set()

    @property
    def _fetching(self) -> tuple[str, Mapping[str, Any]]:
        return "group.fetch", self._member or {}

    @property
    def is_member(self) -> bool:
        """Whether the broker counts the consumer as a member."""
        return self._member is not None

    async def call(self, method: str, **fields: Any) -> Mapping[str, Any]:
        """Call the broker as a member. Raises CallRefused: the broker refuses. ConnectionLost:
        there is no connection, or it was lost.
        """
        connection, member = self.connection, self._member
        if connection is None or member is None:
            raise ConnectionLost(f"{self.address} is not connected")
        return (await connection.call(method, **member, **fields)).fields

    async def describe_group(self) -> Mapping[str, Any]:
        """Return the broker's state of the group. Raises CallRefused and ConnectionLost."""
        return (await self._connected().call("group.describe", **self._group)).fields

    # membership

    async def _attend(self, connection: Connection) -> None:
        joined = await connection.call("group.join", **self._group, **self._joining)
        self._member = member = {**self._group, "member": joined.fields["member"]}
        try:
            self.set_connected(connection)
            self._planner.met(self)
            await self._apply(connection, joined.fields)
            self.mark_attempted()
            await self._wait_over(connection, self._follow(connection))
        finally:
            self._member = self.roster = None
            self._planner.lost(self)
            self._since.clear()
            self._releasing.clear()
            tasks = [*self._leaving.values(), *self._errands]
            self._leaving.clear()
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            if self._goes_on(connection):
                await self._lose(list(self.held.values()))
                await self._leave_as(connection, member)

    async def _leave_as(self, connection: Connection, member: Mapping[str, Any]) -> None:
        """Leave the group, since its queues would otherwise wait for the end of the lease."""
        try:
            async with asyncio.timeout(FAREWELL_S):
                await connection.call("group.leave", **member)
        except CallRefused as error:
            if error.code not in GONE:
                logger.warning("%s refused that the member leaves: %s", self.address, error)
        except (TimeoutError, ConnectionLost) as error:
            logger.warning("%s did not confirm the end: %r", self.address, error)

    async def _follow(self, connection: Connection) -> None:
        """Request the assignment in a loop."""
        while (member := self._member) is not None:
            try:
                answer = await connection.call(
                    "group.assignment", **member, generation=self._generation, wait_ms=ASK_MS
                )
            except CallRefused as error:
                if error.code in GONE:
                    self.end(str(error))
                    return
                logger.warning("%s: cannot ask for the assignment: %s", self.address, error)
                await asyncio.sleep(ERROR_PAUSE_S)
            except ConnectionLost:
                return
            else:
                await self._apply(connection, answer.fields)

    async def _apply(self, connection: Connection, assignment: Mapping[str, Any]) -> None:
        """Adopt the assigned queues, and drop all others."""
        self._generation = int(assignment["generation"])
        if self._closing.is_set():
            return  # All queues were dropped.
        before, self.roster = self.roster, assignment.get("roster")
        if self.roster not in (None, before):
            self._planner.wake()
        ours = {int(queue["queue"]): queue for queue in assignment["queues"]}
        revoked = set(assignment["revoked"])
        # Another `since` is a new assignment: another member may have had the queue in between.
        gone = [
            held
            for number, held in self.held.items()
            if number not in ours
            or ours[number]["since"] != self._since.get(number)
            or held.hold is AssignmentState.CLOSED
        ]
        for held in gone:
            if held not in self._leaving:
                logger.warning("%s of %s was taken away", held.id, held.topic)
        await self._lose(gone)
        for number, held in self.held.items():
            if number in self._releasing:
                continue
            if number not in revoked:
                self._stay(held)
            elif held not in self._leaving:
                held.begin_leaving()
                task = asyncio.create_task(self._give_back(held))
                self._leaving[held] = task
        fresh = {
            number: int(queue["offset"])
            for number, queue in ours.items()
            if number not in self.held and number not in self._releasing
        }
        # Assigned and revoked at once: release at once, since the next holder waits for it.
        if unused := {number: fresh.pop(number) for number in revoked & fresh.keys()}:
            await self._release(unused)
        taken = await self._take(connection, fresh)
        if self._closing.is_set():
            for held in taken:
                self._drop(held)  # The application was not notified of them.
            return
        for held in taken:
            fields = ours[held.id.queue]
            self._since[held.id.queue] = fields["since"]
            held.end_offset = int(fields["end_offset"])
        # Fetching begins after the application was notified, since it may move to other offsets.
        await self.settings.assigned([held.id for held in taken])
        self._begin(connection, [self.held[number] for number in fresh if number in self.held])

    def _prepare(self, held: AssignedQueue) -> None:
        """Report started messages to the broker, if the group has a retry policy."""
        held.say_started = partial(self._say_started, held)

    def _say_started(
        self,
        held: AssignedQueue,
        runs: Sequence[tuple[int, int]],
        on_known: OnKnown | None,
    ) -> None:
        """Report started messages without waiting; wait for the answer before a suspect begins."""
        connection, member = self.connection, self._member
        queue = held.id.queue
        if connection is None or member is None or self.held.get(queue) is not held:
            if on_known is not None:
                error = ConnectionLost(f"{self.address}: {held.id} is not held any more")
                asyncio.get_running_loop().call_soon(on_known, error)
            return
        fields = {**member, "queue": queue, "runs": runs, "alone": on_known is not None}
        if on_known is None:
            connection.write(connection.unanswered("group.start", **fields))
        else:
            connection.call_then(partial(self._on_known, on_known), "group.start", **fields)

    def _on_known(self, on_known: OnKnown, error: BaseException | None) -> None:
        on_known(error)
        if isinstance(error, CallRefused):
            self.end(f"a started message cannot be reported: {error}")

    # releasing queues

    def _stay(self, held: AssignedQueue) -> None:
        """Keep a queue that was to be released."""
        task = self._leaving.pop(held, None)
        if task is not None:
            task.cancel()
            held.stay()

    async def _give_back(self, held: AssignedQueue) -> None:
        """Release a queue after its handlers have ended."""
        if not await held.idle(self.settings.leave_timeout_s):
            logger.warning(
                "%s of %s goes to another member, and after %g s handlers still run on it:"
                " that member gets their messages too",
                *(held.id, held.topic, self.settings.leave_timeout_s),
            )
        number = held.id.queue
        task = self._leaving.pop(held)
        if self.held.get(number) is not held or self._closing.is_set():
            return
        # From here on it cannot be kept: if it is assigned here again, that is a new assignment.
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        self._releasing.add(number)
        try:
            await self.settings.revoked([held.id])
            is_ours = self.settings.auto_commit
            offset = held.next_commit if is_ours else held.committed
            self._drop(held)
            await self._release({number: offset}, back=is_ours and held.is_set_back)
        finally:
            self._releasing.discard(number)

    async def _release(self, offsets: Mapping[int, int], *, back: bool = False) -> None:
        for number in offsets:
            self._since.pop(number, None)
        try:
            answer = await self.call(
                "group.release",
                generation=self._generation,
                offsets={str(number): offset for number, offset in offsets.items()},
                **({"back": list(offsets)} if back else {}),
            )
        except CallRefused as error:
            self.end(f"queues could not be released: {error}")
        except ConnectionLost:
            return
        else:
            self._on_refused(answer, {})

    # committing

    async def commit(self) -> None:
        """Commit the changed offsets of the queues. Raises ClientError: they could not be
        committed.
        """
        moved = {
            number: held
            for number, held in self.held.items()
            if held.hold is not AssignmentState.CLOSED and _has_moved(held)
        }
        if not moved:
            return
        back = [number for number, held in moved.items() if held.is_set_back]
        try:
            answer = await self.call(
                "group.commit",
                generation=self._generation,
                offsets={str(number): held.next_commit for number, held in moved.items()},
                **({"back": back} if back else {}),
            )
        except CallRefused as error:
            if error.code in GONE:
                self.end(str(error))
            raise
        for number, offset in answer["offsets"].items():
            moved[int(number)].committed = int(offset)
            moved[int(number)].is_set_back = False
        self._on_refused(answer, moved)

    def _carry_over(self, before: AssignedQueue, held: AssignedQueue) -> None:
        """Carry over the committed offset, and note whether the new one is lower.

        The broker accepts only rising offsets, unless asked to go back. All that is done counts as
        committed here, since its commit may be in transit.
        """
        held.committed = before.committed
        held.is_set_back = held.fetch_offset < max(before.committed, before.next_commit)

    def _on_refused(self, answer: Mapping[str, Any], moved: Mapping[int, AssignedQueue]) -> None:
        """Log refused offsets: other members have had these queues since."""
        for number, why in answer.get("refused", {}).items():
            logger.warning(
                "%s: the offset of queue %s was not accepted (%s): messages handled meanwhile"
                " may be handled again by the member that has it now",
                *(self.address, number, why),
            )
            held = moved.get(int(number))
            if held is not None and why == "NOT_HELD":
                held.close()

    def _moved(self, held: AssignedQueue) -> None:
        if not self.settings.auto_commit:
            return
        task = asyncio.get_running_loop().create_task(self._commit_soon())
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _commit_soon(self) -> None:
        try:
            await self.commit()
        except ClientError as error:
            logger.warning("%s: offsets could not be committed: %s", self.address, error)

    async def leave(self, timeout_s: float) -> None:
        """Commit, unless only the application does, and release all queues."""
        self._closing.set()
        connection, member = self.connection, self._member
        if connection is None or member is None:
            return
        queues = [held.id for n, held in self.held.items() if n not in self._releasing]
        for held in self.held.values():
            held.begin_leaving()
        try:
            async with asyncio.timeout(timeout_s):
                await self.settings.revoked(queues)
                if self.settings.auto_commit:
                    await self.commit()
                await connection.call("group.leave", **member)
        except (TimeoutError, ClientError) as error:
            reason = str(error) or f"no answer within {timeout_s:.3g} s"
            logger.warning("%s did not confirm the end: %s", self.address, reason)
        for held in list(self.held.values()):
            self._drop(held)

    # dead letters

    async def dead_letter(self, message: PulledMessage) -> str | None:
        """Move a message to the group's dead-letter topic. Raises ClientError: it was not stored
        there.
        """
        first, last = message.errors
        if message.is_lost:
            reason = "disconnected"
        else:
            reason = "rejected" if message.is_rejected else "max_attempts"
        answer = await self.call(
            "group.dead",
            generation=self._generation,
            queue=message.queue,
            offset=message.offset,
            reason=reason,
            attempts=message.attempts,
            first_error=first,
            last_error=last,
        )
        return str(answer["dead_letter_topic"])


def _has_moved(held: AssignedQueue) -> bool:
    """Return whether there is an offset to commit."""
    return held.next_commit > held.committed or held.is_set_back
