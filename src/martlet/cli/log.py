"""``martlet log``: inspect the commit log of a data folder, also while a broker runs on it.

``verify`` reads everything and checks its integrity; ``dump`` prints records or, of one topic,
messages. Nothing is written and nothing locked.

Exit codes: 0 if the log is intact, 1 if it is damaged, 2 if the command line is wrong.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from martlet.broker.journal.cursors import channel_of
from martlet.broker.journal.entries import (
    SnapshotEntry,
    TogetherEntry,
    TopicDeletedEntry,
    TopicEntry,
    TopicRecord,
    TopologyEntry,
    decode,
    decode_retired,
    json_of,
)
from martlet.broker.recovery.journal_replay import needed_by
from martlet.broker.tracing.counters import (
    FIRST_BUCKET,
    ChannelCount,
    ChannelCounters,
    unpack_accounts,
)
from martlet.broker.tracing.recorder import TraceChunk
from martlet.log import checkpoint_file
from martlet.log.folder import CutFile, Folder, NoLog
from martlet.log.record import (
    FRAME_HEADER_BYTES,
    Header,
    RecordFlag,
    RecordKind,
    entry_of,
    frame_ends,
    payload,
    properties,
)
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.verify import Verification, verify
from martlet.properties.block import Block
from martlet.properties.model import Properties
from martlet.text import counted, readable_size

_MAX_SHOWN = 120
"""The maximum number of characters of a body or of JSON shown without ``--json``."""
_OF_TOPIC = re.compile(r"^topic (\d+) ")
Fields = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code of the process."""
    args = _parser().parse_args(argv)
    try:
        folder = args.open(Path(args.folder))
        code: int = args.run(folder, args)
        sys.stdout.flush()
    except NoLog as error:
        print(f"martlet log: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has closed the pipe; the interpreter's last flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="martlet log", description="Inspect the commit log of a data folder."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser("verify", help="read everything and check its integrity")
    add.add_argument("folder", metavar="DIR", help="the broker's --data-path")
    add.add_argument("--json", action="store_true", help="for programs")
    add.set_defaults(run=_verify, open=Folder)
    add = commands.add_parser("dump", help="print the records, or the messages of a topic")
    add.add_argument(
        "folder",
        metavar="DIR",
        help="the broker's --data-path; or one of the files that a failover has left in its folder"
        " cut",
    )
    add.add_argument("--topic", metavar="NAME", help="the messages of this topic, not the records")
    add.add_argument(
        "--from",
        dest="start",
        type=_natural_number,
        default=0,
        metavar="N",
        help="begin at this offset of the topic or, without --topic, at this position of the log",
    )
    add.add_argument(
        "--limit", type=_natural_number, metavar="N", help="the maximum number to print"
    )
    add.add_argument(
        "--json", action="store_true", help="a JSON object a line, with complete bodies"
    )
    add.set_defaults(run=_dump, open=_to_dump)
    return parser


def _to_dump(path: Path) -> Folder:
    return CutFile(path) if path.is_file() else Folder(path)


def _natural_number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


class TopicNames:
    """The names of topics by their numbers, from the journal."""

    def __init__(self, folder: Folder) -> None:
        self._names: dict[int, str] = {}
        self._deleted: set[int] = set()
        loaded = checkpoint_file.load(folder)
        if not isinstance(loaded, str):
            for kind, _, entry in loaded.entries:
                self.learn(kind, entry)

    def learn(self, kind: int, entry: bytes) -> None:
        """Read a journal entry."""
        if kind == RecordKind.TOPOLOGY:
            self._learn(decode(RecordKind.TOPOLOGY, entry))

    def _learn(self, entry: TopologyEntry) -> None:
        topics: tuple[TopicRecord, ...] = ()
        match entry:
            case TogetherEntry(entries):
                for one in entries:
                    self._learn(one)
            case TopicDeletedEntry(id):
                self._deleted.add(id)
            case TopicEntry(topic):
                topics = (topic,)
            case SnapshotEntry(topics=topics):
                pass
        self._names.update((topic.id, topic.name) for topic in topics)

    def __contains__(self, name: str) -> bool:
        return name in self._names.values()

    def __getitem__(self, topic: int) -> str:
        return self._names.get(topic, f"(number {topic})")

    def is_deleted(self, topic: int) -> bool:
        """Return whether the journal says that the topic was deleted."""
        return topic in self._deleted


# verify


def _verify(folder: Folder, args: argparse.Namespace) -> int:
    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty() and total:
            end = "\r" if done < total else "\r\033[K"
            print(f"{100 * done // total:3d} % of {readable_size(total)}", end=end, file=sys.stderr)

    result = verify(folder, progress, needed_by)
    names = _all_names(folder)
    result.damage = [
        _OF_TOPIC.sub(lambda of: f"topic {names[int(of[1])]} ", x) for x in result.damage
    ]
    if args.json:
        print(json.dumps(_as_fields(result, names), indent=1))
    else:
        for line in _report(result, names):
            print(line)
    return 1 if result.damage_count else 0


def _all_names(folder: Folder) -> TopicNames:
    names = TopicNames(folder)
    for header, record in scan(folder.segments(), 0, RecoveryReport()):
        if header.kind == RecordKind.TOPOLOGY:
            names.learn(header.kind, bytes(payload(header, record)))
    return names


def _as_fields(result: Verification, names: TopicNames) -> Fields:
    fields = dict(vars(result))
    fields["queues"] = [
        {
            "topic": names[topic],
            "topic_id": topic,
            "deleted": names.is_deleted(topic),
            "queue": number,
            "start_offset": queue.start_offset,
            "end_offset": queue.end_offset,
            "batches": queue.batches,
            "moved": queue.moved,
            "bytes": queue.bytes,
        }
        for (topic, number), queue in sorted(result.queues.items())
    ]
    return fields


def _report(result: Verification, names: TopicNames) -> Iterator[str]:
    in_use = " (a broker is running on it)" if result.in_use else ""
    batches = sum(queue.batches for queue in result.queues.values())
    yield f"{result.folder}{in_use}"
    yield (
        f"  {counted(result.segments, 'segment')}, {counted(result.records, 'record')}:"
        f" {counted(batches, 'batch', 'batches')} and"
        f" {result.journal_records} of the journal; ends at position {result.end_position},"
        f" epoch {result.last_epoch}; {counted(result.index_rows, 'index row')}"
    )
    for (topic, number), queue in sorted(result.queues.items()):
        deleted = " (deleted)" if names.is_deleted(topic) else ""
        batches_there = counted(queue.batches, "batch", "batches")
        yield (
            f"  topic {names[topic]}{deleted} queue {number}: offsets {queue.start_offset} up to"
            f" {queue.end_offset} in {batches_there}, {readable_size(queue.bytes)}"
        )
    for note in result.notes:
        yield f"  note: {note}"
    for damage in result.damage:
        yield f"  DAMAGE: {damage}"
    if result.damage_count > len(result.damage):
        yield f"  and {result.damage_count - len(result.damage)} more"
    errors = counted(result.damage_count, "error")
    yield (
        f"DAMAGED: {errors}; one damaged record can cause several" if result.damage_count else "OK"
    )


# dump


def _dump(folder: Folder, args: argparse.Namespace) -> int:
    report = RecoveryReport()
    # What was cut off may have messages of a topic that the log before it names.
    is_cut = isinstance(folder, CutFile)
    names = _all_names(Folder(folder.path)) if is_cut else TopicNames(folder)
    if args.topic is None:
        rows = _records(folder, args.start, names, report)
    else:
        rows = _messages(folder, args.topic, args.start, names, report)
    for row in islice(rows, args.limit):
        print(json.dumps(row, ensure_ascii=False) if args.json else _line(row))
    for damage in report.damaged:
        print(f"martlet log: {damage}", file=sys.stderr)
    if args.topic is not None and args.topic not in names:
        print(f"martlet log: the log knows no topic {args.topic!r}", file=sys.stderr)
        return 2
    return 1 if report.damaged else 0


def _records(
    folder: Folder, start: int, names: TopicNames, report: RecoveryReport
) -> Iterator[Fields]:
    for header, record in scan(folder.segments(), 0, report):
        if header.kind == RecordKind.TOPOLOGY:
            names.learn(header.kind, bytes(payload(header, record)))
        if header.position >= start:
            yield _record_fields(header, record, names)


def _record_fields(header: Header, record: memoryview, names: TopicNames) -> Fields:
    fields: Fields = {
        "position": header.position,
        "length": header.length,
        "epoch": header.epoch,
        "kind": RecordKind(header.kind).name.lower(),
    }
    if header.topic:
        fields["topic"] = names[header.topic]
    if header.kind == RecordKind.BATCH:
        fields |= {
            "queue": header.queue,
            "first_offset": header.first_offset,
            "count": header.count,
            "flags": [flag.name for flag in RecordFlag if flag & header.flags],
        }
        fields |= _for_later(header)
    elif header.kind in (RecordKind.TOPOLOGY, RecordKind.TRANSACTION):
        fields["entry"] = json_of(bytes(payload(header, record)))
    elif header.kind == RecordKind.BUNDLE:
        fields["entry"] = json_of(entry_of(header, record))
    elif header.kind == RecordKind.TRACE:
        piece = TraceChunk(payload(header, record))
        fields |= {"channel": piece.name, "rows": len(piece.rows), "clients": piece.consumers}
    elif header.kind == RecordKind.ACCOUNTS:
        fields["accounts"] = list(map(_account, unpack_accounts(payload(header, record))))
    elif header.kind == RecordKind.RETIRED:
        fields["bases"] = decode_retired(bytes(payload(header, record)))
    elif header.kind == RecordKind.CURSOR:
        fields["channel_id"] = channel_of(bytes(payload(header, record)))
    if header.stored_at_ns:
        fields["stored_at"] = _time(header.stored_at_ns)
    return fields


def _account(counters: ChannelCounters) -> Fields:
    """Name a channel's counts; finishes add up over the buckets."""
    counts = {count.name.lower(): int(counters.counts[count]) for count in ChannelCount}
    counts["finished"] = int(counters.counts[FIRST_BUCKET:].sum())
    done = {name: count for name, count in counts.items() if count}
    return {"topic_id": counters.topic, "channel_id": counters.channel, **done}


def _messages(
    folder: Folder, topic: str, start: int, names: TopicNames, report: RecoveryReport
) -> Iterator[Fields]:
    seen: set[tuple[int, int]] = set()
    for header, record in scan(folder.segments(), 0, report):
        if header.kind == RecordKind.TOPOLOGY:
            names.learn(header.kind, bytes(payload(header, record)))
        # A moved batch is in the log twice until its first position is free.
        batch_key = (header.topic, header.first_offset)
        if header.kind != RecordKind.BATCH or names[header.topic] != topic or batch_key in seen:
            continue
        seen.add(batch_key)
        if header.first_offset + header.count > start:
            yield from _frames(header, record, start)


def _for_later(header: Header) -> Fields:
    """Return when a batch is due; or, instead of a time, the number of the only channel that gets
    it.
    """
    if header.deliver_at_ns < 0:
        return {"only_channel": -header.deliver_at_ns}
    return {"deliver_at": _time(header.deliver_at_ns)} if header.deliver_at_ns else {}


def _frames(header: Header, record: memoryview, start: int) -> Iterator[Fields]:
    frames = payload(header, record)
    block = Block(properties(header, record))
    begin = 0
    for number, end in enumerate(frame_ends(header, record).tolist()):
        offset = header.first_offset + number
        if offset >= start:
            body = bytes(frames[begin + FRAME_HEADER_BYTES : end])
            fields: Fields = {
                "offset": offset,
                "id": bytes(frames[begin + 18 : begin + FRAME_HEADER_BYTES]).decode("ascii"),
                "stored_at": _time(header.stored_at_ns),
            }
            fields |= _for_later(header)
            try:
                fields["body"] = body.decode()
            except UnicodeDecodeError:
                fields["body_base64"] = base64.b64encode(body).decode("ascii")
            entry = block.of(number)
            if entry:
                fields["properties"] = Properties.unpack(entry).to_json()
            yield fields
        begin = end


def _time(moment_ns: int) -> str:
    seconds, rest_ns = divmod(moment_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns // 1000:06d}Z"


def _line(row: Fields) -> str:
    parts = []
    for name, value in row.items():
        text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        if name == "body":
            text = json.dumps(value, ensure_ascii=False)
        if len(text) > _MAX_SHOWN:
            text = f"{text[:_MAX_SHOWN]}..."
        parts.append(f"{name}={text}")
    return " ".join(parts)
