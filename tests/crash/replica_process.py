"""A replica as a process of its own: `python -m tests.crash.replica_process JSON`."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys

import uvloop

from martlet.options import BrokerOptions
from martlet.replica.settings import ReplicaSettings
from martlet.server.metadata.address import open_store
from martlet.server.replication.node import NodeOptions, ReplicaNode, SteppedDown


async def run(given: dict[str, str]) -> None:
    """Run nodes, one after the other, until SIGTERM."""
    log = logging.getLogger("martlet")
    options = BrokerOptions(
        tcp_address=given["tcp"],
        http_address=given["http"],
        data_path=given["folder"],
        flush=given["flush"],
        max_bytes_per_file=1 << 20,
    )
    settings = ReplicaSettings(flush_sync=given["flush"] == "sync")
    node_options = NodeOptions(given["name"], "broker-1", given["address"], settings=settings)
    stopped = asyncio.Event()
    while not stopped.is_set():
        store = open_store(given["store"], "broker-1")
        node = ReplicaNode(options, node_options, store, log)

        def stop(node: ReplicaNode = node) -> None:
            stopped.set()
            node.stop()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        try:
            await node.run()
        except SteppedDown as error:
            log.warning("REPLICA: %s: %s", given["name"], error)
        await store.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    uvloop.run(run(json.loads(sys.argv[1])))
