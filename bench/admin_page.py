"""The admin page before a broker with many topics: its own time, and what it costs a publisher.

    ./run bench admin-page [--topics 5000] [--pages 20] [--turns 5] [--messages 10000]

A broker gets topics with two channels each, and the page runs as a process of its own. Rows: the
first page of topics, a filter, and a topic, over HTTP (median, and the longest). Then a publisher
sends single messages, one after the other, in turns with no page open and with one that is live:
the ratio of the p99s of each turn, since the machine changes from minute to minute.
"""

from __future__ import annotations

import http.client
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread

from bench.flags import parse
from bench.http_api import post
from martlet.protocol.nsq import commands
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

_START_S = 60
_BODY = b"x" * 200


@contextmanager
def page_of(broker: str) -> Iterator[tuple[str, int]]:
    """Run the admin page of a broker; yields its address once it has seen the broker."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "martlet", "admin", "--log-level=error"),
        *(f"--http-address=127.0.0.1:{port}", f"--nsqd-http-address={broker}"),
    ]
    process = subprocess.Popen(command)
    try:
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline_s:
                    raise SystemExit(f"the page did not start within {_START_S} s") from None
                time.sleep(0.05)
        yield "127.0.0.1", port
    finally:
        process.terminate()
        process.wait()


def timed(address: tuple[str, int], path: str, text: str, count: int) -> list[float]:
    """Ask for a page so often; returns how long each answer took, in seconds."""
    times = []
    connection = http.client.HTTPConnection(*address, timeout=60)
    for _ in range(count):
        began_s = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode()
        times.append(time.perf_counter() - began_s)
        if answer.status != 200 or text not in body:
            raise SystemExit(f"{path} was answered {answer.status}, without {text!r}")
    connection.close()
    return times


@contextmanager
def open_page(address: tuple[str, int]) -> Iterator[None]:
    """Keep the page of topics open, live, as a tab does."""
    connection = http.client.HTTPConnection(*address)
    connection.request("GET", "/topics", headers={"Accept": "text/event-stream"})
    answer = connection.getresponse()
    link = connection.sock

    def read() -> None:
        with suppress(OSError, http.client.HTTPException):  # The tab was closed.
            while answer.read1(1 << 16):
                pass

    reader = Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        link.shutdown(socket.SHUT_RDWR)
        reader.join()
        connection.close()


def p99_us(broker: str, messages: int) -> float:
    """Publish messages one at a time; returns the p99 of the answers, in microseconds."""
    host, _, port = broker.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        command = b"PUB topic-0\n" + struct.pack(">I", len(_BODY)) + _BODY
        link.sendall(commands.MAGIC)
        times = []
        for _ in range(messages):
            began_ns = time.perf_counter_ns()
            link.sendall(command)
            answer = link.recv(64)
            times.append(time.perf_counter_ns() - began_ns)
            if not answer.endswith(b"OK"):
                raise SystemExit(f"a message was answered {answer!r}")
    return statistics.quantiles(times, n=100)[98] / 1000


def show(what: str, seconds: Sequence[float]) -> None:
    """Print the median and the longest of some durations."""
    median, longest = statistics.median(seconds) * 1000, max(seconds) * 1000
    print(f"{what:24} median {median:7.1f} ms, at most {longest:7.1f} ms", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Make the topics, ask for pages, and publish in turns."""
    given = parse(__doc__, arguments, topics=5000, pages=20, turns=5, messages=10_000)
    with BrokerProcess() as broker:
        for number in range(given.topics):
            post(broker.http_address, f"topic/create?topic=topic-{number}")
            for channel in ("one", "two"):
                post(broker.http_address, f"channel/create?topic=topic-{number}&channel={channel}")
        with page_of(broker.http_address) as address:
            began_s = time.perf_counter()
            timed(address, "/topics", "topic-", 1)
            print(f"{'the first answer':24} {(time.perf_counter() - began_s) * 1000:14.1f} ms")
            show("a page of topics", timed(address, "/topics", "topic-", given.pages))
            last = f"topic-{given.topics - 1}"
            show("a filter", timed(address, f"/topics?q={last}", last, given.pages))
            show("a topic", timed(address, f"/topics/{last}", last, given.pages))
            ratios = []
            for turn in range(given.turns):
                found: dict[bool, float] = {}
                for is_open in (False, True) if turn % 2 else (True, False):
                    if is_open:
                        with open_page(address):
                            found[is_open] = p99_us(broker.tcp_address, given.messages)
                    else:
                        found[is_open] = p99_us(broker.tcp_address, given.messages)
                ratios.append(found[True] / found[False])
                print(f"publisher's p99: {found[False]:.0f} us, beside a page {found[True]:.0f} us")
        print(f"ratio: median {statistics.median(ratios):.2f}, all {sorted(ratios)}")
