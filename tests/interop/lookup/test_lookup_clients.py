"""Clients that others wrote find Martlet's brokers through Martlet's lookup daemon."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.interop.asking import ask, until
from tests.interop.lookup.test_lookup import broker_of, producers
from tests.interop.lookup_process import LookupProcess
from tests.interop.nsqd_process import NO_NSQD, NSQD
from tests.interop.server.nsq.test_clients import node_modules

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop
TOOLS = Path(NSQD).parent if NSQD else Path("/nowhere")
NEEDS_TOOLS = pytest.mark.skipif(
    not (TOOLS / "nsq_tail").exists() or not (TOOLS / "nsq_to_file").exists(),
    reason=f"no nsq_tail and nsq_to_file beside it: {NO_NSQD}",
)
NSQJS_READER = """
const nsq = require('nsqjs')
const reader = new nsq.Reader('t', 'c', {
  lookupdHTTPAddresses: [process.argv[1]], lookupdPollInterval: 1, maxInFlight: 4,
})
reader.on('message', (message) => {
  console.log(message.body.toString())
  message.finish()
})
reader.on('error', () => {})
reader.connect()
"""


class Lines:
    """The lines that a program writes."""

    def __init__(self, output: asyncio.StreamReader) -> None:
        self._output = output
        self._seen: set[str] = set()

    async def until(self, *names: str) -> None:
        """Wait until all of these have come; none of them may have come before."""
        missing = set(names)
        assert not missing & self._seen
        async with asyncio.timeout(50):
            while missing:
                line = (await self._output.readline()).decode().strip()
                assert line, f"it ended without {missing}"
                self._seen.add(line)
                missing.discard(line)


@asynccontextmanager
async def lines_of(command: Sequence[str], **environment: str) -> AsyncIterator[Lines]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    try:
        yield Lines(process.stdout)
    finally:
        process.kill()
        await process.communicate()


def publish(broker: BrokerProcess, body: str, topic: str = "t") -> None:
    assert ask(broker.http_address, f"/pub?topic={topic}", "POST", body.encode()) == "OK"


@pytest.mark.parametrize(
    "client",
    [pytest.param("go-nsq", marks=NEEDS_TOOLS), pytest.param("nsqjs", marks=pytest.mark.slow)],
)
async def test_brokers_are_found_as_they_come_and_go(
    client: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    environment = {}
    if client == "nsqjs":
        environment["NODE_PATH"] = str(node_modules(request))
    with LookupProcess() as lookup, broker_of(lookup) as one:
        publish(one, "from one")
        await asyncio.to_thread(until, lambda: producers(lookup, "t"))
        if client == "nsqjs":
            command = ["node", "-e", NSQJS_READER, lookup.http_address]
        else:
            command = [
                *(str(TOOLS / "nsq_tail"), "--topic=t", "--channel=c"),
                f"--lookupd-http-address={lookup.http_address}",
                "--consumer-opt=lookupd_poll_interval,200ms",
            ]
        async with lines_of(command, **environment) as lines:
            await lines.until("from one")
            with broker_of(lookup, folder=tmp_path) as two:
                publish(two, "from two")
                await lines.until("from two")
                two.kill()
                publish(one, "meanwhile")
                await lines.until("meanwhile")
                two.start()
                publish(two, "back")
                await lines.until("back")


@pytest.mark.slow
@NEEDS_TOOLS
def test_nsq_to_file_finds_topics_through_it(tmp_path: Path) -> None:
    with LookupProcess() as lookup, broker_of(lookup) as one, broker_of(lookup) as two:
        publish(one, "from one", "orders.a")
        publish(two, "from two", "orders.b")
        publish(two, "nobody's", "others")
        until(lambda: len(ask(lookup.http_address, "/topics")["topics"]) == 3)
        command = [
            *(str(TOOLS / "nsq_to_file"), "--topic-pattern=^orders", f"--output-dir={tmp_path}"),
            *(f"--lookupd-http-address={lookup.http_address}", "--filename-format=<TOPIC>.log"),
            "--topic-refresh=200ms",
        ]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                until(lambda: left(one, "orders.a")["depth"] == 0)
                until(lambda: left(two, "orders.b")["depth"] == 0)
            finally:
                process.terminate()  # what it has written it finishes then, if not before
        for broker, topic in ((one, "orders.a"), (two, "orders.b")):
            until(lambda: left(broker, topic)["in_flight_count"] == 0)  # noqa: B023
            assert left(broker, topic)["requeue_count"] == 0
    files = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert files == {"orders.a.log": "from one\n", "orders.b.log": "from two\n"}


def left(broker: BrokerProcess, topic: str) -> dict[str, int]:
    """Return the depth of the only channel of a topic."""
    (topic_report,) = ask(broker.http_address, f"/stats?format=json&topic={topic}")["topics"]
    nothing_yet = {"depth": -1}
    return next(iter(topic_report["channels"]), nothing_yet)
