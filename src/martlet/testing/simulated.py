"""A clock that stands still and a disk that can be pulled out: how Martlet tests its own core.

The broker's core reads no clock, throws no dice and opens no file; it is handed all three.  Hand it
these, and a test has a broker in which a minute passes in a microsecond, the disk is full when you
say so, and the power fails between two writes of your choice::

    clock = SimulatedClock()
    storage = SimulatedStorage(Random(1))
    broker, _ = restore(storage, clock, Random(2), segment_bytes=4096)

    receipt = broker.topic("orders").stage([b"one"])
    broker.commit()

    clock.advance(60 * 10**9)
    broker.run()                            # every timeout of that minute happens now

    storage = storage.crash(power=True)     # only what was flushed is sure to be there
    broker, restored = restore(storage, clock, Random(3), segment_bytes=4096)

All chance comes from the ``random.Random`` that you hand over, so a test that failed once fails
again with the same seed.

What a power cut leaves behind
------------------------------
A disk promises less than one thinks, and this one promises no more than a disk:

- What was flushed is there.  What was not may be there in full, in part, or not at all, and a later
  write may have got there before an earlier one.
- A file that was put in place by `replace` is there in full: it is the old one or the new one.
- A file that was removed, and a segment that was retired, may be back, until the folder was made
  durable too, which `create` does.
- A flush that failed has made nothing durable, and another flush that succeeds afterwards does not
  make up for it (https://lwn.net/Articles/752063/), unless the same bytes were written once more.

A process that is killed loses nothing of all that: what it wrote is with the kernel.  It is not
durable by that either, and may be lost when the power fails later.
"""

from __future__ import annotations

import errno
from random import Random

from martlet.log.storage import DiskUsage, Segment, StorageFull

START_NS = 1_700_000_000 * 10**9
"""When a simulated clock begins, by default: in November 2023."""
SECTOR_BYTES = 512
"""The unit that a disk writes completely or not at all."""

Write = tuple[int, bytes]
"""An offset in a file and the bytes that were written there."""


class SimulatedClock:
    """A clock that a test moves, and only forwards.

    Call it for the time, as the broker does.

    Args:
        now_ns: nanoseconds since 1970 that it shows at first.
    """

    def __init__(self, now_ns: int = START_NS) -> None:
        self.now_ns = now_ns
        self.wall_ahead_ns = 0

    def __call__(self) -> int:
        """The running time, by which timeouts go: that since 1970 at first, and what has passed."""
        return self.now_ns

    def wall(self) -> int:
        """The date, in nanoseconds since 1970."""
        return self.now_ns + self.wall_ahead_ns

    def set_wall(self, step_ns: int) -> None:
        """Set the wall clock ahead, or back by a negative step, while no time passes.

        The broker's ``follow_wall`` takes that up, as a server does within a second.
        """
        self.wall_ahead_ns += step_ns

    def advance(self, duration_ns: int) -> int:
        """Let time pass.  Returns what the clock shows then.

        Nothing happens by that alone: call the broker's ``run`` for what has become due.

        Raises:
            ValueError: the duration is negative.
        """
        if duration_ns < 0:
            raise ValueError(f"a clock does not go back, and this one not by {-duration_ns} ns")
        self.now_ns += duration_ns
        return self.now_ns


class _File:
    """Bytes as a process sees them, and which of them the disk has for sure."""

    def __init__(self, content: bytes | bytearray) -> None:
        self.seen = bytearray(content)
        self.stable = bytearray(content)
        self.unflushed: list[Write] = []
        self.doubtful: list[Write] = []
        """Written, and then a flush failed: no flush will make these durable any more."""

    def write(self, data: bytes, at: int) -> None:
        end = at + len(data)
        if end > len(self.seen):
            self.seen.extend(bytes(end - len(self.seen)))
        self.seen[at:end] = data
        self.unflushed.append((at, data))

    def flush(self) -> None:
        for at, data in self.unflushed:
            _lay(self.stable, at, data)
            if self.doubtful:
                self.doubtful = [left for old in self.doubtful for left in _beside(old, at, data)]
        self.unflushed.clear()

    def flush_failed(self) -> None:
        self.doubtful += self.unflushed
        self.unflushed.clear()

    def after_kill(self) -> _File:
        """The file as the next process sees it: nothing has become durable by the kill."""
        after = _File(self.seen)
        after.stable = bytearray(self.stable)
        after.unflushed = list(self.unflushed)
        after.doubtful = list(self.doubtful)
        return after

    def after_power_cut(self, random: Random) -> _File:
        """The file as the disk has it: what was flushed, and of the rest what chance left."""
        left = bytearray(self.stable)
        writes = [*self.doubtful, *self.unflushed]
        if random.random() < 0.5:
            kept = random.randint(0, len(writes))
            for at, data in writes[:kept]:
                _lay(left, at, data)
            writes = writes[kept : kept + 1]
        for at, data in writes:
            fate = random.randrange(4)
            if fate == 0:
                _lay(left, at, data)
            elif fate == 1:
                _lay(left, at, data[: random.randint(0, len(data))])
            elif fate == 2:
                _lay_sectors(left, at, data, random)
        return _File(left)


def _lay(file: bytearray, at: int, data: bytes) -> None:
    if not data:
        return
    end = at + len(data)
    if end > len(file):
        file.extend(bytes(end - len(file)))
    file[at:end] = data


def _beside(write: Write, at: int, data: bytes) -> list[Write]:
    """Return the pieces of an older write that a later one leaves as they are."""
    begin, old = write
    end, stop = begin + len(old), at + len(data)
    pieces = [(begin, old[: max(0, at - begin)]), (max(begin, stop), old[max(0, stop - begin) :])]
    return [write] if end <= at or stop <= begin else [piece for piece in pieces if piece[1]]


def _lay_sectors(file: bytearray, at: int, data: bytes, random: Random) -> None:
    """Some of the sectors of a write, each complete."""
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR_BYTES - (at + start) % SECTOR_BYTES)
        if random.randrange(2):
            _lay(file, at + start, data[start:end])
        start = end


class SimulatedSegment:
    """A segment in memory. The storage makes them."""

    def __init__(self, storage: SimulatedStorage, base: int, file: _File) -> None:
        self.base = base
        self.capacity = len(file.seen)
        self._storage = storage
        self._file = file
        self.view = memoryview(self._file.seen).toreadonly()
        """All its bytes, read-only and always current."""

    @property
    def content(self) -> bytearray:
        """The same bytes, for a test to damage them unnoticed."""
        return self._file.seen

    def write(self, data: memoryview | bytes | bytearray, at: int) -> None:
        """Write all of `data` at byte `at`.  Raises the storage's ``write_error`` while it is set,
        and has then written a part, not more than half.
        """
        self._storage.check_alive()
        assert at >= 0 and at + len(data) <= self.capacity, "a write beyond the segment's end"
        error = self._storage.write_error
        if error is not None:
            beginning = bytes(data[: self._storage.random.randrange(len(data) // 2 + 1)])
            self._file.write(beginning, at)
            raise error
        self._file.write(bytes(data), at)

    def flush(self) -> None:
        """Make what was written survive a power cut.  Raises the storage's ``flush_error`` while
        it is set.
        """
        self._storage.check_alive()
        error = self._storage.flush_error
        if error is not None:
            self._file.flush_failed()
            raise error
        self._file.flush()

    def let_go(self) -> bool:
        """Release its memory; False where a reader still uses it."""
        self.view.release()
        try:
            self._file.seen.extend(b"\0")
        except BufferError:
            return False
        del self._file.seen[-1]
        return True

    def after(self, storage: SimulatedStorage, power: bool) -> SimulatedSegment:
        """The segment as a storage finds it after a crash."""
        file = self._file
        file = file.after_power_cut(storage.random) if power else file.after_kill()
        return SimulatedSegment(storage, self.base, file)

    def recycled(self, base: int) -> SimulatedSegment:
        """The same file under another base, stale bytes, unflushed ones and all."""
        return SimulatedSegment(self._storage, base, self._file.after_kill())


class SimulatedStorage:
    """A data folder in memory: ``martlet.log.storage.Storage``, with a disk under it that fails
    on request.

    Set these attributes at any time:

    - ``capacity_bytes``: how large the disk is, None for no limit.  Segments and spares count in
      full, as preallocated files do.  Where a segment does not fit, `create` raises `StorageFull`;
      where another file does not, the write raises ``OSError(ENOSPC)``.
    - ``keep_free_bytes``: what must stay free when a segment is made.
    - ``flush_error``: an ``OSError`` that every flush raises while it is set.
    - ``write_error``: the same for writes to segments, which stop somewhere in the middle.

    Args:
        random: decides what a power cut leaves, and how far a failing write gets.
        capacity_bytes: see above.
        keep_free_bytes: see above.
        spares: how many segments to keep for reuse.
    """

    def __init__(
        self,
        random: Random,
        *,
        capacity_bytes: int | None = None,
        keep_free_bytes: int = 0,
        spares: int = 2,
    ) -> None:
        self.random = random
        self.capacity_bytes = capacity_bytes
        self.keep_free_bytes = keep_free_bytes
        self.flush_error: OSError | None = None
        self.write_error: OSError | None = None
        self._usual_spares = self._max_spares = spares
        self._segments: dict[int, SimulatedSegment] = {}
        self._spares: list[SimulatedSegment] = []
        self._files: dict[str, _File] = {}
        self._retired: list[SimulatedSegment] = []
        """They may be back after a power cut."""
        self._removed: dict[str, _File] = {}
        """The same for other files."""
        self._dead: str | None = None

    # what a test does

    def crash(self, *, power: bool = False) -> SimulatedStorage:
        """End the process that uses the storage.  Returns the storage as the next one finds it.

        Args:
            power: False: the process is killed, and all that it wrote is there.  True: the power
                is cut, and what was not flushed is there in part, or not.

        Using the old storage raises a ``RuntimeError`` from then on.  After a clean stop, too, this
        is how the folder is opened again.
        """
        after = SimulatedStorage(
            self.random,
            capacity_bytes=self.capacity_bytes,
            keep_free_bytes=self.keep_free_bytes,
            spares=self._usual_spares,
        )
        segments = list(self._segments.values())
        if power:
            segments += [s for s in self._retired if self.random.randrange(2)]
        for segment in segments:
            after._segments.setdefault(segment.base, segment.after(after, power))
        after._spares = [
            spare.after(after, power)
            for spare in self._spares
            if not any(spare is segment for segment in segments)
        ]
        files = dict(self._files)
        if power:
            back = {name: file for name, file in self._removed.items() if self.random.randrange(2)}
            files = back | files
        for name, file in files.items():
            after._files[name] = file.after_power_cut(self.random) if power else file.after_kill()
        self._dead = "the power was cut" if power else "its process was killed"
        return after

    def segment_bytes_of(self, base: int) -> bytearray:
        """The bytes of the segment at a base, for a test to damage them unnoticed."""
        return self._segments[base].content

    def segment_files(self) -> dict[int, bytearray]:
        """Return the bytes of each segment, by base position; those of one that is removed stay."""
        return {base: segment.content for base, segment in self._segments.items()}

    @property
    def used_bytes(self) -> int:
        """The used bytes of the disk."""
        segments = [*self._segments.values(), *self._spares]
        return sum(s.capacity for s in segments) + sum(len(f.seen) for f in self._files.values())

    @property
    def spare_count(self) -> int:
        """How many segments wait to be used again."""
        return len(self._spares)

    def check_alive(self) -> None:
        """Raise RuntimeError where the storage has crashed or was closed."""
        if self._dead is not None:
            raise RuntimeError(f"the storage is not there any more: {self._dead}")

    # what the log does

    def segments(self) -> list[Segment]:
        """The segments that are there, by base."""
        self.check_alive()
        return [self._segments[base] for base in sorted(self._segments)]

    def create(self, base: int, capacity: int) -> Segment:
        """Make a segment, from a spare where one fits, with its stale bytes."""
        self.check_alive()
        assert base not in self._segments, f"there is a segment at {base} already"
        for number, spare in enumerate(self._spares):
            if spare.capacity == capacity:
                segment = self._spares.pop(number).recycled(base)
                break
        else:
            self._check_room(capacity)
            segment = SimulatedSegment(self, base, _File(bytes(capacity)))
        self._segments[base] = segment
        self._retired.clear()
        return segment

    def sealed(self, segment: Segment, *, has_properties: bool) -> None:
        """Nothing: an index of keys is no part of the log."""

    def reserve(self, capacity: int, count: int) -> None:
        """See that `count` spares are at hand. Raises StorageFull."""
        self.check_alive()
        self._spares = [spare for spare in self._spares if spare.capacity == capacity]
        while len(self._spares) < count:
            self._check_room(capacity)
            self._spares.append(SimulatedSegment(self, 0, _File(bytes(capacity))))

    def _check_room(self, capacity: int) -> None:
        if self.capacity_bytes is None:
            return
        free = self.capacity_bytes - self.used_bytes
        if free - capacity < self.keep_free_bytes:
            raise StorageFull(
                errno.ENOSPC,
                f"no room for a segment of {capacity} bytes: {free} bytes are free and"
                f" {self.keep_free_bytes} must stay free",
            )

    def retire(self, segment: Segment) -> None:
        """Keep the segment as a spare unless there are enough, or a reader still uses it."""
        self.check_alive()
        gone = self._segments.pop(segment.base)
        assert gone is segment, f"another segment is at {segment.base}"
        unseen = gone.let_go()
        self._retired.append(gone)
        if unseen and len(self._spares) < self._max_spares:
            self._spares.append(gone)

    def discard(self, segment: Segment) -> None:
        """Remove the segment for good."""
        self.check_alive()
        gone = self._segments.pop(segment.base)
        assert gone is segment, f"another segment is at {segment.base}"
        gone.let_go()

    def allow_spares(self, more: int) -> None:
        """Keep up to a number of spares more than usual."""
        self.check_alive()
        self._max_spares = self._usual_spares + more
        del self._spares[: max(0, len(self._spares) - self._max_spares)]

    def fill(self) -> DiskUsage:
        """How full the disk is, spares aside."""
        spares = sum(spare.capacity for spare in self._spares)
        return DiskUsage(self.used_bytes - spares, self.capacity_bytes or 0)

    def read(self, name: str) -> bytes | None:
        """A small file's content, None where there is none."""
        self.check_alive()
        file = self._files.get(name)
        return None if file is None else bytes(file.seen)

    def replace(self, name: str, data: bytes) -> None:
        """Put a small file in place, atomically and durably."""
        self.check_alive()
        if self.flush_error is not None:
            raise self.flush_error
        self._check_space(len(data))
        self._files[name] = _File(data)
        self._removed.pop(name, None)

    def remove(self, name: str) -> None:
        """Delete a file, where it is there."""
        self.check_alive()
        file = self._files.pop(name, None)
        if file is not None:
            self._removed[name] = file

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder."""
        self.check_alive()
        start = f"{folder}/"
        return sorted(name.removeprefix(start) for name in self._files if name.startswith(start))

    def write_at(self, name: str, data: bytes, at: int) -> None:
        """Write into a file; it is durable after `sync`."""
        self.check_alive()
        file = self._files.get(name)
        length = 0 if file is None else len(file.seen)
        self._check_space(at + len(data) - length)
        if file is None:
            file = self._files[name] = _File(b"")
        file.write(data, at)

    def _check_space(self, more: int) -> None:
        if self.capacity_bytes is not None and self.used_bytes + max(0, more) > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")

    def truncate(self, name: str, length_bytes: int) -> None:
        """Cut a file."""
        self.check_alive()
        file = self._files[name]
        self._files[name] = _File(file.seen[:length_bytes])

    def sync(self, name: str) -> None:
        """Make a file written by `write_at` durable."""
        self.check_alive()
        file = self._files.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        if self.flush_error is not None:
            file.flush_failed()
            raise self.flush_error
        file.flush()

    def map(self, name: str) -> memoryview | None:
        """A file's content as it is now; None where there is none."""
        data = self.read(name)
        return None if data is None else memoryview(data)

    def close(self) -> None:
        """A clean stop: nothing more is written."""
        self._dead = "it was closed"
