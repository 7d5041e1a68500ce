"""Importing folders of nsqd's format: the messages of every channel afterwards, and the report.

The folders are written here, so that these run everywhere; those of a real nsqd are imported in
test_import_nsqd.py.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.crash.wire import Wire, drain, pub
from tests.interop.migration.nsqd_files import (
    Got,
    Imported,
    Message,
    import_now,
    left_of,
    message,
    write_metadata,
    write_queue,
)

from martlet.cli.import_nsqd import main
from martlet.cli.main import main as martlet
from martlet.migration.diskqueue import Findings
from martlet.migration.importing import Importing, ImportResult, opened
from martlet.migration.nsqd_folder import NsqdFolder
from martlet.testing import BrokerProcess

SEGMENT_BYTES = 1 << 16
Queues = Mapping[str, Sequence[Message]]
SAME = [Message(1, b"same"), Message(2, b"same")]
ONE, OTHER = [Message(1, b"one")], [Message(1, b"other")]
SOME = [message(n) for n in range(30)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "nsqd"
    folder.mkdir()
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "martlet"


def put(source: Path, queues: Queues, *bare: str, paused: str = "") -> None:
    """Write queues, and a metadata file that names them and topics or channels without one."""
    topics: dict[str, list[str]] = {}
    for name in (*queues, *bare):
        topic, _, channel = name.partition(":")
        topics.setdefault(topic, []).extend([channel] if channel else [])
    for name, messages in queues.items():
        write_queue(source, name, messages)
    write_metadata(source, topics, paused=paused.split())


def numbered(end: int) -> list[Message]:
    return [message(n) for n in range(end)]


def imported(
    source: Path, data: Path, *, max_copies: int = 10**6, bad: bool = False
) -> ImportResult:
    findings = Findings()
    with opened(data, SEGMENT_BYTES, 0, findings) as (broker, storage):
        folder = NsqdFolder(source, findings, with_bad=bad)
        outcome = Importing(broker, storage, folder, max_copies=max_copies).run()
    assert martlet(["log", "verify", str(data)]) == 0
    return outcome


def sorted_bodies(messages: list[Message]) -> list[bytes]:
    return sorted(m.body for m in messages)


@pytest.mark.parametrize("max_copies", [100, 10**6])
def test_each_channel_gets_its_own_and_each_message_is_stored_once(
    source: Path, data: Path, max_copies: int
) -> None:
    chance = random.Random(7)
    everything = [message(n, chance.randrange(10, 300)) for n in range(900)]
    backlog = [message(n) for n in range(900, 1000)]
    channels = {name: [m for m in everything if chance.random() < 0.6] for name in "abcd"}
    channels["late"] = everything[700:]
    for name, own in channels.items():
        chance.shuffle(own)
        write_queue(source, f"t:{name}", own, per_file=70)
    write_queue(source, "t", backlog, per_file=33)
    write_metadata(source, {"t": [*channels, "empty"]}, paused=["t:b"])
    outcome = imported(source, data, max_copies=max_copies)
    assert outcome.entry.complete
    assert outcome.entry.report == []
    union = {m for own in channels.values() for m in own}
    assert outcome.topics[0].messages == len(union) + len(backlog)
    result = Imported(data)
    topic = result.broker.topics["t"]
    assert {c.name: c.paused for c in topic.channels.values()} == {
        name: name == "b" for name in (*channels, "empty")
    }
    for name, own in [*channels.items(), ("empty", [])]:
        got = result.left("t", name)
        expected = {m.body: m for m in own + backlog}
        assert len(got) == len(expected), name
        for one in got:
            assert one == Got(one.body, 1, expected[one.body].time_ns)
        assert [g.body for g in got][-100:] == [m.body for m in backlog]
    result.close()


@pytest.mark.parametrize(
    ("limit", "value"),
    [("MAX_GROUPS", 3), ("MAX_GROUPS", 0), ("MAX_TRIED", 5), ("MAX_COMPARED_CHANNELS", 2)],
)
def test_beyond_a_limit_more_is_stored_and_nothing_is_lost(
    source: Path, data: Path, limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"martlet.migration.layout.{limit}", value)
    chance = random.Random(3)
    everything = [m.tried(int(m.number % 9 == 0)) for m in numbered(200)]
    queues = {f"t:{name}": [m for m in everything if chance.random() < 0.5] for name in "abcd"}
    put(source, queues)
    outcome = imported(source, data, max_copies=150)
    assert {"MAX_TRIED": "begin at attempt 1 again", "MAX_COMPARED_CHANNELS": "not compared"}.get(
        limit, ""
    ) in "".join(outcome.entry.report)
    assert left_of(data, *queues) == {name: sorted_bodies(own) for name, own in queues.items()}


def test_seventy_channels(source: Path, data: Path) -> None:
    queues = {f"t:c{n}": numbered(100)[n:] for n in range(70)}
    put(source, {**queues, "t": [message(100)]})
    imported(source, data)
    assert left_of(data, *queues) == {
        name: sorted_bodies([*own, message(100)]) for name, own in queues.items()
    }


def test_a_full_disk_is_reported_and_the_import_resumes_later(source: Path, data: Path) -> None:
    put(source, {"t:a": numbered(100)})
    code, _, error = import_now(source, data, f"--min-free-bytes={2**40}")
    assert (code, "(--min-free-bytes); what was imported stays" in error) == (1, True)
    assert import_now(source, data)[0] == 0
    assert kept(data) == list(range(100))


def test_nested_channels_keep_their_order(source: Path, data: Path) -> None:
    everything = numbered(500)
    write_queue(source, "t:slow", everything)
    write_queue(source, "t:fast", everything, consumed=333, per_file=100)
    write_metadata(source, {"t": ["slow", "fast"]})
    imported(source, data)
    result = Imported(data)
    assert [g.body for g in result.left("t", "slow")] == [m.body for m in everything]
    assert [g.body for g in result.left("t", "fast")] == [m.body for m in everything[333:]]
    result.close()


def test_attempts_are_kept_for_each_channel(source: Path, data: Path) -> None:
    some = numbered(50)
    a = [m.tried(3) if m.number % 10 == 0 else m for m in some]
    b = [m.tried(7) if m.number == 20 else m for m in some[15:]]
    put(source, {"t:a": a, "t:b": b, "t:c": []})
    imported(source, data)
    result = Imported(data)
    for name, own in (("a", a), ("b", b)):
        attempts = {g.body: g.attempts for g in result.left("t", name)}
        assert attempts == {m.body: m.attempts + 1 for m in own}
    assert result.left("t", "c") == []
    result.close()


@pytest.mark.parametrize(
    ("queues", "left"),
    [
        ({"t:a": SAME, "t:b": [*SAME, SAME[0]]}, (SAME, SAME)),
        ({"t:a": ONE, "t:b": OTHER}, (ONE, OTHER)),
        ({"t:a": [SOME[3].tried(2), *SOME[10:20]], "t": SOME, "t:b": []}, (SOME, SOME)),
    ],
    ids=["a body published twice", "an id with two bodies", "in the backlog and in a channel"],
)
def test_a_message_comes_as_often_as_it_was_published(
    source: Path, data: Path, queues: Queues, left: tuple[list[Message], list[Message]]
) -> None:
    put(source, queues)
    imported(source, data)
    assert [*left_of(data, "t:a", "t:b").values()] == [*map(sorted_bodies, left)]


def test_a_backlog_waits_for_the_first_channel_or_for_the_topic_to_go_on(
    source: Path, data: Path
) -> None:
    queues = {"alone": SOME, "paused": SOME[10:], "paused:c": SOME[:10]}
    put(source, queues, "nothing", paused="paused")
    imported(source, data)
    result = Imported(data)
    alone = result.broker.topics["alone"]
    assert alone.depth == 30
    alone.channel("new")
    assert [g.body for g in result.left("alone", "new")] == [m.body for m in SOME]
    paused = result.broker.topics["paused"]
    assert (paused.paused, paused.depth) == (True, 20)
    assert [g.body for g in result.left("paused", "c")] == [m.body for m in SOME[:10]]
    paused.set_paused(False)
    paused.channels["c"].pump()
    assert paused.channels["c"].in_flight_count == 30
    assert "nothing" in result.broker.topics
    result.close()


def test_a_second_run_says_that_it_was_done(
    source: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(source, {"t:a": numbered(10)})
    arguments = [str(source), f"--data-path={data}", "--min-free-bytes=0"]
    assert main(arguments) == 0
    assert "1 topic, 10 messages stored; everything was read" in capsys.readouterr().out
    before = left_of(data, "t:a")
    assert main(arguments) == 0
    assert "nothing is left to be done" in capsys.readouterr().out
    assert left_of(data, "t:a") == before


def test_a_topic_that_is_there_is_not_touched(
    source: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(source, {"t:a": [message(1)]}, "u")
    arguments = [str(source), f"--data-path={data}", "--min-free-bytes=0"]
    assert main(arguments) == 0
    write_queue(source, "t:a", [message(1), message(2)])
    assert main(arguments) == 1
    assert "the broker has the topics t, u already" in capsys.readouterr().err
    assert left_of(data, "t:a") == {"t:a": [message(1).body]}


@contextmanager
def nsqd_on(folder: Path) -> Iterator[None]:
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(held)


def test_folders_in_use_are_refused(source: Path, data: Path) -> None:
    put(source, {"t:a": []})
    with nsqd_on(source):
        code, _, error = import_now(source, data)
        assert (code, "an nsqd runs on" in error) == (1, True)
        assert not data.exists()
    with BrokerProcess(data):
        code, _, error = import_now(source, data)
    assert (code, "in use by another broker" in error) == (1, True)


def test_nsqds_folder_is_not_made_a_brokers(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_metadata(source, {"t": "a"})
    before = sorted(source.iterdir())
    assert main([str(source), f"--data-path={source}/../{source.name}"]) == 1
    assert "must be two" in capsys.readouterr().err
    assert sorted(source.iterdir()) == before


def test_no_broker_starts_on_an_import_that_is_not_done(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source, {"t:a": numbered(2000)})

    def killed(self: Importing) -> None:
        raise OSError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(Importing, "_checkpoint", killed)
        with pytest.raises(OSError, match="killed here"):
            imported(source, data)
    done = subprocess.run(
        BrokerProcess(data).command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "an import from nsqd is not done; run martlet import-nsqd" in done.stderr
    other = source.parent / "other"
    shutil.copytree(source, other)
    write_queue(other, "u", [message(1)])
    code, _, error = import_now(other, data)
    assert (code, "is not done, and" in error) == (1, True)
    imported(source, data)
    with BrokerProcess(data):
        pass


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_folder_without_nsqd_s_files_is_refused(
    source: Path, data: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = source / name
    if name == "empty":
        folder.mkdir()
    assert main([str(folder), f"--data-path={data}"]) == 1
    assert str(folder) in capsys.readouterr().err


@pytest.mark.parametrize("sudden", [False, True])
async def test_a_broker_serves_imported_messages(source: Path, data: Path, sudden: bool) -> None:
    some = numbered(1000)
    odd = [m.tried(m.number % 7 == 0) for m in some[1::2]]
    put(source, {"t:odd": odd, "t:late": some[500:], "t": [message(1000)]})
    imported(source, data)
    with BrokerProcess(data, "--journal-interval=5ms") as broker:
        wire = await Wire.subscribed(broker.tcp_address, "t", "odd")
        wire.send(b"RDY 300\n")
        got = [await wire.message() for _ in range(300)]
        wire.send(b"RDY 0\n" + b"".join(b"FIN %b\n" % m.id for m in got))
        wire.send(pub("t", b"new"))
        await wire.ok()
        wire.close()
        if sudden:
            broker.kill()
            broker.start()
        else:
            broker.restart()
        rest = await drain(broker.tcp_address, broker.http_address, "t", "odd")
        late = await drain(broker.tcp_address, broker.http_address, "t", "late")
    both = [message(1000).body, b"new"]
    bodies = [m.body for m in got] + [m.body for m in rest]
    assert set(bodies) == {*(m.body for m in some[1::2]), *both}
    assert sudden or len(bodies) == len(set(bodies))
    assert sorted(m.body for m in late) == sorted([*(m.body for m in some[500:]), *both])


# damage


def report_of(source: Path, data: Path, *, bad: bool = False) -> list[str]:
    return imported(source, data, bad=bad).entry.report


def reports(source: Path, data: Path, text: str, left: Iterable[int]) -> None:
    """Have the import report something, and leave these messages."""
    assert any(text in line for line in report_of(source, data))
    assert kept(data) == list(left)


def one_queue(source: Path, count: int = 100, **how: int | bool | None) -> Path:
    paths = write_queue(source, "t:a", numbered(count), **how)  # type: ignore[arg-type]
    write_metadata(source, {"t": "a"})
    return paths[-1]


def kept(data: Path) -> list[int]:
    (bodies,) = left_of(data, "t:a").values()
    return sorted(int(body.partition(b"-")[0]) for body in bodies)


@pytest.mark.parametrize("cut", [1, 3, 20, 57])
def test_a_torn_last_message_is_reported(source: Path, data: Path, cut: int) -> None:
    path = one_queue(source)
    os.truncate(path, path.stat().st_size - cut)
    report = report_of(source, data)
    assert any("torn" in line and line.startswith("NOT READ: ") for line in report)
    assert any("bytes were written" in line for line in report)
    assert any("says 100 messages, 99 were found" in line for line in report)
    assert kept(data) == list(range(99))


@pytest.mark.parametrize("size", [0, -5, 7, 1 << 20, 0x7FFFFFFF])
def test_behind_a_corrupt_length_the_next_message_is_found(
    source: Path, data: Path, size: int
) -> None:
    path = one_queue(source)
    content = bytearray(path.read_bytes())
    at = 40 * len(message(0).record())
    content[at : at + 4] = (size & 0xFFFFFFFF).to_bytes(4, "big")
    path.write_bytes(content)
    (first, second) = report_of(source, data)
    assert first.startswith(f"NOT READ: {path.name}: bytes {at} to {at + 59} of 6000: ")
    assert "says 100 messages, 99 were found" in second
    assert kept(data) == [n for n in range(100) if n != 40]


def test_zeros_at_the_end_are_reported(source: Path, data: Path) -> None:
    path = one_queue(source)
    path.write_bytes(path.read_bytes() + bytes(500))
    reports(source, data, "no message has the size 0", range(100))


def test_a_wrong_depth_is_reported_and_all_is_taken(source: Path, data: Path) -> None:
    one_queue(source, depth=12)
    reports(source, data, "its meta file says 12 messages, 100 were found", range(100))


def test_messages_written_after_the_meta_file_are_imported(source: Path, data: Path) -> None:
    path = one_queue(source, count=80)
    path.write_bytes(b"".join(m.record() for m in numbered(100)))
    reports(source, data, "nsqd was killed", range(100))


def test_a_missing_file_between_others_is_reported(source: Path, data: Path) -> None:
    one_queue(source, per_file=20)
    (source / "t:a.diskqueue.000002.dat").unlink()
    left = [*range(40), *range(60, 100)]
    reports(source, data, "000002.dat is missing, and had unread", left)


def test_topics_are_found_by_their_files_without_nsqd_dat(source: Path, data: Path) -> None:
    one_queue(source)
    (source / "nsqd.dat").unlink()
    reports(source, data, "nsqd.dat is missing", range(100))


@pytest.mark.parametrize("text", [None, "", "what\nis,this\n"])
def test_without_meta_file_everything_is_taken(source: Path, data: Path, text: str | None) -> None:
    one_queue(source, meta=False, per_file=30)
    if text is not None:
        (source / "t:a.diskqueue.meta.dat").write_text(text, encoding="ascii")
    line, *others = report_of(source, data)
    assert "every message of the queue's 4 files is taken" in line
    assert ["was probably killed" in other for other in others] == [True] * (text is None)
    assert kept(data) == list(range(100))


def test_a_file_that_was_given_up_is_reported_or_read(source: Path, data: Path) -> None:
    one_queue(source, consumed=40, per_file=20)
    lost = b"".join(message(n).record() for n in range(20, 40))
    (source / "t:a.diskqueue.000001.dat.bad").write_bytes(lost)
    other = data.with_name("other")
    (line,) = report_of(source, data)
    assert line.startswith("in doubt: t:a.diskqueue.000001.dat.bad was given up by nsqd; it holds")
    assert "20 messages" in line
    assert kept(data) == list(range(40, 100))
    report = report_of(source, other, bad=True)
    assert any("is read as you asked" in line for line in report)
    assert kept(other) == list(range(20, 100))


def test_a_damaged_file_that_was_given_up_counts_as_not_read(source: Path, data: Path) -> None:
    one_queue(source)
    (source / "t:a.diskqueue.000001.dat.bad").write_bytes(message(5).record() + b"\0\0\0\x7f half")
    outcome = imported(source, data)
    assert not outcome.entry.complete
    assert "it holds 1 message that can be read" in outcome.entry.report[0]


@pytest.mark.parametrize("sign", ["no meta", "older meta"])
def test_signs_of_a_killed_nsqd_are_reported(source: Path, data: Path, sign: str) -> None:
    one_queue(source)
    if sign == "no meta":
        (source / "t.diskqueue.meta.dat").unlink()
    else:
        os.utime(source / "t.diskqueue.meta.dat", (1_600_000_000, 1_600_000_000))
    (line,) = report_of(source, data)
    assert line.startswith("in doubt: nsqd was probably killed, not stopped (")
    assert "in flight or deferred, is lost" in line
    assert kept(data) == list(range(100))


def test_files_of_channels_that_nsqd_dat_does_not_know_are_taken(source: Path, data: Path) -> None:
    write_metadata(source, {"t": "a"})
    for name in ("t:unknown", "u", "u:c"):
        write_queue(source, name, [message(1)])
    report = report_of(source, data)
    assert [line.split("'")[1] for line in report] == ["t:unknown", "u", "u:c"]
    body = message(1).body
    assert left_of(data, "t:unknown", "u:c") == {"t:unknown": [body], "u:c": [body]}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"topics": 3}', '{"topics": [{"paused": true}]}', '{"topics": ["t"]}']
)
def test_a_bad_nsqd_dat_is_refused(
    source: Path, data: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "nsqd.dat").write_text(text, encoding="ascii")
    assert main([str(source), f"--data-path={data}"]) == 1
    assert "nsqd.dat cannot be understood" in capsys.readouterr().err


def test_skipped_files_are_reported(source: Path, data: Path) -> None:
    write_metadata(
        source, {"t": ["a", "b#ephemeral"], "e#ephemeral": "", "no good": ""}, (), "0.3.8"
    )
    (source / "nsqd.dat.123.tmp").touch()
    (source / "t.diskqueue.odd").touch()
    (source / "notes.txt").touch()
    write_queue(source, "bad name", [message(1)])
    outcome = imported(source, data)
    report = "\n".join(outcome.entry.report)
    assert not outcome.entry.complete
    for text in (
        "note: channel 'b#ephemeral' of topic 't' is ephemeral",
        "note: topic 'e#ephemeral' is ephemeral",
        "NOT READ: topic 'no good' has a name that is not valid",
        "NOT READ: the files of 'bad name' are passed over with it",
        "NOT READ: t.diskqueue.odd is named like no file that is known",
        "note: nsqd.dat.123.tmp was being written",
        "note: notes.txt is none of nsqd's files",
        "note: nsqd.dat was written by nsqd 0.3.8",
    ):
        assert text in report


def test_unreadable_files_give_an_exit_code_of_their_own(source: Path, data: Path) -> None:
    path = one_queue(source)
    os.truncate(path, path.stat().st_size - 5)
    for _ in range(2):
        code, output, _ = import_now(source, data)
        assert code == 3
        assert "NOT READ" in output
