"""The drill of replicas: a broker of several hosts under load, of which one after the other fails.

::

    python -m tests.cluster.replica_drill                         # each fault, and prints the table
    python -m tests.cluster.replica_drill --deeds=kill,hand-over --hosts=primary --count=100
    python -m tests.cluster.replica_drill --replicas=2 --flush=sync --replication=async --json

Each replica, each member of etcd and each client is a host in a network namespace of its own. All
that `send` was answered must be received, and under one id. A deed on `primary` is one on the
replica that is primary then.

=========  =============================================================
deed       what happens for a while
=========  =============================================================
kill       its program is killed (SIGKILL), and started again at the end
term       the same with SIGTERM
stop       its program stands still (SIGSTOP)
cut        no packet passes
cut-in     no packet reaches it; those that it sends arrive
cut-out    no packet that it sends arrives; those to it do
cut-etcd   no packet passes to or from any member of etcd
hand-over  an operator makes another replica the primary
=========  =============================================================
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import quantiles
from typing import Any

from tests.cluster.drill import CALM_S, HTTP, PYTHON, TCP, Deed, Drill, gap_ms, get
from tests.cluster.hosts import Host, Namespace, Network, enter, until

from martlet.replica.replica_set import ReplicaSet, Seen
from martlet.server.metadata.address import open_store
from martlet.server.metadata.store import StoreUnreachable
from martlet.server.replication.operations import Operations

REPLICA, ETCD, PEER = 4153, 2379, 2380
COUNTS = {"etcd": 3, "replica": 3, "producer": 1, "consumer": 1}


class ReplicaDrill(Drill):
    """Replicas, and those that use them.

    Args:
        network: makes the hosts.
        folder: for data, logs and ledgers.
        counts: how many there are of each role.
        flags: further ones of each replica.
    """

    def __init__(
        self, network: Network, folder: Path, counts: dict[str, int], flags: list[str]
    ) -> None:
        super().__init__(network, folder, counts, 1.0)
        self._flags = flags
        members = [f"{host.address}:{ETCD}" for host in self._by_role["etcd"]]
        self._store_address = f"etcd:{','.join(members)}"

    def begin(self) -> None:
        """Start all hosts, and wait until messages go through all of them."""
        self._start_etcd()
        self._start_replicas()
        for host in self._by_role["replica"]:
            until(self._in_use(host), host.name)
        addresses = [f"{host.address}:{TCP}" for host in self._by_role["replica"]]
        self._start_clients(addresses)
        self.await_all()

    def _start_etcd(self) -> None:
        program = os.environ.get("MARTLET_ETCD") or shutil.which("etcd") or "etcd"
        peers = ",".join(f"{h.name}=http://{h.address}:{PEER}" for h in self._by_role["etcd"])
        for host in self._by_role["etcd"]:
            client, peer = f"http://{host.address}:{ETCD}", f"http://{host.address}:{PEER}"
            host.run(
                program,
                *(f"--name={host.name}", f"--data-dir={self._folder / host.name}"),
                *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
                *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
                f"--initial-cluster={peers}",
            )

    def _start_replicas(self) -> None:
        hosts = self._by_role["replica"]
        secret = self._folder / "secret"
        secret.write_text("the secret that all replicas share")
        initial = ",".join(f"{host.name}={host.address}:{REPLICA}" for host in hosts)
        for host in hosts:
            host.run(
                *(*PYTHON, "martlet", "broker"),
                f"--tcp-address={host.address}:{TCP}",
                f"--http-address={host.address}:{HTTP}",
                f"--broadcast-address={host.address}",
                f"--data-path={self._folder / host.name}",
                f"--replica-name={host.name}",
                f"--replica-address={host.address}:{REPLICA}",
                f"--replica-secret-file={secret}",
                f"--metadata={self._store_address}",
                f"--initial-replicas={initial}",
                *self._flags,
            )

    def _start_clients(self, addresses: list[str]) -> None:  # type: ignore[override]
        for role, verb in (("producer", "send"), ("consumer", "receive")):
            for host in self._by_role[role]:
                settings = [host.name, str(self._ledger(host).path), "1", *addresses]
                host.run(*PYTHON, "tests.cluster.client", verb, *settings)

    def see(self) -> Seen:
        """Read the document. Raises OSError."""

        async def read() -> Seen:
            store = open_store(self._store_address, "martlet")
            try:
                return await store.read()
            except StoreUnreachable as error:
                raise OSError(str(error)) from error
            finally:
                await store.close()

        return asyncio.run(read())

    def host_of(self, name: str) -> Host:
        """Return a host by its name, or the one that is primary."""
        if name == "primary":
            replica_set = self._replica_set()
            assert replica_set.primary is not None
            name = replica_set.primary
        return next(host for host in self._network.hosts if host.name == name)

    def role_of(self, host: Host) -> str:
        """Return what a host is at the moment: primary, standby or etcd."""
        if host in self._by_role["etcd"]:
            return "etcd"
        return "primary" if host is self.host_of("primary") else "standby"

    def act(self, deed: str, name: str, away_s: float) -> dict[str, Any]:
        """Do something to a host once all are in use; return what came of it."""
        self.await_all()
        host = self.host_of(name)
        role = self.role_of(host)
        before = self._replica_set().epoch
        done = self._hand_over(host) if deed == "hand-over" else self.do(deed, host, away_s)
        return {**asdict(done), "role": role, "failovers": self._replica_set().epoch - before}

    def await_all(self) -> None:
        """Wait until all hosts are in use."""
        for host in self._network.hosts:
            until(self._in_use(host), host.name)

    def _replica_set(self) -> ReplicaSet:
        """Return the document as soon as there is one: members of etcd fail, too."""
        replica_set = until(lambda: self.see().replica_set, "etcd")
        assert replica_set is not None
        return replica_set

    def _deed(self, deed: str, host: Host) -> tuple[Callable[[], object], Callable[[], object]]:
        if deed == "cut-etcd":
            return self._cut_etcd, self._join_etcd
        if deed in ("cut-in", "cut-out"):
            assert isinstance(host, Namespace)
            return {
                "cut-in": (host.lose_incoming, host.keep_incoming),
                "cut-out": (host.lose_outgoing, host.keep_outgoing),
            }[deed]
        return super()._deed(deed, host)

    def _cut_etcd(self) -> None:
        for host in self._by_role["etcd"]:
            host.leave()

    def _join_etcd(self) -> None:
        for host in self._by_role["etcd"]:
            host.come_back()

    def _hand_over(self, host: Host) -> Deed:
        """Make another replica the primary, as an operator does."""
        time.sleep(CALM_S)
        began_ns = time.time_ns()

        async def hand_over() -> None:
            store = open_store(self._store_address, "martlet")
            try:
                await Operations(store, 30).hand_over()
            finally:
                await store.close()

        asyncio.run(hand_over())
        time.sleep(CALM_S)
        answered, handled = self._read("producer"), self._read("consumer")
        ended_ns = time.time_ns()
        handled_ms = gap_ms(handled, began_ns, ended_ns)
        return Deed(
            host.name, "hand-over", 0, 0, handled_ms, gap_ms(answered, began_ns, ended_ns), 0
        )

    def _in_use(self, host: Host) -> Callable[[], object]:
        if host in self._by_role["etcd"]:
            return self.see
        if host not in self._by_role["replica"]:
            return super()._in_use(host)

        def is_in_sync() -> bool:
            seen = self.see()
            replica_set, presence = seen.replica_set, seen.presences.get(host.name)
            if replica_set is None or replica_set.primary is None or presence is None:
                return False
            primary = self.host_of(replica_set.primary)
            stats = json.loads(get(f"http://{primary.address}:{HTTP}/stats?format=json"))
            report = stats.get("replication", {"role": ""})
            # The set has a replica for a while that was killed and is not back.
            standby = report.get("replicas", {}).get(host.name, {})
            is_connected = host is primary or standby.get("is_whole")
            is_whole = presence.is_whole and presence.epoch == replica_set.epoch
            is_primary = report["role"] == "primary" and report["epoch"] == replica_set.epoch
            return is_primary and is_connected and is_whole and host.name in replica_set.in_sync

        return is_in_sync

    def doubled(self) -> int:
        """Return how many bodies were received under several ids."""
        ids: dict[bytes, set[bytes]] = {}
        for _, line in self._read("consumer"):
            body, _, message_id = line.partition(b" ")
            ids.setdefault(body, set()).add(message_id)
        return sum(len(ids_of_body) > 1 for ids_of_body in ids.values())


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole drill; what came of it."""
    network = Network(folder, namespaces=True)
    try:
        counts = COUNTS | {"replica": arguments.replicas}
        flags = [f"--flush={arguments.flush}", f"--replication={arguments.replication}"]
        drill = ReplicaDrill(network, folder, counts, flags)
        drill.begin()
        replicas = (f"replica-{number + 1}" for number in range(arguments.replicas))
        hosts = arguments.hosts or ",".join(["primary", *replicas, "etcd-1", "etcd-2"])
        names = hosts.split(",") * arguments.count
        deeds = [
            drill.act(deed, name, arguments.away_s)
            for deed in arguments.deeds.split(",")
            for name in names
        ]
        drill.await_all()
        return {
            "deeds": deeds,
            **drill.finish(),
            "doubled": drill.doubled(),
        }
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(encoding='utf-8')[-2000:]}", file=sys.stderr)
        raise
    finally:
        network.close()


def table(outcome: dict[str, Any]) -> str:
    """The table for people: the pauses of each kind of deed, in milliseconds."""
    lines = ["| deed | on | times | p50 | p99 | longest |", "|---|---|---|---|---|---|"]
    kinds: dict[tuple[str, str], list[int]] = {}
    for deed in outcome["deeds"]:
        kinds.setdefault((deed["deed"], deed["role"]), []).append(deed["answered_gap_ms"])
    for (deed, role), pauses in kinds.items():
        cuts = quantiles(pauses, n=100) if len(pauses) > 1 else pauses * 99
        shown = f"{cuts[49]:,.0f} | {cuts[98]:,.0f} | {max(pauses):,}"
        lines.append(f"| {deed} | {role} | {len(pauses)} | {shown} |")
    lines.append(
        f"\n{outcome['answered']:,} messages answered OK, {outcome['lost']} lost,"
        f" {outcome['doubled']} stored twice, {outcome['handled_again']:,} received more than once"
    )
    return "\n".join(lines)


def main() -> int:
    """Run the drill as the arguments say, in a network of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--flush", default="async")
    parser.add_argument("--replication", default="sync")
    parser.add_argument("--deeds", default="kill,cut,stop", help="(default: %(default)s)")
    parser.add_argument("--hosts", help="(default: primary, each replica, etcd-1 and etcd-2)")
    parser.add_argument("--count", type=int, default=1, help="how often")
    parser.add_argument("--away-s", type=float, default=4.0, help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if not enter():
        print("network namespaces are not allowed here", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="martlet-drill-") as folder:
        outcome = run(arguments, Path(folder))
    print(json.dumps(outcome) if arguments.json else table(outcome))
    return 1 if outcome["lost"] or outcome["doubled"] else 0


if __name__ == "__main__":
    sys.exit(main())
