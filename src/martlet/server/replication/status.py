"""The state of a replica, at ``/replica``, in ``/stats`` and in ``/metrics``.

::

    GET /replica          role, epoch, replicas in sync, lag, confirmed position, last failover
    GET /replica/primary  200 at the primary, 503 elsewhere: for load balancers
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from martlet.log.storage import Storage
from martlet.replica.primary import Primary
from martlet.replica.replica_set import Seen
from martlet.replica.standby import Standby, StandbyState
from martlet.server.http.request import HttpError, Request, Routes
from martlet.server.observability import prometheus

if TYPE_CHECKING:
    from martlet.replica.replica import Replica
    from martlet.server.replication.node import ReplicaNode

ADDRESSES_NAME = "addresses.json"
Report = dict[str, Any]
_ROLES = ("primary", "candidate", "standby", "waiting")
_MILLISECOND_NS = 1_000_000


class ClientAddresses(NamedTuple):
    """Where clients connect to a replica; empty where they cannot."""

    tcp_address: str
    http_address: str


class AddressBook:
    """The last known addresses of replicas, kept in the data folder.

    A dead replica announces nothing. With this, readers that list the replicas learn that a silent
    address is no other broker's.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, ClientAddresses] = {}
        with suppress(ValueError, TypeError, AttributeError):
            known = json.loads(storage.read(ADDRESSES_NAME) or b"{}")
            self._known = {name: ClientAddresses(*map(str, each)) for name, each in known.items()}

    def find(self, name: str) -> ClientAddresses | None:
        """Return the addresses of a replica; None where they are not known."""
        return self._known.get(name)

    def note(self, seen: Seen) -> None:
        """Keep what the replicas of the set announce, and forget those that were removed."""
        found = seen.replica_set
        if found is None:
            return
        known = self._known | {
            name: ClientAddresses(each.tcp_address, each.http_address)
            for name, each in seen.presences.items()
            if each.tcp_address or each.http_address
        }
        known = {name: known[name] for name in sorted(known.keys() & found.replicas.keys())}
        if known != self._known:
            self._known = known
            with suppress(OSError):  # It is known until this process ends.
                self._storage.replace(ADDRESSES_NAME, json.dumps(known).encode())


class ReplicaStatus:
    """The state of a replica, to show: `martlet.server.observability.replication.Replication`."""

    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self.is_sync = node.options.replication == "sync"
        """Whether an OK waits for other replicas."""

    @property
    def lacks_replicas(self) -> bool:
        """Whether fewer replicas are in sync than an operator wants copies."""
        primary = self._node.replica.primary
        return primary is None or primary.replica_set.copies < primary.replica_set.wanted_copies

    @property
    def obstacle(self) -> str:
        """Why a replica that is not primary cannot carry clients on to one; empty if it can."""
        replica: Replica | None = getattr(self._node, "replica", None)
        if replica is None:
            return self._node.membership.waits_for
        role = replica.role
        if isinstance(role, Standby) and role.state is StandbyState.FOLLOWING:
            return ""
        return replica.problem or f"it is a {replica.role_name}, and follows no primary"

    def report(self) -> Report:
        """Return all of it, for JSON."""
        node = self._node
        replica: Replica | None = getattr(node, "replica", None)
        if replica is None:
            return {
                "replica": node.options.replica_name,
                "replica_set": node.options.replica_set,
                "role": "waiting",
                "epoch": 0,
                "replication": node.options.replication,
                "end_position": 0,
                "confirmed_position": 0,
                "is_whole": False,
                "problem": node.membership.waits_for,
                "metadata_store": self._store(),
            }
        now_ns = node.now_ns()
        presence = replica.presence(now_ns)
        seen = replica.seen
        found = seen.replica_set if seen is not None else None
        report: Report = {
            "replica": node.options.replica_name,
            "replica_set": node.options.replica_set,
            "broker_id": replica.broker,
            "role": replica.role_name,
            "epoch": presence.epoch,
            "replication": node.options.replication,
            "end_position": presence.end_position,
            "confirmed_position": presence.confirmed_position,
            "is_whole": presence.is_whole,
            "problem": replica.problem,
            "metadata_store": self._store(),
        }
        if isinstance(replica.role, Standby):
            report["lag_bytes"] = replica.role.lag_bytes
        if found is None or seen is None:
            return report
        primary = seen.presences.get(found.primary or "")
        return report | {
            "primary": found.primary,
            "in_sync": sorted(found.in_sync),
            "copies": found.copies,
            "wanted_copies": found.wanted_copies,
            "min_in_sync": found.min_in_sync,
            "last_failover": primary.began_s if primary is not None else 0,
            "replicas": {
                name: {"address": address, "is_in_sync": name in found.in_sync}
                | self._of_clients(name)
                | self._lag(replica.role, name, now_ns)
                for name, address in found.replicas.items()
            },
        }

    def _store(self) -> Report:
        """Report whether the metadata store answers: without it there is no failover."""
        membership = self._node.membership
        return {
            "is_reachable": membership.is_store_reachable,
            "silent_ms": int(membership.store_silent_s * 1000),
        }

    def http_addresses(self) -> list[str]:
        """Return the HTTP addresses of all replicas, as far as they are known; of a dead one the
        last that it had.
        """
        seen = self._node.replica.seen
        found = seen.replica_set if seen is not None else None
        names = found.replicas if found is not None else {}
        known = [each for name in names if (each := self._node.addresses.find(name))]
        return [each.http_address for each in known if each.http_address]

    def _of_clients(self, name: str) -> Report:
        """Report where clients of a replica connect, if that is known."""
        known = self._node.addresses.find(name)
        return known._asdict() if known is not None else {}

    @staticmethod
    def _lag(role: object, name: str, now_ns: int) -> Report:
        """Report how far a standby is behind, where this replica is primary."""
        if not isinstance(role, Primary) or name == role.name:
            return {}
        standby = role.standbys.get(name)
        if standby is None:
            return {"is_connected": False}
        return {
            "is_connected": True,
            "is_whole": standby.is_whole,
            "lag_bytes": max(0, role.log.position - standby.written),
            "lag_ms": role.lag_ns(name, now_ns) // _MILLISECOND_NS,
        }

    def metrics(self) -> str:
        """Return the lines for Prometheus."""
        return metrics_of(self.report())

    def routes(self) -> Routes:
        """The endpoints of each role."""
        return {
            "/replica": {"GET": self.show},
            "/replica/primary": {"GET": self.show_whether_primary},
        }

    async def show(self, request: Request) -> object:
        """Answer ``/replica``."""
        return self.report()

    async def show_whether_primary(self, request: Request) -> object:
        """Answer ``/replica/primary``."""
        if not self._node.is_serving.is_set():
            raise HttpError(503, "NOT_PRIMARY")
        return "OK"


def metrics_of(report: Report) -> str:
    """Return the lines for Prometheus of what ``/replica`` says."""
    name = "martlet_replica_role"
    labels = {"replica": report["replica"], "replica_set": report["replica_set"]}
    roles = [
        (prometheus.label_text({**labels, "role": role}), int(role == report["role"]))
        for role in _ROLES
    ]
    standbys = [
        (prometheus.label_text({"replica": name}), fields)
        for name, fields in report.get("replicas", {}).items()
        if "lag_bytes" in fields
    ]
    text = prometheus.head(name, "gauge", "1 for the role that this replica has.")
    text += prometheus.values(name, roles)
    text += prometheus.lone(_lone(report))
    for metric, help_text, read in (
        ("martlet_replica_lag_bytes", "Bytes of the log that a standby lacks.", _lag_bytes),
        ("martlet_replica_lag_seconds", "How old what a standby lacks is.", _lag_s),
    ):
        text += prometheus.head(metric, "gauge", help_text)
        text += prometheus.values(metric, [(at, read(fields)) for at, fields in standbys])
    return text


def _lag_bytes(fields: Report) -> float:
    return int(fields["lag_bytes"])


def _lag_s(fields: Report) -> float:
    return int(fields["lag_ms"]) / 1000


def _lone(report: Report) -> list[tuple[str, str, str, float]]:
    """Return the metrics that have no labels."""
    return [
        (
            "martlet_replica_epoch",
            "counter",
            "The epoch, which rises with each new primary.",
            report["epoch"],
        ),
        (
            "martlet_replica_in_sync",
            "gauge",
            "Replicas in sync, the primary included.",
            len(report.get("in_sync", ())),
        ),
        (
            "martlet_replica_set_replicas",
            "gauge",
            "Replicas of the replica set, those out of sync included.",
            len(report.get("replicas", ())),
        ),
        (
            "martlet_replica_wanted_copies",
            "gauge",
            "The number of replicas that are to have each message.",
            report.get("wanted_copies", 0),
        ),
        (
            "martlet_replica_end_position_bytes",
            "gauge",
            "The position at which this replica's log ends.",
            report["end_position"],
        ),
        (
            "martlet_replica_confirmed_position_bytes",
            "gauge",
            "The position up to which enough replicas have the log.",
            report["confirmed_position"],
        ),
        (
            "martlet_replica_whole",
            "gauge",
            "1 while this replica has all that it ever acknowledged.",
            int(report["is_whole"]),
        ),
        (
            "martlet_replica_last_failover_timestamp_seconds",
            "gauge",
            "When the epoch began, in seconds since 1970.",
            report.get("last_failover", 0),
        ),
        (
            "martlet_replica_metadata_store_reachable",
            "gauge",
            "1 while the metadata store answers; without it there is no failover.",
            int(report["metadata_store"]["is_reachable"]),
        ),
        (
            "martlet_replica_metadata_store_silent_seconds",
            "gauge",
            "The time since the metadata store answered.",
            report["metadata_store"]["silent_ms"] / 1000,
        ),
    ]
