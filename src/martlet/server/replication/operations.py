"""Operations on a replica set: each a change of its document in the metadata store.

The primary reads the change within a second, and does what it asks for.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from martlet.replica.replica_set import (
    BadReplicaSet,
    Presence,
    ReplicaSet,
    Seen,
    no_replica_set,
)
from martlet.server.metadata.store import MetadataStore, StoreUnreachable, SwapUnclear

_POLL_S = 0.1
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

    async def read(self) -> Seen:
        """Read the document and the presences. Raises OperationRefused."""
        try:
            return await self._store.read()
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
        document = self._made(
            lambda: ReplicaSet.first(
                names[0],
                {name: seen.presences[name].address for name in names},
                broker=first.broker or uuid.uuid4().hex,
                epoch=first.log_epoch,
                wanted_copies=copies,
                min_in_sync=min_in_sync,
            ).named({name: seen.presences[name] for name in names})
        )
        return await self._change(lambda seen: _made_once(seen.replica_set, document))

    async def add(self, name: str) -> ReplicaSet:
        """Add a running replica, which copies the log; or keep one whose removal was begun and not
        finished. Raises OperationRefused.
        """
        presence = (await self._present([name])).presences[name]

        def added(seen: Seen) -> ReplicaSet:
            replica_set = self._require(seen)
            if name in replica_set.replicas:
                if name in replica_set.leaving:
                    return replace(replica_set, leaving=replica_set.leaving - {name})
                raise OperationRefused(f"{name} is a replica already")
            if presence.broker not in ("", replica_set.broker):
                raise OperationRefused(
                    f"the data folder of {name} is that of another broker: give it an empty"
                    " --data-path"
                )
            more = replica_set.with_replica(name, presence.address).named({name: presence})
            return _resized(replica_set, more)

        return await self._change(added)

    async def remove(self, name: str) -> ReplicaSet:
        """Take a replica out of the set. Raises OperationRefused."""

        def marked(seen: Seen) -> ReplicaSet:
            replica_set = self._require(seen)
            _require_member(replica_set, name)
            if replica_set.primary == name:
                raise OperationRefused(
                    f"{name} is the primary: first make another one it, with `martlet replicas"
                    " hand-over`"
                )
            return replica_set.with_leaving(name)

        def removed(seen: Seen) -> ReplicaSet:
            replica_set = self._require(seen)
            if name in replica_set.in_sync or name == replica_set.primary:
                raise OperationRefused(f"{name} came into sync again")
            return _resized(replica_set, replica_set.without_replica(name))

        await self._change(marked)
        try:
            await self._until(
                lambda seen: name not in self._require(seen).in_sync,
                lambda: (
                    f"the primary did not take {name} out of sync: it must run, and have enough"
                    " others in sync, see `martlet replicas show` and `martlet replicas set"
                    " --min-in-sync`"
                ),
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
        """Make another replica the primary: a named one, or the best. Raises OperationRefused."""
        chosen = name

        def ordered(seen: Seen) -> ReplicaSet:
            nonlocal chosen
            document = self._require(seen)
            chosen = name or _successor(document, seen.presences)
            _require_member(document, chosen)
            if document.primary == chosen:
                raise OperationRefused(f"{chosen} is the primary already")
            if chosen not in document.in_sync:
                why = "lacks messages" if chosen in seen.presences else "is not running"
                raise OperationRefused(
                    f"{chosen} is not in sync, and {why}: wait until `martlet replicas show` says"
                    " that it is"
                )
            return document.with_hand_over(chosen)

        before = await self._change(ordered)

        def is_over(seen: Seen) -> bool:
            document = self._require(seen)
            return document.epoch > before.epoch or document.hand_over_to is None

        try:
            seen = await self._until(
                is_over,
                lambda: (
                    f"{before.primary}, the primary, did not answer; if it is dead, another replica"
                    " becomes primary by itself"
                ),
            )
        except OperationRefused:
            await self._change(lambda seen: self._require(seen).with_hand_over(None))
            raise
        document = self._require(seen)
        if document.primary != chosen:
            raise OperationRefused(
                f"{document.primary} is the primary: {chosen} was not ready, see `martlet replicas"
                " show`"
            )
        await self._until(
            lambda seen: chosen in seen.presences and seen.presences[chosen].role == "primary",
            lambda: f"{chosen} has not begun: look at its log",
        )
        return document

    async def force(self, name: str) -> ReplicaSet:
        """Make a replica the primary, whatever its log lacks. Raises OperationRefused."""
        _require_member(self._require(await self.read()), name)
        presence = (await self._present([name])).presences[name]
        if not presence.epoch:
            raise OperationRefused(f"{name} has an empty data folder: force another replica")

        def forced(seen: Seen) -> ReplicaSet:
            document = self._require(seen)
            _require_member(document, name)
            primary = seen.presences.get(document.primary or "")
            if document.primary != name and primary is not None and primary.role == "primary":
                raise OperationRefused(
                    f"{document.primary} is the primary, and alive: use `martlet replicas hand-over"
                    f" {name}`, which loses nothing"
                )
            return document.forced(name).named({name: presence})

        return await self._change(forced)

    async def recreate(self, names: Sequence[str], *, min_in_sync: int | None) -> ReplicaSet:
        """Recreate the replica set after the metadata store lost it or was restored from a backup.
        The replica with the longest log becomes primary. Resumes an interrupted recreate.

        Raises OperationRefused.
        """
        seen = await self._present(names)
        epochs = {name: seen.presences[name].epoch for name in names}
        replica_set = seen.replica_set
        if replica_set is not None and replica_set.epoch >= max(epochs.values()):
            return _begun(replica_set, seen.presences, names)
        brokers = {seen.presences[name].broker for name in names}
        if len(brokers) > 1 or not max(epochs.values()):
            raise OperationRefused(
                "these replicas have not been in one replica set: see the --data-path of each"
            )
        document = self._made(
            lambda: ReplicaSet.recreated(
                {name: seen.presences[name].address for name in names},
                broker=brokers.pop(),
                epoch=max(epochs.values()),
                min_in_sync=min_in_sync,
            ).named({name: seen.presences[name] for name in names})
        )
        return await self._change(
            lambda seen: _made_once(seen.replica_set, document, document.epoch)
        )

    async def until_primary(self, made: ReplicaSet) -> None:
        """Wait until a recreated set has a primary: all of its replicas must answer first.

        Raises OperationRefused: there is none in time; the text names the replicas that are not
        running.
        """
        absent: list[str] = []

        def has_primary(seen: Seen) -> bool:
            absent[:] = sorted(made.replicas.keys() - seen.presences.keys())
            return _has_primary(self._require(seen), seen.presences)

        await self._until(
            has_primary,
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
            replica_set = self._require(seen)
            copy_count = replica_set.wanted_copies if copies is None else copies
            min_count = replica_set.min_in_sync if min_in_sync is None else min_in_sync
            return replace(replica_set, wanted_copies=copy_count, min_in_sync=min_count)

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
            seen = await self.read()
            edited = self._made(lambda seen=seen: edit(seen))  # type: ignore[misc]
            if edited == seen.replica_set:
                return edited
            try:
                if await self._store.swap(edited, seen.version):
                    return edited
            except SwapUnclear as error:
                problem = str(error)
        raise OperationRefused(f"the replica set could not be changed: {problem}")

    async def _until(self, is_there: Callable[[Seen], bool], problem: Callable[[], str]) -> Seen:
        """Read the store until something has happened.

        Raises OperationRefused, with the problem as of the last answer: it did not happen in time.
        """
        has_answered = is_waiting = False
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    is_waiting = True
                    seen = await self.read()
                    has_answered, is_waiting = True, False
                    if is_there(seen):
                        return seen
                    await asyncio.sleep(_POLL_S)  # The store does not notify of changes.
        except TimeoutError:
            waited = f"waited {self._timeout_s:g} s"
            if not has_answered:
                raise OperationRefused(
                    f"the metadata store has not answered, so nothing is known of the replicas: see"
                    f" that it runs, and try again ({waited})"
                ) from None
            silent = "; the metadata store does not answer now" if is_waiting else ""
            raise OperationRefused(f"{problem()} ({waited}{silent})") from None

    async def _present(self, names: Sequence[str]) -> Seen:
        """Wait until replicas are running. Raises OperationRefused."""
        missing = list(names)

        def are_present(seen: Seen) -> bool:
            missing[:] = [name for name in names if name not in seen.presences]
            return not missing

        return await self._until(
            are_present,
            lambda: (
                f"{_are(missing)} not running in this replica set: start each with `martlet broker"
                f" --replica-name={missing[0]} --replica-address=HOST:4153 --metadata=..."
                " --replica-set=...`, as the others"
            ),
        )


def _require_member(replica_set: ReplicaSet, name: str) -> None:
    if name not in replica_set.replicas:
        raise OperationRefused(
            f"{name} is no member of the replica set: its members are"
            f" {', '.join(sorted(replica_set.replicas))}"
        )


def _there_is(replica_set: ReplicaSet) -> str:
    return f"there is a replica set already, of {', '.join(sorted(replica_set.replicas))}"


def _made_once(current: ReplicaSet | None, document: ReplicaSet, epoch: int = 0) -> ReplicaSet:
    """Return the document to write where there is none, or one before an epoch. Else return the
    current one, which an earlier try may have written before its answer was lost.

    Raises OperationRefused: it is of other replicas.
    """
    if current is None or current.epoch < epoch:
        return document
    if (current.broker, current.replicas) != (document.broker, document.replicas):
        raise OperationRefused(_there_is(current))
    return current


def _has_primary(replica_set: ReplicaSet, presences: Mapping[str, Presence]) -> bool:
    primary = presences.get(replica_set.primary or "")
    return primary is not None and primary.role == "primary"


def _begun(
    document: ReplicaSet, presences: Mapping[str, Presence], names: Sequence[str]
) -> ReplicaSet:
    """Return a recreated set that has no primary yet. Raises OperationRefused."""
    if _has_primary(document, presences):
        raise OperationRefused(
            f"the replica set is there, at epoch {document.epoch}: see `martlet replicas show`"
        )
    if document.replicas.keys() != set(names):
        raise OperationRefused(
            f"{_there_is(document)}, and it has no primary: start them all, or, if one cannot run,"
            " make another one the primary with `martlet replicas force NAME --accept-loss`"
        )
    return document


def _resized(before: ReplicaSet, after: ReplicaSet) -> ReplicaSet:
    """Keep to a majority of copies if it was one before."""
    majority = len(before.replicas) // 2 + 1
    if before.wanted_copies != majority:
        return after
    copies = len(after.replicas) // 2 + 1
    min_in_sync = copies if before.min_in_sync == majority else after.min_in_sync
    # The primary makes as many copies as are wanted.
    return replace(after, wanted_copies=copies, min_in_sync=min_in_sync)


def _successor(replica_set: ReplicaSet, presences: Mapping[str, Presence]) -> str:
    ready = [
        name
        for name in replica_set.in_sync
        if name != replica_set.primary and name in presences and presences[name].is_whole
    ]
    if not ready:
        raise OperationRefused("no other replica is in sync: see `martlet replicas show`")
    return max(ready, key=lambda name: (presences[name].end_position, name))


def _are(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
