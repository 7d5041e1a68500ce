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
        self._addresses: dict[str, ClientAddresses] = {}
        with suppress(ValueError, TypeError, AttributeError):
            stored = json.loads(storage.read(ADDRESSES_NAME) or b"{}")
            self._addresses = {
                name: ClientAddresses(*map(str, fields)) for name, fields in stored.items()
            }

    def find(self, name: str) -> ClientAddresses | None:
        """Return the addresses of a replica; None where they are not known."""
        return self._addresses.get(name)

    def note(self, seen: Seen) -> None:
        """Keep what the replicas of the set announce, and forget those that were removed."""
        replica_set = seen.replica_set
        if replica_set is None:
            return
        addresses = self._addresses | {
            name: ClientAddresses(presence.tcp_address, presence.http_address)
            for name, presence in seen.presences.items()
            if presence.tcp_address or presence.http_address
        }
        addresses = {
            name: addresses[name] for name in sorted(addresses.keys() & replica_set.replicas.keys())
        }
        if addresses != self._addresses:
            self._addresses = addresses
            with suppress(OSError):  # It is known until this process ends.
                self._storage.replace(ADDRESSES_NAME, json.dumps(addresses).encode())


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
        replica_set = seen.replica_set if seen is not None else None
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
        if replica_set is None or seen is None:
            return report
        primary = seen.presences.get(replica_set.primary or "")
        return report | {
            "primary": replica_set.primary,
            "in_sync": sorted(replica_set.in_sync),
            "copies": replica_set.copies,
            "wanted_copies": replica_set.wanted_copies,
            "min_in_sync": replica_set.min_in_sync,
            "last_failover": primary.began_s if primary is not None else 0,
            "replicas": {
                name: {"address": address, "is_in_sync": name in replica_set.in_sync}
                | self._of_clients(name)
                | self._lag(replica.role, name, now_ns)
                for name, address in replica_set.replicas.items()
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
        """Return the last known HTTP addresses of the replicas, also of dead ones."""
        seen = self._node.replica.seen
        replica_set = seen.replica_set if seen is not None else None
        names = replica_set.replicas if replica_set is not None else {}
        addresses = [address for name in names if (address := self._node.addresses.find(name))]
        return [address.http_address for address in addresses if address.http_address]

    def _of_clients(self, name: str) -> Report:
        addresses = self._node.addresses.find(name)
        return addresses._asdict() if addresses is not None else {}

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
        """Return the endpoints of every role."""
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
    text += prometheus.lone(
        (f"martlet_replica_{metric}", "counter" if metric == "epoch" else "gauge", help_text, value)
        for metric, help_text, value in _lone(report)
    )
    for metric, help_text, field, scale in (
        ("martlet_replica_lag_bytes", "Bytes of the log that a standby lacks.", "lag_bytes", 1),
        ("martlet_replica_lag_seconds", "How old what a standby lacks is.", "lag_ms", 1000),
    ):
        text += prometheus.head(metric, "gauge", help_text)
        text += prometheus.values(metric, [(at, int(row[field]) / scale) for at, row in standbys])
    return text


def _lone(report: Report) -> list[tuple[str, str, float]]:
    """Return the metrics without labels: name, help and value."""
    store = report["metadata_store"]
    return [
        ("epoch", "The epoch, which rises with each new primary.", report["epoch"]),
        ("in_sync", "Replicas in sync, the primary included.", len(report.get("in_sync", ()))),
        (
            "set_replicas",
            "Replicas of the replica set, those out of sync included.",
            len(report.get("replicas", ())),
        ),
        (
            "wanted_copies",
            "The number of replicas that are to have each message.",
            report.get("wanted_copies", 0),
        ),
        (
            "end_position_bytes",
            "The position at which this replica's log ends.",
            report["end_position"],
        ),
        (
            "confirmed_position_bytes",
            "The position up to which enough replicas have the log.",
            report["confirmed_position"],
        ),
        (
            "whole",
            "1 while this replica has all that it ever acknowledged.",
            int(report["is_whole"]),
        ),
        (
            "last_failover_timestamp_seconds",
            "When the epoch began, in seconds since 1970.",
            report.get("last_failover", 0),
        ),
        (
            "metadata_store_reachable",
            "1 while the metadata store answers; without it there is no failover.",
            int(store["is_reachable"]),
        ),
        (
            "metadata_store_silent_seconds",
            "The time since the metadata store answered.",
            store["silent_ms"] / 1000,
        ),
    ]
