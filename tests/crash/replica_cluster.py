"""Replicas as processes on one machine, for tests that kill them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.crash.wire import Wire

from martlet.replica.replica_set import ReplicaSet
from martlet.server.metadata.address import open_store
from martlet.server.metadata.store import StoreUnreachable
from martlet.server.replication.operations import OperationRefused, Operations
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

ROOT = Path(__file__).parents[2]
LIMIT_S = 60


class Cluster:
    """Replicas on one machine, and the store that they share.

    Args:
        folder: has a folder for each.
        names: one letter each.
        flush: their flush mode.
        store: the address of the store; a file if empty.
        arguments: further ones of each.
    """

    def __init__(
        self, folder: Path, names: str, flush: str, store: str = "", arguments: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.store_address = store or f"sqlite:{folder / 'replicas.db'}"
        self.flush = flush
        self.arguments = arguments
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in names}
        self.tcp = {name: f"127.0.0.1:{free_port()}" for name in names}
        self.http = {name: f"127.0.0.1:{free_port()}" for name in names}
        self.folders = {name: folder / name for name in names}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.source: Path | None = None
        """The folder with the package that processes run from now on; None for today's."""
        self.store = open_store(self.store_address, "martlet")

    async def start(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    await self.store.read()
                    break
                except StoreUnreachable:
                    await asyncio.sleep(0.05)  # It starts, and calls nobody.
        assert await self.store.swap(ReplicaSet.first("a", self.addresses, broker="broker-1"), 0)
        for name in self.addresses:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        arguments = (
            f"--replica-name={name}",
            f"--replica-address={self.addresses[name]}",
            f"--metadata={self.store_address}",
            f"--data-path={self.folders[name]}",
            f"--tcp-address={self.tcp[name]}",
            f"--http-address={self.http[name]}",
            "--broadcast-address=127.0.0.1",
            f"--flush={self.flush}",
            "--max-bytes-per-file=1MiB",
            *self.arguments,
        )
        command = [sys.executable, "-m", "martlet", "broker", *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            if self.source is None:
                self.processes[name] = BrokerProcess._spawn(command, log)
            else:
                self.processes[name] = subprocess.Popen(
                    command, cwd=ROOT, env=running_from(self.source), stdout=log, stderr=log
                )

    @property
    def brokers(self) -> list[str]:
        """Where clients reach the replicas."""
        return [*self.tcp.values()]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def hang(self, name: str) -> None:
        """Stop a replica's process in its tracks."""
        self.processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def terminate(self, name: str) -> None:
        """Let a replica's process end well."""
        self.processes[name].send_signal(signal.SIGTERM)
        assert self.processes[name].wait(LIMIT_S) == 0, self.log(name)

    def replace(self, name: str, *, is_copy: bool) -> str:
        """Start another process as a replica, at other addresses and with an empty folder, or with
        a copy of that of the process which it replaces. Returns the name of that one from now on.
        """
        old = f"{name}-before"
        for addresses in (self.addresses, self.tcp, self.http):
            addresses[old], addresses[name] = addresses[name], f"127.0.0.1:{free_port()}"
        self.folders[old], self.folders[name] = self.folders[name], self.folder / f"{name}-2"
        self.processes[old] = self.processes.pop(name)
        (self.folder / f"{name}.log").rename(self.folder / f"{old}.log")
        if is_copy:
            shutil.copytree(self.folders[old], self.folders[name])
        self.start_one(name)
        return old

    async def primary(self, but: str = "") -> str:
        """The name of the primary, as soon as there is one other than `but`."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                replica_set = (await self.store.read()).replica_set
                if replica_set is not None and replica_set.primary not in (None, but):
                    assert replica_set.primary is not None
                    return replica_set.primary
                await asyncio.sleep(0.02)  # The store tells nobody when it changes.

    async def standby(self) -> str:
        """The name of the first standby."""
        primary = await self.primary()
        return next(name for name in self.tcp if name != primary)

    async def hand_over(self) -> None:
        """Let another one be primary."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    await Operations(self.store, LIMIT_S).hand_over()
                    return
                except OperationRefused:
                    await asyncio.sleep(0.05)  # No other one has said yet that it has all.

    async def in_sync(self, count: int) -> ReplicaSet:
        """Wait until so many replicas are in sync."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                replica_set = (await self.store.read()).replica_set
                assert replica_set is not None
                if len(replica_set.in_sync) == count and replica_set.primary is not None:
                    return replica_set
                await asyncio.sleep(0.02)  # The store tells nobody when it changes.

    async def alike(self, but_for_bytes: int = 0) -> None:
        """Wait until all replicas say that they have the same log, up to some bytes."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                seen = await self.store.read()
                assert seen.replica_set is not None
                epochs = {one.epoch for one in seen.presences.values()}
                ends = [one.end_position for one in seen.presences.values()]
                is_one = epochs == {seen.replica_set.epoch} and len(ends) == len(self.addresses)
                if is_one and max(ends) - min(ends) <= but_for_bytes:
                    return
                await asyncio.sleep(0.05)

    async def connect(self) -> Wire:
        """Connect to the primary, as soon as it takes clients."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                name = await self.primary()
                try:
                    return await Wire.open(self.tcp[name])
                except OSError:
                    pass  # It is not there any more, or does not listen yet.
                await asyncio.sleep(0.01)

    def kill_all(self) -> None:
        """End all processes, however they are."""
        for process in self.processes.values():
            process.kill()
            process.wait()

    async def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # One that hangs would not end.
        for name, process in self.processes.items():
            status = process.wait(LIMIT_S)
            # Or it was killed while it started.
            assert status in (0, -signal.SIGTERM), self.log(name)
        await self.store.close()


def running_from(source: Path) -> dict[str, str]:
    """Return the environment of a process that imports the package from a folder."""
    return os.environ | {"PYTHONPATH": str(source)}


class Clusters:
    """Starts clusters, and kills what is left of them at the end.

    Args:
        folder: has the folders of their replicas.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[Cluster] = []

    async def start(
        self,
        names: str = "abc",
        flush: str = "async",
        *,
        store: str = "",
        arguments: Sequence[str] = (),
        source: Path | None = None,
        kind: type[Cluster] = Cluster,
    ) -> Cluster:
        """Start a cluster, and wait until all of its replicas are in sync; see `Cluster`."""
        cluster = kind(self._folder, names, flush, store, arguments)
        cluster.source = source
        self._made.append(cluster)
        await cluster.start()
        await cluster.in_sync(len(names))
        return cluster

    def kill_all(self) -> None:
        for cluster in self._made:
            cluster.kill_all()
