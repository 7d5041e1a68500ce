"""A replica's membership in its set: it waits for one, announces itself, and reads the store.

::

    alone?  --> broker's id --> polls and presences, from then on
    no other    from the set,   the document is made where an operator wants that
    process     or a new one
    has its name
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

from martlet.options import BrokerOptions
from martlet.replica.primary import Primary
from martlet.replica.replica import Replica
from martlet.replica.replica_set import (
    BadReplicaSet,
    Presence,
    ReplicaSet,
    Seen,
    no_replica_set,
)
from martlet.server.metadata.store import MetadataStore, StoreUnreachable, SwapUnclear
from martlet.server.replication.repeated_lines import RepeatedLines
from martlet.unreachable import Outage

_POLL_S = 0.5
"""How often a replica that waits for its replica set reads the store, in seconds."""


class _StoreUse:
    """Whether the metadata store can be read, or written to, and since when it was."""

    def __init__(self, doing: str, log: logging.Logger) -> None:
        self.answered_s = time.monotonic()
        """When the store answered last, or this replica began."""
        self.outage = Outage(
            f"REPLICA: cannot {doing} the metadata store",
            f"REPLICA: can {doing} the metadata store again",
            log=log,
            level=logging.ERROR,
        )

    def answered(self) -> None:
        """The store answered."""
        self.answered_s = time.monotonic()
        self.outage.over()


class SetMembership:
    """A replica's dealings with the metadata store.

    Args:
        instance: a random name of this process.
        ended: done when the replica is to stop; it ends all waiting.
    """

    def __init__(
        self,
        options: BrokerOptions,
        store: MetadataStore,
        instance: str,
        ended: asyncio.Future[None],
        log: logging.Logger,
    ) -> None:
        self.waits_for = "it reads its log"
        """Why there is no replica yet."""
        self._options = options
        self._name = options.replica_name
        self._store = store
        self._instance = instance
        self._ended = ended
        self._log = log
        self._said_log = RepeatedLines.above(log)
        self._said = ""
        self._has_warned = False
        # An etcd without space still answers who reads.
        self._reads = _StoreUse("read", log)
        self._writes = _StoreUse("write to", log)

    @property
    def is_store_reachable(self) -> bool:
        """Whether the metadata store could be read and written to the last time."""
        return not self._reads.outage.is_on and not self._writes.outage.is_on

    @property
    def store_silent_s(self) -> float:
        """The seconds since the metadata store could be read and written to."""
        return time.monotonic() - min(self._reads.answered_s, self._writes.answered_s)

    def say(self, said: str) -> bool:
        """Log what the replica is or waits for, if that is new. Returns whether it is."""
        if said == self._said:
            return False
        self._said = said
        # A replica that tries something again and again is now this, now that.
        self._said_log.info("REPLICA: %s is %s", self._name, said)
        return True

    # before there is a replica

    async def until_alone(self) -> None:
        """Wait while another process is this replica: both would acknowledge for one."""
        while not self._ended.done():
            try:
                other = (await self._store.read()).presences.get(self._name)
            except (StoreUnreachable, BadReplicaSet):
                return  # It goes on without the store, as it did before.
            address = self._options.replica_address
            if (
                other is None
                or other.instance == self._instance
                # On one machine two cannot listen there: it was this one, before it was killed.
                or other.address == address
            ):
                return
            self.waits_for = (
                f"another process is replica {self._name}, at {other.address}: stop it, or give"
                " this one another --replica-name"
            )
            self.say(f"waiting: {self.waits_for}")
            await asyncio.wait([self._ended], timeout=_POLL_S)

    async def find_broker_id(self) -> str:
        """Wait until the broker of a new data folder is known; return its id, empty at the stop."""
        initial = next(iter(self._options.initial_addresses), "")
        waiting = ""
        while not self._ended.done():
            try:
                seen = await self._store.read()
                replica_set = seen.replica_set
                presence = self._completed(Presence(is_whole=False, role="waiting"), {})
                waiting = (
                    no_replica_set({**seen.presences, self._name: presence})
                    if replica_set is None
                    else f"the replica set does not have this replica: add it with `martlet"
                    f" replicas add {self._name}`"
                )
                if replica_set is not None and self._name in replica_set.replicas:
                    return replica_set.broker
                if replica_set is None and initial == self._name:
                    return uuid.uuid4().hex
                self._warn_of_flags(replica_set)
                self._reads.answered()
            except (StoreUnreachable, BadReplicaSet) as error:
                self.waits_for = str(error)
                self._reads.outage.failed(str(error))
            else:
                await self._announce(replace(presence, problem=waiting))
            if waiting:
                self.waits_for = waiting
                self.say(f"waiting: {waiting}")
            # The store does not notify of changes.
            await asyncio.wait([self._ended], timeout=_POLL_S)
        return ""

    # the document

    async def poll(self, replica: Replica) -> Seen | None:
        """Read and keep the document and the presences. Returns None where that failed."""
        try:
            seen = await self._store.read()
            if await self._keep_document(replica, seen):
                seen = await self._store.read()
        except (StoreUnreachable, BadReplicaSet) as error:
            self._reads.outage.failed(str(error))
            return None
        self._reads.answered()
        self._warn_of_flags(seen.replica_set)
        return seen

    def _warn_of_flags(self, replica_set: ReplicaSet | None) -> None:
        """Warn once of flags without effect: they are for a set that is made."""
        options = self._options
        if self._has_warned or (replica_set is None and options.initial_replicas):
            return
        self._has_warned = True
        for flag, value, made in (
            ("copies", options.copies, replica_set and replica_set.wanted_copies),
            ("min-in-sync", options.min_in_sync, replica_set and replica_set.min_in_sync),
        ):
            if not value or value == made:
                continue
            self._log.warning(
                "REPLICA: --%s=%d has no effect %s",
                flag,
                value,
                f"on a replica set that is there, with {made}: change it with `martlet replicas set"
                f" --{flag}={value}`"
                if replica_set is not None
                else "without --initial-replicas: give it to `martlet replicas create`",
            )

    async def _keep_document(self, replica: Replica, seen: Seen) -> bool:
        """Make the document where there is none. Returns whether it may have changed by that."""
        try:
            return seen.replica_set is None and await self._create(replica)
        except SwapUnclear as error:
            self._writes.outage.failed(str(error))  # The next poll tries again.
            return False

    async def _create(self, replica: Replica) -> bool:
        """Make the set from this replica's log if an operator wants it. Raises SwapUnclear."""
        options = self._options
        addresses = options.initial_addresses
        if next(iter(addresses), "") != self._name or replica.note.pledged:
            return False
        assert not isinstance(replica.role, Primary)
        first = ReplicaSet.first(
            self._name,
            addresses,
            broker=replica.broker,
            epoch=replica.role.copy.epochs.last,
            wanted_copies=options.copies or None,
            min_in_sync=options.min_in_sync or (1 if options.replication == "async" else None),
        )
        if await self._store.swap(first, 0):
            self._log.info("REPLICA: made the replica set of %s", options.initial_replicas)
        return True

    # the presence

    async def announce(self, replica: Replica, now_ns: int, began_s: int) -> None:
        """Renew the presence of a replica.

        Args:
            began_s: when its epoch began, in seconds since 1970; 0 where it serves no clients.
        """
        options = self._options
        host, tcp, http = (
            options.broadcast_address,
            options.broadcast_tcp_port,
            options.broadcast_http_port,
        )
        host = f"[{host}]" if ":" in host else host
        others = replica.seen.presences if replica.seen is not None else {}
        presence = replace(
            self._completed(replica.presence(now_ns), others),
            tcp_address=f"{host}:{tcp}" if tcp else "",
            http_address=f"{host}:{http}" if http else "",
            began_s=began_s,
        )
        # The name is that of another process: its presence stays.
        name = f"{self._name}~{self._instance[:8]}" if replica.is_replaced else self._name
        await self._announce(presence, name)

    async def _announce(self, presence: Presence, name: str = "") -> None:
        try:
            await self._store.announce(name or self._name, presence)
        except StoreUnreachable as error:
            self._writes.outage.failed(str(error))
        else:
            self._writes.answered()

    def _completed(self, presence: Presence, others: Mapping[str, Presence]) -> Presence:
        """Add what does not depend on the replica's role."""
        options = self._options
        modes = f"--flush={options.flush} --replication={options.replication}"
        problem = presence.problem
        for name, other in others.items():
            if not problem and other.modes not in ("", modes):
                problem = f"it runs with {modes}, and {name} with {other.modes}"
        initial = "=".join(next(iter(options.initial_addresses.items()), ()))
        return replace(
            presence,
            address=options.replica_address,
            instance=self._instance,
            modes=modes,
            problem=problem,
            initial_primary=initial,
        )
