"""Commands of martlet, as processes or in this one, and what brokers have before and after."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.interop.asking import ask

from martlet.testing import BrokerProcess


class Said(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    def fails(self, text: str, code: int = 1) -> None:
        """Have failed with this in its error."""
        assert (self.code, text in self.err) == (code, True), self


Tool = Callable[..., Said]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "martlet", *arguments]


def martlet(*arguments: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a tool to its end."""
    return subprocess.run(
        command(*arguments), input=input, capture_output=True, timeout=60, check=False
    )


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A tool that runs until the block ends; it must end well then."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        yield process
        process.terminate()
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0, said.decode()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def topics(broker: BrokerProcess) -> dict[str, dict[str, Any]]:
    """Return the counts of each topic."""
    stats = ask(broker.http_address, "/stats?format=json")
    return {topic["topic_name"]: topic for topic in stats["topics"] or ()}


def channels(broker: BrokerProcess, topic: str) -> dict[str, dict[str, Any]]:
    """Return the counts of each channel of a topic; without the topic there are none."""
    rows = topics(broker).get(topic, {}).get("channels", ())
    return {channel["channel_name"]: channel for channel in rows}


def create(broker: BrokerProcess, topic: str, channel: str = "c") -> None:
    ask(broker.http_address, f"/topic/create?topic={topic}", "POST")
    ask(broker.http_address, f"/channel/create?topic={topic}&channel={channel}", "POST")


def fill(
    broker: BrokerProcess, topic: str, messages: int | Sequence[bytes], channel: str = "c"
) -> None:
    """Have a channel with messages: these, or so many with their numbers."""
    create(broker, topic, channel)
    lines = [b"%d" % at for at in range(messages)] if isinstance(messages, int) else messages
    ask(broker.http_address, f"/mpub?topic={topic}", "POST", b"\n".join(lines))


def left(broker: BrokerProcess, topic: str, channel: str) -> int:
    state = channels(broker, topic)[channel]
    return sum(state[count] for count in ("depth", "in_flight_count", "deferred_count"))


def stored_all(broker: BrokerProcess, topic: str, channel: str = "look") -> list[bytes]:
    """Return the unfinished messages of a channel; of a new one, those of its topic."""
    ask(broker.http_address, f"/channel/create?topic={topic}&channel={channel}", "POST")
    bodies: list[bytes] = []
    offset: int | None = 0
    while offset is not None:
        path = f"/channel/peek?topic={topic}&channel={channel}&limit=1000&offset={offset}"
        page = ask(broker.http_address, path)
        bodies += [message["body"].encode() for message in page["messages"]]
        offset = page["next_offset"]
    return bodies
