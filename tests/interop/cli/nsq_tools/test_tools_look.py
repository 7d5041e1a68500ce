"""Peek, replay and stat: the tools of an operator, against real brokers."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import time
from datetime import datetime
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from tests import brokers
from tests.interop.asking import ask, until
from tests.interop.cli.tools import Tool, channels, command, fill
from tests.interop.lookup_process import LookupProcess
from tests.interop.nsqd_process import NEEDS_NSQD, NSQD, NsqdProcess
from tests.unit.cli.test_standard_output import waiting_bytes

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop


broker = brokers.process("--journal-interval=10ms")


def test_peek_shows_tags_and_keys_where_there_are_any(
    broker: BrokerProcess, at_broker: Tool
) -> None:
    fill(broker, "marked", 1)
    request = Request(f"http://{broker.http_address}/pub?topic=marked", data=b"tea")
    request.add_header("X-Martlet-Tag", "eu")
    request.add_header("X-Martlet-Key", "order-17")
    with urlopen(request):
        pass
    head, plain, marked = at_broker("peek", "marked", "c").out.splitlines()
    assert head.split()[-4:] == ["bytes", "tag,", "keys", "body"]
    assert plain.split()[-2:] == ["1", "0"]
    assert marked.split()[-4:] == ["3", "eu,", "order-17", "tea"]


def test_peek_shows_everything_and_takes_nothing(broker: BrokerProcess, at_broker: Tool) -> None:
    fill(broker, "peeked", 700)
    ask(broker.http_address, "/pub?topic=peeked&defer=60000", "POST", b"\xff\x1b[2J\n")
    lines = at_broker("peek", "peeked", "c", "--limit=0", "--json").out.splitlines()
    messages = [json.loads(line) for line in lines]
    assert [message["offset"] for message in messages] == list(range(701))
    assert [message["body"] for message in messages[:-1]] == [str(number) for number in range(700)]
    assert {message["broker"] for message in messages} == {f"http://{broker.http_address}"}
    shown = at_broker("peek", "--topic=peeked", "--channel=c", "--offset=690", "--limit=30")
    head, *rows = shown.out.splitlines()
    assert " ".join(head.split()) == "offset state attempts age due in with bytes body"
    assert len(rows) == 11
    assert re.fullmatch(r" +690  waiting +0 +\d+\.\d s +3  690 *", rows[0])
    assert re.fullmatch(r" +700  deferred +0 .* 6\d\.\d s|.*deferred.*", rows[-1])
    assert r"\xff\x1b[2J\n" in rows[-1]
    assert "\x1b" not in shown.out
    assert len(at_broker("peek", "peeked", "c", "--state=deferred").out.splitlines()) == 2
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


def test_a_topic_gets_queues_that_the_tools_show(broker: BrokerProcess, at_broker: Tool) -> None:
    assert "topic 'spread' has 1 queue\n" in at_broker("topic", "create", "spread").out
    said = at_broker("topic", "create", "spread", "--queues=3")
    assert (said.code, "topic 'spread' has 3 queues\n" in said.out) == (0, True), said.err
    assert "TOPIC(spread): has 3 queues now" in broker.log()
    for count in (2, 1):
        at_broker("topic", "create", "spread", f"--queues={count}").fails(
            f"topic 'spread' has 3 queues and cannot have {count}: queues can only be added"
        )
    assert "'spread' has 3 queues" in at_broker("topic", "create", "spread").out
    ask(broker.http_address, "/channel/create?topic=spread&channel=c", "POST")
    for number in range(6):
        ask(broker.http_address, "/pub?topic=spread", "POST", b"%d" % number)
    lines = at_broker("peek", "spread", "c", "--json").out.splitlines()
    messages = [json.loads(line) for line in lines]
    assert sorted(message["body"] for message in messages) == [*"012345"]
    assert [(message["queue"], message["offset"]) for message in messages] == [
        (queue, offset) for queue in range(3) for offset in range(2)
    ]
    shown = at_broker("peek", "spread", "c", "--limit=3").out.splitlines()
    assert shown[0].split()[:2] == ["queue", "offset"]
    assert [row.split()[:2] for row in shown[1:]] == [["0", "0"], ["0", "1"], ["1", "0"]]
    ask(broker.http_address, "/channel/empty?topic=spread&channel=c", "POST")
    for flags, why in (
        (["--to-offset=1"], "topic spread has 3 queues, each with its own offsets: add --queue=N"),
        (["--to-offset=99", "--queue=2"], "; --to-offset must be "),
        (["--beginning", "--new-channel"], "already; omit --new-channel to set it back\n"),
    ):
        at_broker("replay", "spread", "c", *flags).fails(why)
    said = at_broker("replay", "spread", "c", "--to-offset=1", "--queue=2")
    assert "is set back to offset 1 of queue 2; 1 message from there on" in said.out
    said = at_broker("replay", "spread", "c", "--beginning")
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
            said.fails(f"{two.http_address}: there is no channel 'c' of topic 't'")
            assert "is set back" in said.out


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


def test_stat_prints_the_lines_of_nsq_stat(broker: BrokerProcess, at_broker: Tool) -> None:
    fill(broker, "counted", 30)
    stat = ["--topic=counted", "--channel=c"]
    head, names, *lines = at_broker("stat", *stat, "--count=26", "--interval=2ms").out.splitlines()
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
            [
                *(f"{os.path.dirname(NSQD)}/nsq_stat", *stat, "--count=1", "--interval=1ms"),
                f"--nsqd-http-address={broker.http_address}",
            ],
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
        said.fails("has one queue there: nsqd supports no more")


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
