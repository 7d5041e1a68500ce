"""nsqd's data folder: which topics and channels there are, and the files of their messages.

::

    nsqd.dat                                 {"topics":[{"name","paused","channels"}],"version"}
    <topic>.diskqueue.<number>.dat           messages that were not yet handed to the channels
    <topic>:<channel>.diskqueue.<number>.dat messages that the channel has not finished
    <either>.diskqueue.meta.dat              see `martlet.migration.diskqueue`
    <data file>.bad                          given up by nsqd; it never reads it again

At a clean stop nsqd writes what it holds in memory to these files: the memory queues of topics and
channels, what is in flight, and what is deferred, which thereby is due at once.  What is killed
loses all of these; no file has them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from martlet.migration.diskqueue import DiskQueue, Findings, QueueFile, open_queue
from martlet.names import is_ephemeral, is_valid_name
from martlet.text import counted

_FILE = re.compile(r"(?P<queue>.+)\.diskqueue\.(?:(?P<number>\d{6,})|meta)\.dat(?P<bad>\.bad)?")
_OLD_METADATA = re.compile(r"nsqd\.\d+\.dat")
_LEFT_OVER = re.compile(r".*\.dat\.\d+\.tmp")
_SEPARATORS = ":;"
"""Between topic and channel; nsqd on Windows takes the second."""


class NoNsqdFolder(Exception):
    """The folder cannot be imported; the text says why, and the way out."""


@dataclass
class NsqdChannel:
    """A channel and its messages; None where it has no files."""

    name: str
    paused: bool = False
    queue: DiskQueue | None = None


@dataclass
class NsqdTopic:
    """A topic, its channels by name, and the messages that no channel has got yet."""

    name: str
    paused: bool = False
    channels: dict[str, NsqdChannel] = field(default_factory=dict)
    queue: DiskQueue | None = None

    def queues(self) -> Iterator[DiskQueue]:
        """All queues of it that have files: the channels', by name, and its own."""
        for name in sorted(self.channels):
            queue = self.channels[name].queue
            if queue is not None:
                yield queue
        if self.queue is not None:
            yield self.queue


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the folder as nsqd does, so that none runs on it. Raises NoNsqdFolder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NoNsqdFolder(f"{path} cannot be read: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno != errno.EWOULDBLOCK:
            raise NoNsqdFolder(f"{path} cannot be locked: {error.strerror}") from error
        raise NoNsqdFolder(
            f"an nsqd runs on {path}: stop it first (SIGTERM), so that it writes down what it"
            " holds in memory"
        ) from None
    try:
        yield
    finally:
        os.close(fd)


class NsqdFolder:
    """A data folder of nsqd. Raises NoNsqdFolder: it is none, or its nsqd.dat is damaged."""

    def __init__(self, path: Path, findings: Findings, *, with_bad: bool = False) -> None:
        self.path = path
        self.findings = findings
        self.topics: dict[str, NsqdTopic] = {}
        self._with_bad = with_bad
        self._fingerprint = hashlib.sha256(b"with bad" if with_bad else b"")
        self._numbers: dict[str, list[int]] = {}
        self._bad: dict[str, list[str]] = {}
        names = sorted(os.listdir(path))
        self._sort_files(names)
        self._read_metadata(names)
        for queue in sorted(self._numbers.keys() | self._bad.keys()):
            self._adopt(queue)
        self._check_for_kill()

    @property
    def fingerprint(self) -> str:
        """Tells whether two reads of a folder saw the same files."""
        return self._fingerprint.hexdigest()

    def _sort_files(self, names: list[str]) -> None:
        for name in names:
            match = _FILE.fullmatch(name)
            path = self.path / name
            if match is None or not path.is_file():
                self._check_other(name)
                continue
            queue, number, bad = match.group("queue", "number", "bad")
            about = f"{name} {path.stat().st_size} "
            if number is None:
                about += hashlib.sha256(path.read_bytes()).hexdigest()
            self._fingerprint.update(about.encode())
            if bad:
                self._bad.setdefault(queue, []).append(name)
            elif number is None:
                self._numbers.setdefault(queue, [])
            else:
                self._numbers.setdefault(queue, []).append(int(number))
        for numbers in self._numbers.values():
            numbers.sort()

    def _check_other(self, name: str) -> None:
        if ".diskqueue." not in name and not name.startswith("nsqd."):
            if name != "lost+found":
                self.findings.note(f"{name} is none of nsqd's files; it is left alone")
        elif _LEFT_OVER.fullmatch(name):
            self.findings.note(f"{name} was being written when nsqd was killed; it is passed over")
        elif ".diskqueue." in name:
            self.findings.unreadable(f"{name} is named like no file that is known")

    def _read_metadata(self, names: list[str]) -> None:
        files = [n for n in names if n == "nsqd.dat"] or [
            n for n in names if _OLD_METADATA.fullmatch(n)
        ]
        if not files:
            if not self._numbers and not self._bad:
                raise NoNsqdFolder(
                    f"{self.path} is no data folder of nsqd: it holds neither nsqd.dat nor"
                    " *.diskqueue.*.dat; name the folder that nsqd was given as --data-path"
                )
            self.findings.doubt(
                "nsqd.dat is missing: topics and channels are those that have files, and none is"
                " paused"
            )
            return
        if len(files) > 1:
            raise NoNsqdFolder(
                f"{self.path} holds {len(files)} metadata files ({', '.join(files)}) and no"
                " nsqd.dat: copy the one that counts to nsqd.dat"
            )
        data = (self.path / files[0]).read_bytes()
        self._fingerprint.update(data)
        try:
            self._take_metadata(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NoNsqdFolder(
                f"{self.path / files[0]} cannot be understood ({type(error).__name__}: {error});"
                " repair it, or move it away: topics and channels are then told by their files"
            ) from error

    def _take_metadata(self, metadata: dict[str, Any]) -> None:
        version = str(metadata.get("version", "unknown"))
        if not version.startswith("1."):
            self.findings.note(
                f"nsqd.dat was written by nsqd {version}; it is read as that of 1.x, which it fits"
            )
        for entry in metadata["topics"] or ():
            topic = self._topic(entry["name"], bool(entry.get("paused", False)))
            for channel in entry.get("channels") or ():
                if topic is not None:
                    self._channel(topic, channel["name"], bool(channel.get("paused", False)))

    def _topic(self, name: Any, paused: bool = False) -> NsqdTopic | None:
        if not self._is_kept(name, f"topic {name!r}"):
            return None
        topic = self.topics.setdefault(name, NsqdTopic(name))
        topic.paused = topic.paused or paused
        return topic

    def _channel(self, topic: NsqdTopic, name: Any, paused: bool = False) -> NsqdChannel | None:
        if not self._is_kept(name, f"channel {name!r} of topic {topic.name!r}"):
            return None
        channel = topic.channels.setdefault(name, NsqdChannel(name))
        channel.paused = channel.paused or paused
        return channel

    def _is_kept(self, name: object, what: str) -> bool:
        if not isinstance(name, str) or not is_valid_name(name):
            self.findings.unreadable(
                f"{what} has a name that is not valid; nsqd passes it over too"
            )
            return False
        if is_ephemeral(name):
            self.findings.note(f"{what} is ephemeral: nsqd keeps nothing of it")
            return False
        return True

    def _adopt(self, queue: str) -> None:
        """Give a queue's files to the topic or the channel that it belongs to."""
        topic_name, separator, channel_name = queue, "", ""
        for mark in _SEPARATORS:
            if mark in queue:
                topic_name, separator, channel_name = queue.partition(mark)
        is_listed = topic_name in self.topics
        topic = self._topic(topic_name)
        owner: NsqdTopic | NsqdChannel | None = topic
        if separator and topic is not None:
            is_listed = is_listed and channel_name in topic.channels
            owner = self._channel(topic, channel_name)
        if owner is None:
            self.findings.unreadable(f"the files of {queue!r} are passed over with it")
            return
        disk_queue = open_queue(queue, self.path, self._numbers.get(queue, []), self.findings)
        self._add_bad(queue, disk_queue)
        if not is_listed and (self.topics or self._numbers) and disk_queue.files:
            self.findings.note(f"{queue!r} has files, and is not in nsqd.dat; it is taken")
        if owner.queue is not None:  # under the other separator
            disk_queue = DiskQueue(queue, [*owner.queue.files, *disk_queue.files], None)
        owner.queue = disk_queue

    def _check_for_kill(self) -> None:
        """Report signs that nsqd did not stop cleanly: then it writes a meta file for each
        topic and channel, after nsqd.dat.
        """
        try:
            reported_ns = (self.path / "nsqd.dat").stat().st_mtime_ns
        except FileNotFoundError:
            return
        missing, older = [], []
        for topic in self.topics.values():
            for channel in (None, *topic.channels):
                meta = self._meta_path(topic.name, channel)
                if not meta.exists():
                    missing.append(meta.name)
                elif meta.stat().st_mtime_ns < reported_ns:
                    older.append(meta.name)
        if missing or older:
            why = f"there is no {missing[0]}" if missing else f"{older[0]} is older than nsqd.dat"
            self.findings.doubt(
                f"nsqd was probably killed, not stopped ({why}): then what it held in memory, up to"
                " its --mem-queue-size for each topic and channel, and what was in flight or"
                " deferred, is lost; no file tells how much that was"
            )

    def _meta_path(self, topic: str, channel: str | None) -> Path:
        names = [topic] if channel is None else [f"{topic}{mark}{channel}" for mark in _SEPARATORS]
        paths = [self.path / f"{name}.diskqueue.meta.dat" for name in names]
        return next((path for path in paths if path.exists()), paths[0])

    def _add_bad(self, queue: str, disk_queue: DiskQueue) -> None:
        asked_for: list[QueueFile] = []
        for name in self._bad.get(queue, ()):
            file = QueueFile(self.path / name)
            if self._with_bad:
                asked_for.append(file)
                self.findings.doubt(
                    f"{name} was given up by nsqd, and is read as you asked: what was consumed of"
                    " it before is delivered again"
                )
            else:
                count, is_damaged = _count_readable(file)
                text = (
                    f"{name} was given up by nsqd; it holds {counted(count, 'message')} that can be"
                    " read, and --with-bad takes all"
                )
                if is_damaged:
                    self.findings.unreadable(f"{text}; some of them may have been consumed")
                else:
                    self.findings.doubt(
                        f"{text}; nothing in it is damaged, so it was most likely consumed to its"
                        " end: nsqd gives up files so when reading catches up with writing"
                    )
        disk_queue.files[:0] = asked_for


def _count_readable(file: QueueFile) -> tuple[int, bool]:
    """How many messages a file holds, and whether something in it is damaged."""
    damaged: list[int] = []
    count = sum(
        len(positions) for positions, _ in file.chunks(lambda first, *_: damaged.append(first))
    )
    file.close()
    return count, bool(damaged)
