"""The tools as processes, between real brokers, files and pipes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import brokers
from tests.interop.asking import until
from tests.interop.lookup_process import LookupProcess
from tests.unit.cli.nsq_tools.test_output_file import whole_members
from tests.unit.cli.test_standard_output import is_full

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop


broker = brokers.process(scope="function")


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


def channels(broker: BrokerProcess, topic: str) -> dict[str, dict[str, Any]]:
    with urllib.request.urlopen(f"http://{broker.http_address}/stats?format=json") as response:
        stats = json.load(response)
    return {
        channel["channel_name"]: channel
        for row in stats["topics"] or ()
        if row["topic_name"] == topic
        for channel in row["channels"]
    }


def message_count(broker: BrokerProcess, topic: str) -> int:
    with urllib.request.urlopen(f"http://{broker.http_address}/stats?format=json") as response:
        topics = json.load(response)["topics"] or ()
    return sum(
        stats_of_topic["message_count"]
        for stats_of_topic in topics
        if stats_of_topic["topic_name"] == topic
    )


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
    missing = martlet(
        *("pub", "--topic=t", f"--nsqd-tcp-address={broker.tcp_address}", "--", "/no/such/file")
    )
    assert missing.returncode == 1
    assert b"cannot read the file" in missing.stderr


def test_each_broker_named_gets_every_message(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"1\n2\n3\n")
    with BrokerProcess() as second:
        done = martlet(
            *("pub", "-topic", "t", "-nsqd-tcp-address", broker.tcp_address, "-rate", "0"),
            *("-nsqd-tcp-address", second.tcp_address, str(tmp_path / "lines")),
        )
        assert done.returncode == 0, done.stderr.decode()
        for one in (broker, second):
            with urllib.request.urlopen(
                f"http://{one.http_address}/stats?format=json&topic=t"
            ) as response:
                (topic,) = json.load(response)["topics"]
            assert topic["depth"] == 3


def test_a_broker_that_is_not_there_ends_it(tmp_path: Path) -> None:
    done = martlet("pub", "--topic=t", "--nsqd-tcp-address=127.0.0.1:1", "--timeout=300ms")
    assert done.returncode == 1
    assert b"no broker within 0.3 s" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_tool_stopped_while_its_pipe_is_silent_says_so_and_fails(
    broker: BrokerProcess, number: signal.Signals
) -> None:
    with subprocess.Popen(
        command("pub", "--topic=t", f"--nsqd-tcp-address={broker.tcp_address}"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        until(lambda: message_count(broker, "t") == 1)
        process.send_signal(number)
        process.wait(30)  # while the pipe is open
        assert (process.returncode, b"Fatal" in process.stderr.read()) == (1, False)


def test_a_message_that_cannot_be_stored_ends_pub_while_its_pipe_is_silent() -> None:
    with (
        BrokerProcess(None, "--max-msg-size=100", "--max-body-size=1000") as small,
        subprocess.Popen(
            command("pub", "--topic=t", f"--nsqd-tcp-address={small.tcp_address}"),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n" + b"x" * 200 + b"\n")
        process.stdin.flush()
        process.wait(30)
        said = process.stderr.read()
        assert process.returncode == 1, said.decode()
        assert b"stored" in said


def test_a_rate_is_kept(broker: BrokerProcess) -> None:
    began_s = time.monotonic()
    publish(broker, "t", [b"x"] * 100, "--rate=50")
    assert time.monotonic() - began_s > 1.5


A = ("--nsqd-tcp-address=127.0.0.1:1",)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("pub", "--topic=t"), 2, "name the broker to publish to"),
        (("pub", "--nsqd-tcp-address=127.0.0.1:1"), 2, "--topic is missing"),
        (("pub", "--topic=$", "--nsqd-tcp-address=127.0.0.1:1"), 2, "--topic=$ is not valid"),
        (("tail", "--topic=$", "--nsqd-tcp-address=127.0.0.1:1"), 2, "--topic=$ is not valid"),
        (("to-http", "--topic=t", "--channel=$", *A, "--post=http://a"), 2, "--channel=$ is not"),
        (("to-http", "--topic=t", "--nsqd-tcp-address=a:x", "--post=http://a"), 2, "no address"),
        (("relay", "--topic=t", *A, "--destination-nsqd-tcp-address=a:x"), 2, "no address"),
        (("tail", "--topic=t"), 2, "name the source of the messages"),
        (("tail", "--nsqd-tcp-address=127.0.0.1:1"), 2, "--topic is missing"),
        (("to-file", "--nsqd-tcp-address=127.0.0.1:1"), 2, "--topic or --topic-pattern"),
        (
            ("to-file", "--topic=t", *A, "--output-dir=/proc/x"),
            2,
            "--output-dir=/proc/x cannot be created: No such file or directory; give another",
        ),
        (
            ("to-http", "--topic=t", "--channel=c", *A, "--post=http://a", "--get=http://a/%s"),
            2,
            "--post and --get exclude each other: give one",
        ),
    ],
)
def test_wrong_arguments_are_reported(arguments: tuple[str, ...], code: int, text: str) -> None:
    done = martlet(*arguments, input=b"x\n")
    assert done.returncode == code
    assert text in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_to_file_finishes_only_readable_messages(broker: BrokerProcess, tmp_path: Path) -> None:
    """Killed at any moment, its files hold every message finished at the broker."""
    lines = [b"%d" % number for number in range(3000)]
    flags = [
        *("to-file", "--topic=t", "--gzip", f"--output-dir={tmp_path}", "--max-in-flight=500"),
        f"--nsqd-tcp-address={broker.tcp_address}",
    ]
    publish(broker, "t", lines)
    writer = subprocess.Popen(command(*flags), stderr=subprocess.PIPE)
    until(lambda: list(tmp_path.iterdir()))
    writer.kill()
    writer.communicate()
    with running(*flags):
        until(lambda: channels(broker, "t")["nsq_to_file"]["client_count"])
        until(
            lambda: (
                (state := channels(broker, "t")["nsq_to_file"])
                and state["depth"] + state["in_flight_count"] + state["deferred_count"] == 0
            )
        )
    written: list[bytes] = []
    for path in tmp_path.iterdir():
        written += whole_members(path.read_bytes()).splitlines()
    assert set(lines) <= set(written)


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
