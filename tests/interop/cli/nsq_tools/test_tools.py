"""The tools as processes, between real brokers, files and pipes."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from tests import brokers
from tests.interop.asking import until
from tests.interop.cli.tools import channels, command, martlet, running, topics
from tests.interop.lookup_process import LookupProcess
from tests.unit.cli.test_standard_output import is_full

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop


broker = brokers.process(scope="function")


def publish(broker: BrokerProcess, topic: str, lines: list[bytes], *flags: str) -> None:
    done = martlet(
        *("pub", f"--topic={topic}", f"--nsqd-tcp-address={broker.tcp_address}", *flags),
        input=b"\n".join(lines) + b"\n",
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_pipe_is_published_and_shown(broker: BrokerProcess) -> None:
    lines = [b"line %d" % number for number in range(5000)]
    publish(broker, "t", [*lines[:2500], b"", *lines[2500:]])
    shown = martlet(
        *("tail", "--topic=t", "--channel=c", "-n=5000", "--max-in-flight=1000"),
        f"--nsqd-tcp-address={broker.tcp_address}",
    )
    assert shown.returncode == 0, shown.stderr.decode()
    assert shown.stdout.splitlines() == lines
    assert channels(broker, "t")["c"]["depth"] == 0


def test_tail_shows_as_many_as_asked_and_takes_no_others(broker: BrokerProcess) -> None:
    publish(broker, "t", [b"%d" % number for number in range(10)])
    seen: list[bytes] = []
    for _ in range(2):
        shown = martlet(
            *("tail", "-topic", "t", "-channel", "c", "-n", "3", "-print-topic"),
            *("-nsqd-tcp-address", broker.tcp_address),
        )
        seen += shown.stdout.splitlines()
    assert len(seen) == len(set(seen)) == 6
    assert set(seen) <= {b"t %d" % number for number in range(10)}
    state = channels(broker, "t")["c"]
    assert state["depth"] + state["in_flight_count"] == 4


def test_tail_ends_while_its_pipe_is_not_read_and_keeps_unshown_messages(
    broker: BrokerProcess,
) -> None:
    lines = [b"%06d " % number + b"x" * 500 for number in range(6000)]
    publish(broker, "t", lines)
    with subprocess.Popen(
        command("tail", "--topic=t", "--channel=c", f"--nsqd-tcp-address={broker.tcp_address}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            until(lambda: is_full(process.stdout))
            process.terminate()
            process.wait(20)  # while the pipe is open
        finally:
            process.kill()
        shown = process.stdout.read().split(b"\n")[:-1]
        assert process.returncode == 0, process.stderr.read().decode()
    assert shown == lines[: len(shown)]
    assert 0 <= len(lines) - channels(broker, "t")["c"]["depth"] <= len(shown)


def test_files_and_a_custom_delimiter(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"a;b\nc;")
    (tmp_path / "two").write_bytes(b"d")
    done = martlet(
        *("pub", "--topic=t", "--delimiter=;", f"--nsqd-tcp-address={broker.tcp_address}"),
        *("--", str(tmp_path / "one"), str(tmp_path / "two")),
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"stored 3 messages\n"


def test_each_broker_named_gets_every_message(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"1\n2\n3\n")
    with BrokerProcess() as second:
        done = martlet(
            *("pub", "-topic", "t", "-nsqd-tcp-address", broker.tcp_address, "-rate", "0"),
            *("-nsqd-tcp-address", second.tcp_address, str(tmp_path / "lines")),
        )
        assert done.returncode == 0, done.stderr.decode()
        assert [topics(one)["t"]["depth"] for one in (broker, second)] == [3, 3]


@contextmanager
def publishing(
    broker: BrokerProcess, lines: bytes
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A `pub` whose pipe has had these lines and stays open; yields what it says, too."""
    with subprocess.Popen(
        command("pub", "--topic=t", f"--nsqd-tcp-address={broker.tcp_address}"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(lines)
        process.stdin.flush()
        yield process, process.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_tool_stopped_while_its_pipe_is_silent_says_so_and_fails(
    broker: BrokerProcess, number: signal.Signals
) -> None:
    with publishing(broker, b"one\n") as (process, errors):
        until(lambda: "t" in topics(broker))
        process.send_signal(number)
        process.wait(30)  # while the pipe is open
        assert (process.returncode, b"Fatal" in errors.read()) == (1, False)


def test_a_message_that_cannot_be_stored_ends_pub_while_its_pipe_is_silent() -> None:
    lines = b"one\n" + b"x" * 200 + b"\n"
    with (
        BrokerProcess(None, "--max-msg-size=100", "--max-body-size=1000") as small,
        publishing(small, lines) as (process, errors),
    ):
        process.wait(30)
        assert (process.returncode, b"stored" in errors.read()) == (1, True)


def test_a_rate_is_kept(broker: BrokerProcess) -> None:
    began_s = time.monotonic()
    publish(broker, "t", [b"x"] * 100, "--rate=50")
    assert time.monotonic() - began_s > 1.5


def test_to_file_follows_topics_by_pattern_and_a_signal(tmp_path: Path) -> None:
    with LookupProcess() as lookup:
        flags = [f"--lookupd-tcp-address={lookup.tcp_address}", "--broadcast-address=127.0.0.1"]
        with BrokerProcess(None, *flags) as broker:
            publish(broker, "app.orders", [b"1"])
            publish(broker, "other", [b"2"])
            with running(
                *("to-file", "--topic-pattern=^app", f"--output-dir={tmp_path}"),
                *("--filename-format=<TOPIC><REV>.log", "--rotate-interval=1h"),
                *("--topic-refresh=200ms", f"--lookupd-http-address={lookup.http_address}"),
            ) as writer:
                first = tmp_path / "app.orders-000000.log"
                until(lambda: first.exists() and first.read_bytes() == b"1\n")
                publish(broker, "app.bills", [b"3"])
                bills = tmp_path / "app.bills-000000.log"
                until(lambda: bills.exists() and bills.read_bytes() == b"3\n")
                writer.send_signal(signal.SIGHUP)
                time.sleep(0.2)
                publish(broker, "app.orders", [b"4"])
                second = tmp_path / "app.orders-000001.log"
                until(lambda: second.exists() and second.read_bytes() == b"4\n")
            assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {
                "app.orders",
                "app.bills",
            }
