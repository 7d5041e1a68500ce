"""``martlet import-nsqd``: take nsqd's topics, channels and messages over into a broker's log.

Exit codes: 0 when everything was imported, or had been before; 3 when it was, but some files could
not be read in full, which the report lists; 1 when the import is refused or could not be ended, so
that it has to be run again; 2 when the command line is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from martlet.broker.errors import WritesRefused
from martlet.cli import progress
from martlet.log.storage import FolderInUse
from martlet.migration.diskqueue import Findings
from martlet.migration.importing import (
    MAX_BATCH_BYTES,
    Importing,
    ImportRefused,
    ImportResult,
    opened,
)
from martlet.migration.nsqd_folder import NoNsqdFolder, NsqdFolder, held
from martlet.server.data_folder import WrongVersion
from martlet.text import counted, parse_size

_MIB = 1 << 20
_DESCRIPTION = """\
Take the topics, channels, pauses and messages of a stopped nsqd over into the data folder of a
broker. Nothing in nsqd's folder is changed. An import that was interrupted goes on when it is run
again; one that is done says so."""


def main(argv: Sequence[str]) -> int:
    """Run the import; the result is the exit code of the process."""
    args = _parser().parse_args(argv)
    try:
        outcome = _import(args)
    except (NoNsqdFolder, ImportRefused, FolderInUse, WrongVersion) as error:
        print(f"martlet import-nsqd: {error}", file=sys.stderr)
        return 1
    except (WritesRefused, OSError) as error:
        print(
            f"martlet import-nsqd: {error}; what was imported stays: run the command again",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("martlet import-nsqd: interrupted; run it again to go on", file=sys.stderr)
        return 130
    _print_result(outcome, args)
    return 0 if outcome.entry.complete else 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="martlet import-nsqd", description=_DESCRIPTION)
    add = parser.add_argument
    add("source", type=Path, metavar="NSQD_DATA_PATH", help="nsqd's --data-path")
    add("--data-path", type=Path, required=True, metavar="DIR", help="the broker's --data-path")
    add(
        "--with-bad",
        action="store_true",
        help="read the .bad files too, which nsqd has given up: what was consumed of them before"
        " that is delivered again",
    )
    add(
        "--max-bytes-per-file",
        type=_bytes,
        default=100 * _MIB,
        metavar="SIZE",
        help="the size of a segment of the log (default: 100 MiB)",
    )
    add(
        "--min-free-bytes",
        type=_bytes_or_none,
        default=64 * _MIB,
        metavar="SIZE",
        help="stop while the disk has less than this free (default: 64 MiB)",
    )
    return parser


def _bytes(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 4096 <= size <= 2**40:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 4KiB and 1TiB")
    return -(-size // 4096) * 4096


def _bytes_or_none(text: str) -> int:
    return 0 if text == "0" else _bytes(text)


def _import(args: argparse.Namespace) -> ImportResult:
    findings = Findings()
    if args.data_path.resolve() == args.source.resolve():
        raise ImportRefused("nsqd's folder and the broker's must be two: give another --data-path")
    with held(args.source):
        folder = NsqdFolder(args.source, findings, with_bad=args.with_bad)
        total = 2 * sum(q.unread_bytes for t in folder.topics.values() for q in t.queues())
        with (
            opened(args.data_path, args.max_bytes_per_file, args.min_free_bytes, findings) as (
                broker,
                storage,
            ),
            progress.shown("importing", total) as advance,
        ):
            return Importing(
                broker,
                storage,
                folder,
                advance,
                batch_bytes=min(MAX_BATCH_BYTES, args.max_bytes_per_file // 4),
            ).run()


def _print_result(outcome: ImportResult, args: argparse.Namespace) -> None:
    for line in outcome.entry.report:
        print(line)
    if not outcome.is_new:
        print(f"{args.source} was imported at {outcome.entry.done}; nothing is left to be done")
        return
    for topic in outcome.topics:
        print(
            f"topic {topic.name}: {counted(topic.channels, 'channel')},"
            f" {counted(topic.copies, 'message')} in nsqd's files, {topic.messages} stored"
        )
    messages = sum(topic.messages for topic in outcome.topics)
    verdict = "everything was read" if outcome.entry.complete else "NOT everything could be read"
    print(
        f"{counted(len(outcome.topics), 'topic')}, {counted(messages, 'message')} stored;"
        f" {verdict}. Next: martlet broker --data-path={args.data_path}"
    )
