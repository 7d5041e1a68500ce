"""Peek, replay and stat: the tools of an operator, against real brokers."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import pytest
from tests import brokers
from tests.interop.asking import ask, until
from tests.interop.cli.nsq_tools.test_tools import channels, command
from tests.interop.lookup_process import LookupProcess
from tests.interop.nsqd_process import NEEDS_NSQD, NSQD, NsqdProcess
from tests.unit.cli.test_standard_output import waiting_bytes

from martlet.cli.main import main
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop


class Said(NamedTuple):
    code: int
    out: str
    err: str


Tool = Callable[..., Said]


@pytest.fixture
def tool(capfd: pytest.CaptureFixture[str]) -> Tool:
    """Runs a tool to its end, in this process: to start one takes longer than what it does."""

    def run(*arguments: str) -> Said:
        capfd.readouterr()
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Said(code, *capfd.readouterr())

    return run


broker = brokers.process("--journal-interval=10ms")


def fill(broker: BrokerProcess, topic: str, count: int, channel: str = "c") -> None:
    ask(broker.http_address, f"/topic/create?topic={topic}", "POST")
    ask(broker.http_address, f"/channel/create?topic={topic}&channel={channel}", "POST")
    lines = b"\n".join(b"%d" % number for number in range(count))
    ask(broker.http_address, f"/mpub?topic={topic}", "POST", lines)


def test_peek_shows_tags_and_keys_where_there_are_any(broker: BrokerProcess, tool: Tool) -> None:
    fill(broker, "marked", 1)
    request = Request(f"http://{broker.http_address}/pub?topic=marked", data=b"tea")
    request.add_header("X-Martlet-Tag", "eu")
    request.add_header("X-Martlet-Key", "order-17")
    with urlopen(request):
        pass
    shown = tool("peek", "marked", "c", f"--nsqd-http-address={broker.http_address}").out
    head, plain, marked = shown.splitlines()
    assert head.split()[-4:] == ["bytes", "tag,", "keys", "body"]
    assert plain.split()[-2:] == ["1", "0"]
    assert marked.split()[-4:] == ["3", "eu,", "order-17", "tea"]


def test_peek_shows_everything_and_takes_nothing(broker: BrokerProcess, tool: Tool) -> None:
    fill(broker, "peeked", 700)
    ask(broker.http_address, "/pub?topic=peeked&defer=60000", "POST", b"\xff\x1b[2J\n")
    where = f"--nsqd-http-address={broker.http_address}"
    lines = tool("peek", "peeked", "c", where, "--limit=0", "--json").out.splitlines()
    messages = [json.loads(line) for line in lines]
    assert [message["offset"] for message in messages] == list(range(701))
    assert [message["body"] for message in messages[:-1]] == [str(number) for number in range(700)]
    assert {message["broker"] for message in messages} == {f"http://{broker.http_address}"}
    shown = tool("peek", "--topic=peeked", "--channel=c", where, "--offset=690", "--limit=30")
    head, *rows = shown.out.splitlines()
    assert " ".join(head.split()) == "offset state attempts age due in with bytes body"
    assert len(rows) == 11
    assert re.fullmatch(r" +690  waiting +0 +\d+\.\d s +3  690 *", rows[0])
    assert re.fullmatch(r" +700  deferred +0 .* 6\d\.\d s|.*deferred.*", rows[-1])
    assert r"\xff\x1b[2J\n" in rows[-1]
    assert "\x1b" not in shown.out
    assert len(tool("peek", "peeked", "c", where, "--state=deferred").out.splitlines()) == 2
    state = channels(broker, "peeked")["c"]
    assert (state["depth"], state["deferred_count"], state["in_flight_count"]) == (700, 1, 0)


def test_a_channel_is_set_back_and_stays_so_over_a_kill(tool: Tool) -> None:
    with BrokerProcess(None, "--journal-interval=10ms") as broker:
        fill(broker, "t", 5)
        between = datetime.now().isoformat()
        time.sleep(0.002)
        ask(broker.http_address, "/mpub?topic=t", "POST", b"5\n6\n7")
        ask(broker.http_address, "/channel/empty?topic=t&channel=c", "POST")
        where = f"--nsqd-http-address={broker.http_address}"
        said = tool("replay", "t", "c", where, f"--to-time={between}")
        assert said.code == 0, said.err
        assert "channel c of topic t is set back to offset 5; 3 messages from there on" in said.out
        broker.kill()
        broker.start()
        assert channels(broker, "t")["c"]["depth"] == 3
        for arguments, depth in (
            (("t", "c", "--to-offset=2"), 6),
            (("t", "c", "--to-time=1h"), 8),
            (("--topic", "t", "--channel", "new", "--beginning", "--new-channel"), 8),
        ):
            assert tool("replay", where, *arguments).code == 0
            name = "new" if "new" in arguments else "c"
            assert channels(broker, "t")[name]["depth"] == depth


def test_a_topic_gets_queues_that_the_tools_show(broker: BrokerProcess, tool: Tool) -> None:
    where = f"--nsqd-http-address={broker.http_address}"
    said = tool("topic", "create", "spread", where)
    assert (said.code, "topic 'spread' has 1 queue\n" in said.out) == (0, True), said.err
    said = tool("topic", "create", "spread", "--queues=3", where)
    assert (said.code, "topic 'spread' has 3 queues\n" in said.out) == (0, True), said.err
    assert "TOPIC(spread): has 3 queues now" in broker.log()
    said = tool("topic", "create", "spread", "--queues=2", where)
    assert said.code == 1
    assert "topic 'spread' has 3 queues and cannot have 2: queues can only be added" in said.err
    said = tool("topic", "create", "spread", "--queues=1", where)
    assert said.code == 1
    assert "topic 'spread' has 3 queues and cannot have 1: queues can only be added" in said.err
    assert "'spread' has 3 queues" in tool("topic", "create", "spread", where).out
    ask(broker.http_address, "/channel/create?topic=spread&channel=c", "POST")
    for number in range(6):
        ask(broker.http_address, "/pub?topic=spread", "POST", b"%d" % number)
    lines = tool("peek", "spread", "c", where, "--json").out.splitlines()
    messages = [json.loads(line) for line in lines]
    assert sorted(message["body"] for message in messages) == [*"012345"]
    assert [(message["queue"], message["offset"]) for message in messages] == [
        (queue, offset) for queue in range(3) for offset in range(2)
    ]
    shown = tool("peek", "spread", "c", where, "--limit=3").out.splitlines()
    assert shown[0].split()[:2] == ["queue", "offset"]
    assert [row.split()[:2] for row in shown[1:]] == [["0", "0"], ["0", "1"], ["1", "0"]]
    ask(broker.http_address, "/channel/empty?topic=spread&channel=c", "POST")
    said = tool("replay", "spread", "c", where, "--to-offset=1")
    assert (said.code, "topic spread has 3 queues" in said.err) == (1, True)
    assert "each with its own offsets: add --queue=N, or use --to-time or --beginning\n" in said.err
    said = tool("replay", "spread", "c", where, "--to-offset=99", "--queue=2")
    assert "; --to-offset must be " in said.err
    said = tool("replay", "spread", "c", where, "--beginning", "--new-channel")
    assert "already; omit --new-channel to set it back\n" in said.err
    said = tool("replay", "spread", "c", where, "--to-offset=1", "--queue=2")
    assert "is set back to offset 1 of queue 2; 1 message from there on" in said.out
    said = tool("replay", "spread", "c", where, "--beginning")
    assert "offset 0 of queue 0, 0 of queue 1, 0 of queue 2; 6 messages" in said.out
    assert channels(broker, "spread")["c"]["depth"] == 6


def test_brokers_are_found_by_lookup(tool: Tool) -> None:
    with LookupProcess() as lookup:
        flags = [f"--lookupd-tcp-address={lookup.tcp_address}", "--broadcast-address=127.0.0.1"]
        with BrokerProcess(None, *flags) as one, BrokerProcess(None, *flags) as two:
            for one_process in (one, two):
                fill(one_process, "t", 2)
            until(lambda: len(ask(lookup.http_address, "/lookup?topic=t")["producers"]) == 2)
            where = f"--lookupd-http-address={lookup.http_address}"
            lines = tool("peek", "t", "c", where, "--json").out.splitlines()
            assert len({json.loads(line)["broker"] for line in lines}) == 2
            assert "broker" in tool("peek", "t", "c", where).out.splitlines()[0]
            ask(two.http_address, "/channel/empty?topic=t&channel=c", "POST")
            stat = tool("stat", "--topic=t", "--channel=c", where, "--count=1", "--interval=1ms")
            assert stat.out.splitlines()[2].split("|")[1].split() == ["2", "0", "2", "0", "0"]
            said = tool("replay", "t", "c", where, "--beginning")
            assert said.out.count("is set back to offset 0") == 2
            ask(two.http_address, "/channel/delete?topic=t&channel=c", "POST")
            said = tool("replay", "t", "c", where, "--beginning")
            assert said.code == 1
            assert "is set back" in said.out
            assert f"{two.http_address}: there is no channel 'c' of topic 't'" in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("peek", "full", "c", "--limit=0", "--json"),
        ("stat", "--topic=full", "--channel=c", "--interval=1ms"),
    ],
    ids=["peek", "stat"],
)
def test_a_tool_whose_output_is_not_read_can_be_stopped(
    broker: BrokerProcess, arguments: tuple[str, ...]
) -> None:
    """It stood in a write to the pipe, and heard no signal."""
    fill(broker, "full", 700)
    with subprocess.Popen(
        command(*arguments, f"--nsqd-http-address={broker.http_address}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pipesize=1 << 14,
    ) as process:
        assert process.stderr is not None
        try:
            assert process.stdout is not None
            held = [0, 1]
            while held[-1] < 1 << 13 or held[-1] != held[-2]:
                time.sleep(0.05)
                held.append(waiting_bytes(process.stdout))
            process.terminate()
            process.wait(20)  # while the pipe is open
        finally:
            process.kill()
        assert (process.returncode, process.stderr.read()) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("peek t --nsqd-http-address=A", 2, "the channel is missing"),
        ("peek t c", 2, "say which brokers to ask"),
        ("peek t c --nsqd-http-address=A --state=lost", 2, "--state=lost is none of in_flight"),
        ("peek t none --nsqd-http-address=A", 1, "there is no channel 'none' of topic 't'"),
        ("peek none c --nsqd-http-address=A", 1, "there is no topic 'none'"),
        ("peek t c --nsqd-http-address=127.0.0.1:1", 1, "127.0.0.1:1"),
        ("peek t c --lookupd-http-address=A", 1, "it has no /lookup"),
        ("topic create t --nsqd-http-address=A --queues=0", 2, "--queues is 0"),
        ("topic create t --nsqd-http-address=A --queues=1025", 2, "--queues is 1025"),
        ("topic create --nsqd-http-address=A", 2, "the topic is missing: add its name"),
        ("topic explode t", 2, "there is no action 'explode'"),
        ("replay t c --nsqd-http-address=A", 2, "give one of --to-offset"),
        ("replay t c --nsqd-http-address=A --to-offset=1 --beginning", 2, "give one of --to-"),
        ("replay t c --nsqd-http-address=A --to-time=soon", 2, "--to-time=soon is no time"),
        ("replay t c --nsqd-http-address=A --to-offset=99", 1, "cannot be set back to 99"),
        ("replay t c --lookupd-http-address=A --to-offset=9", 2, "needs one --address"),
        ("replay t c --nsqd-http-address=A --beginning --new-channel", 1, "there is a channel 'c'"),
        ("stat --nsqd-http-address=A --channel=c", 2, "the topic of the channel is missing"),
        ("stat --nsqd-http-address=A", 2, "output without a table prints one channel: add --topic"),
        (
            "stat --nsqd-http-address=A --topic=t --channel=x --count=1",
            1,
            "no broker has its channel",
        ),
        ("stat --nsqd-http-address=A --interval=0s --topic=t --channel=c", 2, "--interval is 0s"),
    ],
)
def test_wrong_arguments_are_reported(
    broker: BrokerProcess, tool: Tool, arguments: str, code: int, text: str
) -> None:
    fill(broker, "t", 1)
    said = tool(*arguments.replace("=A", f"={broker.http_address}").split())
    assert said.code == code
    assert text in said.err


def test_stat_prints_the_lines_of_nsq_stat(broker: BrokerProcess, tool: Tool) -> None:
    fill(broker, "counted", 30)
    stat = ["stat", "--topic=counted", "--channel=c", f"--nsqd-http-address={broker.http_address}"]
    head, names, *lines = tool(*stat, "--count=26", "--interval=2ms").out.splitlines()
    assert head == "------rate------+----------------depth----------------" + (
        "+--------------metadata---------------"
    )
    assert " ".join(names.split()) == (
        "ingress egress | total mem disk inflt def | req t-o msgs clients"
    )
    assert lines[24:26] == [head, names]
    assert len(lines) == 28
    assert " ".join(lines[0].split()) == "0 0 | 30 0 30 0 0 | 0 0 30 0"
    if NSQD is not None:
        theirs = subprocess.run(
            [f"{os.path.dirname(NSQD)}/nsq_stat", *stat[1:], "--count=1", "--interval=1ms"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert theirs.stdout.splitlines() == [head, names, lines[0]]


@NEEDS_NSQD
def test_stat_of_an_nsqd_and_its_missing_features(tool: Tool) -> None:
    with NsqdProcess() as nsqd:
        fill(nsqd, "t", 3)
        where = f"--nsqd-http-address={nsqd.http_address}"
        until(lambda: channels(nsqd, "t")["c"]["depth"] == 3)
        stat = tool("stat", "--topic=t", "--channel=c", where, "--count=1", "--interval=1ms")
        assert stat.out.splitlines()[-1].split()[-1:] == ["0"]
        assert stat.out.splitlines()[-1].split("|")[1].split()[0] == "3"
        assert "it has no /channel/peek" in tool("peek", "t", "c", where).err
        said = tool("topic", "create", "t", "--queues=2", where)
        assert (said.code, "has one queue there: nsqd supports no more" in said.err) == (1, True)


def test_at_a_terminal_stat_is_a_table_that_changes(broker: BrokerProcess) -> None:
    fill(broker, "live", 5)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("stat", f"--nsqd-http-address={broker.http_address}", "--interval=50ms"),
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "40"},
    )
    os.close(theirs)
    try:
        seen = b""
        while b"live" not in seen:
            seen += os.read(ours, 4096)
        ask(broker.http_address, "/mpub?topic=live", "POST", b"1\n2\n3\n4\n5\n6\n7")
        while not re.search(rb"live +c .* 12 ", seen):
            seen += os.read(ours, 4096)
        ask(broker.http_address, "/channel/pause?topic=live&channel=c", "POST")
        while b"c (paused)" not in seen:
            seen += os.read(ours, 4096)
    finally:
        process.terminate()
        assert process.communicate(timeout=20)[1] == b""
        os.close(ours)
    assert process.returncode == 0


def test_at_a_terminal_pub_shows_how_far_files_have_come(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"123456789\n" * 200)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(
            *("pub", "--topic=shown", f"--nsqd-tcp-address={broker.tcp_address}", "--rate=400"),
            str(tmp_path / "lines"),
        ),
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    seen = b""
    while b"stored 200 messages" not in seen:
        seen += os.read(ours, 4096)
    assert process.wait(20) == 0
    os.close(ours)
    assert b"publishing" in seen
    assert re.search(rb"[1-9]\d%", seen)
