"""Consuming with a handler for each message: Martlet's client beside pynsq, ansq and gnsq.

    python bench/clients.py [--messages 200000] [--repeat 5] [--ready 2500] [--json FILE]

One Martlet broker serves all of them the same stored messages, each run on a channel of its own,
each consumer a process of its own. The clients take turns. After each run the broker must know
every message as finished, else the run does not count and the script fails.

The processor's time says more than the rate on a machine that does other things as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from consume import CLIENTS
from rich.console import Console
from rich.table import Table

from martlet.client import Producer
from martlet.testing import BrokerProcess

TOPIC = "clients"
BODY = json.dumps({"carrier": "UA", "flight": 1545, "origin": "EWR", "note": "x" * 140}).encode()
LONGEST_RUN_S = 600
SETTLE_S = 10


def main() -> int:
    """Let the clients take turns, and print what they did."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--ready", type=int, default=2500, help="the ready count of each client")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    clients = given.clients.split(",")
    runs: dict[str, list[dict[str, float]]] = {client: [] for client in clients}
    with BrokerProcess(None, "--log-level=warn", "--max-rdy-count=2500") as broker:
        channels = {c: [f"{c}-{number}" for number in range(given.repeat)] for c in clients}
        for names in channels.values():
            for channel in names:
                create(broker, channel)
        asyncio.run(store(broker.tcp_address, given.messages))
        for number in range(given.repeat):
            for client in clients:
                run = consume(broker, client, channels[client][number], given)
                runs[client].append(run)
                print(f"{client}: {given.messages / run['seconds']:,.0f} msg/s", file=sys.stderr)
    show(runs, given.messages)
    if given.json:
        given.json.write_text(json.dumps({"messages": given.messages, "runs": runs}, indent=1))
    return 0


def create(broker: BrokerProcess, channel: str) -> None:
    """Make the channel, so that it gets everything that is stored from now on."""
    for path in (f"topic/create?topic={TOPIC}", f"channel/create?topic={TOPIC}&channel={channel}"):
        request = urllib.request.Request(f"http://{broker.http_address}/{path}", method="POST")
        urllib.request.urlopen(request, timeout=10).close()


async def store(address: str, messages: int) -> None:
    """Publish what all of them will consume."""
    async with Producer(address) as producer:
        for start in range(0, messages, 1000):
            await producer.publish_many(TOPIC, [BODY] * min(1000, messages - start))


def consume(
    broker: BrokerProcess, client: str, channel: str, given: argparse.Namespace
) -> dict[str, float]:
    """One run; fails where a message is left."""
    script = Path(__file__).with_name("consume.py")
    command = [sys.executable, str(script), client, broker.tcp_address, TOPIC, channel]
    command += [str(given.messages), str(given.ready)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=LONGEST_RUN_S, check=True
    )
    result: dict[str, float] = json.loads(done.stdout)
    if result["body_bytes"] != given.messages * len(BODY):
        raise SystemExit(f"{client}: {result['body_bytes']} bytes are not what was stored")
    gives_up_s = time.monotonic() + SETTLE_S
    while (left := unfinished(broker, channel)) != 0:
        if time.monotonic() > gives_up_s:
            raise SystemExit(f"{client}: {left} messages are not finished")
        time.sleep(0.05)
    return result


def unfinished(broker: BrokerProcess, channel: str) -> int:
    """How many messages the channel still knows."""
    url = f"http://{broker.http_address}/stats?format=json&topic={TOPIC}&channel={channel}"
    with urllib.request.urlopen(url, timeout=10) as response:
        stats: dict[str, Any] = json.load(response)["topics"][0]["channels"][0]
    return int(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"])


def show(runs: dict[str, list[dict[str, float]]], messages: int) -> None:
    """The table: medians."""
    table = Table(title=f"{messages:,} messages of {len(BODY)} bytes, a handler for each")
    for heading in ("client", "msg/s, median", "processor us a message", "martlet is"):
        table.add_column(heading, justify="left" if heading == "client" else "right")
    rates = {
        client: messages / statistics.median(run["seconds"] for run in done)
        for client, done in runs.items()
    }
    for client, rate in sorted(rates.items(), key=lambda item: -item[1]):
        processor_s = statistics.median(run["processor_s"] for run in runs[client])
        ratio = f"{rates['martlet'] / rate:.2f} x" if "martlet" in rates else ""
        table.add_row(client, f"{rate:,.0f}", f"{processor_s / messages * 1e6:.2f}", ratio)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
