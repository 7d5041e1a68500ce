"""Operations on a replica set: each a change of its document in the metadata store.

The primary sees the change at its next look, within a second, and does what it asks for.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from martlet.replica.replica_set import (
    BadReplicaSet,
    Presence,
    ReplicaSet,
    Seen,
    no_replica_set,
)
from martlet.server.metadata.store import MetadataStore, StoreUnreachable, SwapUnclear

_LOOK_S = 0.1
_MAX_TRIES = 20


class OperationRefused(Exception):
    """The operation cannot be done, or was not done in time; the text says why, and what helps."""


class Operations:
    """The operations on one replica set.

    Args:
        timeout_s: how long replicas are waited for, in seconds.
    """

    def __init__(self, store: MetadataStore, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s

    async def look(self) -> Seen:
        """Read the document and the presences. Raises OperationRefused."""
        try:
            return await self._store.look()
        except (StoreUnreachable, BadReplicaSet) as error:
            raise OperationRefused(str(error)) from error

    async def create(
        self, names: Sequence[str], *, copies: int | None, min_in_sync: int | None
    ) -> ReplicaSet:
        """Make the replica set of running replicas, from the log of the first one.

        Args:
            copies: how many must have a message; a majority where it is None.
            min_in_sync: messages are refused while fewer are in sync; `copies` where it is None.

        Raises OperationRefused.
        """
        seen = await self._present(names)
        if seen.replica_set is not None:
            raise OperationRefused(_there_is(seen.replica_set))
        first, others = seen.presences[names[0]], names[1:]
        for name in names:
            if seen.presences[name].epoch:
                raise OperationRefused(
                    f"{name} has been in a replica set, up to epoch {seen.presences[name].epoch}:"
                    " bring that back with `martlet replicas recreate`"
                )
        for name in others:
            if seen.presences[name].broker not in ("", first.broker):
                raise OperationRefused(
                    f"the data folder of {name} is that of another broker: name {name} first if"
                    " its messages are those that count, or give it an empty --data-path"
                )
            if seen.presences[name].end_position:
                raise OperationRefused(
                    f"the data folder of {name} has messages, which the log of {names[0]} would"
                    f" replace: name {name} first, or give it an empty --data-path"
                )
        wanted = self._made(
            lambda: ReplicaSet.first(
                names[0],
                {name: seen.presences[name].address for name in names},
                broker=first.broker or uuid.uuid4().hex,
                epoch=first.log_epoch,
                wanted_copies=copies,
                min_in_sync=min_in_sync,
            ).named({name: seen.presences[name] for name in names})
        )
        return await self._change(lambda seen: _made_once(seen.replica_set, wanted))

    async def add(self, name: str) -> ReplicaSet:
        """Add a running replica, which copies the log; or keep one whose removal was begun and not
        finished. Raises OperationRefused.
        """
        presence = (await self._present([name])).presences[name]

        def added(seen: Seen) -> ReplicaSet:
            found = self._require(seen)
            if name in found.replicas:
                if name in found.leaving:
                    return replace(found, leaving=found.leaving - {name})
                raise OperationRefused(f"{name} is a replica already")
            if presence.broker not in ("", found.broker):
                raise OperationRefused(
                    f"the data folder of {name} is that of another broker: give it an empty"
                    " --data-path"
                )
            more = found.with_replica(name, presence.address).named({name: presence})
            return _resized(found, more)

        return await self._change(added)

    async def remove(self, name: str) -> ReplicaSet:
        """Take a replica out of the set. Raises OperationRefused."""

        def asked(seen: Seen) -> ReplicaSet:
            found = self._require(seen)
            _require_member(found, name)
            if found.primary == name:
                raise OperationRefused(
                    f"{name} is the primary: first make another one it, with `martlet replicas"
                    " hand-over`"
                )
            return found.asked_to_remove(name)

        def removed(seen: Seen) -> ReplicaSet:
            found = self._require(seen)
            if name in found.in_sync or name == found.primary:
                raise OperationRefused(f"{name} came into sync again")
            return _resized(found, found.without_replica(name))

        await self._change(asked)
        try:
            await self._until(
                lambda seen: name not in self._require(seen).in_sync,
                f"the primary did not take {name} out of sync: it must run, and have enough others"
                " in sync, see `martlet replicas show` and `martlet replicas set --min-in-sync`",
            )
        except OperationRefused:
            await self._change(
                lambda seen: replace(
                    self._require(seen), leaving=self._require(seen).leaving - {name}
                )
            )
            raise
        return await self._change(removed)

    async def hand_over(self, name: str = "") -> ReplicaSet:
        """Make another replica the primary: a named one, or the one with the most of the log.

        Raises OperationRefused.
        """
        chosen = name

        def asked(seen: Seen) -> ReplicaSet:
            nonlocal chosen
            found = self._require(seen)
            chosen = name or _successor(found, seen.presences)
            _require_member(found, chosen)
            if found.primary == chosen:
                raise OperationRefused(f"{chosen} is the primary already")
            if chosen not in found.in_sync:
                why = "lacks messages" if chosen in seen.presences else "is not running"
                raise OperationRefused(
                    f"{chosen} is not in sync, and {why}: wait until `martlet replicas show` says"
                    " that it is"
                )
            return found.asked_to_hand_over(chosen)

        before = await self._change(asked)

        def is_over(seen: Seen) -> bool:
            found = self._require(seen)
            return found.epoch > before.epoch or found.hand_over_to is None

        try:
            seen = await self._until(
                is_over,
                f"{before.primary}, the primary, did not answer; if it is dead, another replica"
                " becomes primary by itself",
            )
        except OperationRefused:
            await self._change(lambda seen: self._require(seen).asked_to_hand_over(None))
            raise
        found = self._require(seen)
        if found.primary != chosen:
            raise OperationRefused(
                f"{found.primary} is the primary: {chosen} was not ready, see `martlet replicas"
                " show`"
            )
        await self._until(
            lambda seen: chosen in seen.presences and seen.presences[chosen].role == "primary",
            f"{chosen} has not begun: look at its log",
        )
        return found

    async def force(self, name: str) -> ReplicaSet:
        """Make a replica the primary, whatever its log lacks. Raises OperationRefused."""
        _require_member(self._require(await self.look()), name)
        presence = (await self._present([name])).presences[name]
        if not presence.epoch:
            raise OperationRefused(f"{name} has an empty data folder: force another replica")

        def forced(seen: Seen) -> ReplicaSet:
            found = self._require(seen)
            _require_member(found, name)
            primary = seen.presences.get(found.primary or "")
            if found.primary != name and primary is not None and primary.role == "primary":
                raise OperationRefused(
                    f"{found.primary} is the primary, and alive: use `martlet replicas hand-over"
                    f" {name}`, which loses nothing"
                )
            return found.forced(name).named({name: presence})

        return await self._change(forced)

    async def recreate(self, names: Sequence[str], *, min_in_sync: int | None) -> ReplicaSet:
        """Make the document anew which the metadata store has lost, or has an old state of. The
        log of the replica that has most counts. Where that was begun, and there is no primary yet,
        it goes on. Raises OperationRefused.
        """
        seen = await self._present(names)
        epochs = {name: seen.presences[name].epoch for name in names}
        found = seen.replica_set
        if found is not None and found.epoch >= max(epochs.values()):
            return _begun(found, seen.presences, names)
        brokers = {seen.presences[name].broker for name in names}
        if len(brokers) > 1 or not max(epochs.values()):
            raise OperationRefused(
                "these replicas have not been in one replica set: see the --data-path of each"
            )
        wanted = self._made(
            lambda: ReplicaSet.recreated(
                {name: seen.presences[name].address for name in names},
                broker=brokers.pop(),
                epoch=max(epochs.values()),
                min_in_sync=min_in_sync,
            ).named({name: seen.presences[name] for name in names})
        )
        return await self._change(lambda seen: _made_once(seen.replica_set, wanted, wanted.epoch))

    async def until_primary(self, made: ReplicaSet) -> None:
        """Wait until a set that was made anew has a primary: all of its replicas must answer first.

        Raises OperationRefused: there is none in time; the text names the replicas that are not
        running.
        """
        absent: list[str] = []

        async def wait() -> Seen:
            while True:
                seen = await self.look()
                absent[:] = sorted(made.replicas.keys() - seen.presences.keys())
                found = self._require(seen)
                primary = seen.presences.get(found.primary or "")
                if primary is not None and primary.role == "primary":
                    return seen
                await asyncio.sleep(_LOOK_S)  # The store does not notify of changes.

        await self._in_time(
            wait(),
            lambda: (
                "the replica set is made anew, but it has no primary: all of"
                f" {', '.join(sorted(made.replicas))} must answer before one is elected, and"
                + (
                    f" {_are(absent)} not running: start each again, or, if one cannot run, make"
                    " another one the primary with `martlet replicas force NAME --accept-loss`"
                    if absent
                    else " all are running: see `martlet replicas show` for what hinders them"
                )
            ),
        )

    async def set(self, *, copies: int | None, min_in_sync: int | None) -> ReplicaSet:
        """Change how many replicas must have a message, or be in sync. Raises OperationRefused."""

        def changed(seen: Seen) -> ReplicaSet:
            found = self._require(seen)
            wanted = found.wanted_copies if copies is None else copies
            least = found.min_in_sync if min_in_sync is None else min_in_sync
            return replace(found, wanted_copies=wanted, min_in_sync=least)

        return await self._change(changed)

    # the document

    @staticmethod
    def _require(seen: Seen) -> ReplicaSet:
        if seen.replica_set is None:
            raise OperationRefused(no_replica_set(seen.presences))
        return seen.replica_set

    @staticmethod
    def _made(make: Callable[[], ReplicaSet]) -> ReplicaSet:
        try:
            return make()
        except BadReplicaSet as error:
            raise OperationRefused(str(error)) from error

    async def _change(self, edit: Callable[[Seen], ReplicaSet]) -> ReplicaSet:
        """Swap the document for an edited one; if another change comes first, edit that."""
        problem = "it changes all the time"
        for _ in range(_MAX_TRIES):
            seen = await self.look()
            wanted = self._made(lambda seen=seen: edit(seen))  # type: ignore[misc]
            if wanted == seen.replica_set:
                return wanted
            try:
                if await self._store.swap(wanted, seen.version):
                    return wanted
            except SwapUnclear as error:
                problem = str(error)
        raise OperationRefused(f"the replica set could not be changed: {problem}")

    async def _until(self, is_there: Callable[[Seen], bool], problem: str) -> Seen:
        """Look until something has happened. Raises OperationRefused with the problem."""

        async def wait() -> Seen:
            while True:
                seen = await self.look()
                if is_there(seen):
                    return seen
                await asyncio.sleep(_LOOK_S)  # The store does not notify of changes.

        return await self._in_time(wait(), lambda: problem)

    async def _present(self, names: Sequence[str]) -> Seen:
        """Look until all of some replicas are running."""
        missing = list(names)

        async def wait() -> Seen:
            while True:
                seen = await self.look()
                missing[:] = [name for name in names if name not in seen.presences]
                if not missing:
                    return seen
                await asyncio.sleep(_LOOK_S)

        return await self._in_time(
            wait(),
            lambda: (
                f"{_are(missing)} not running in this replica set: start each with `martlet broker"
                f" --replica-name={missing[0]} --replica-address=HOST:4153 --metadata=..."
                " --replica-set=...`, as the others"
            ),
        )

    async def _in_time(self, work: Awaitable[Seen], problem: Callable[[], str]) -> Seen:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work
        except TimeoutError:
            raise OperationRefused(f"{problem()} (waited {self._timeout_s:g} s)") from None


def _require_member(found: ReplicaSet, name: str) -> None:
    if name not in found.replicas:
        raise OperationRefused(
            f"{name} is no member of the replica set: its members are"
            f" {', '.join(sorted(found.replicas))}"
        )


def _there_is(found: ReplicaSet) -> str:
    return f"there is a replica set already, of {', '.join(sorted(found.replicas))}"


def _made_once(found: ReplicaSet | None, wanted: ReplicaSet, epoch: int = 0) -> ReplicaSet:
    """Return the set to write in place of none, or of one before an epoch. Where the answer of a
    swap was lost, replicas may have gone on from what it wrote. Raises OperationRefused.
    """
    if found is None or found.epoch < epoch:
        return wanted
    if (found.broker, found.replicas) != (wanted.broker, wanted.replicas):
        raise OperationRefused(_there_is(found))
    return found


def _begun(
    found: ReplicaSet, presences: Mapping[str, Presence], names: Sequence[str]
) -> ReplicaSet:
    """Return a set that is to have a primary, as it was made anew. Raises OperationRefused."""
    primary = presences.get(found.primary or "")
    if primary is not None and primary.role == "primary":
        raise OperationRefused(
            f"the replica set is there, at epoch {found.epoch}: see `martlet replicas show`"
        )
    if found.replicas.keys() != set(names):
        raise OperationRefused(
            f"{_there_is(found)}, and it has no primary: start them all, or, if one cannot run,"
            " make another one the primary with `martlet replicas force NAME --accept-loss`"
        )
    return found


def _resized(before: ReplicaSet, after: ReplicaSet) -> ReplicaSet:
    """Keep to a majority of copies, where that was so before."""
    majority = len(before.replicas) // 2 + 1
    if before.wanted_copies != majority:
        return after
    wanted = len(after.replicas) // 2 + 1
    least = wanted if before.min_in_sync == majority else after.min_in_sync
    # The primary makes as many copies as are wanted.
    return replace(after, wanted_copies=wanted, min_in_sync=least)


def _successor(found: ReplicaSet, presences: Mapping[str, Presence]) -> str:
    ready = [
        name
        for name in found.in_sync
        if name != found.primary and name in presences and presences[name].is_whole
    ]
    if not ready:
        raise OperationRefused("no other replica is in sync: see `martlet replicas show`")
    return max(ready, key=lambda name: (presences[name].end_position, name))


def _are(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
