"""The layout: in which order the messages of a topic's channels go into the log.

In nsqd each channel has a copy of its messages; here a channel is a cursor over its topic's log.
Two copies of one message have the same id and the same body, and are stored once::

    offsets 0 ..
    | tried | a   | b   | a and b | a | b and c | ... | the topic's own backlog |
              '---- one stretch ----'  '-- next --'
                                                     '- where every channel has passed its voids

- A *stretch* is a run of ids, which in nsqd rise with time, of so few messages that their ids fit
  in memory.  Most folders are one stretch.
- A *group* is what the very same channels have of a stretch.  To all others it is a void, which
  their cursors are taken over (see `martlet.broker.topic.retained`).
- *Tried* are messages that were delivered before to some channel that did not finish them.  They
  come first, and each channel gets its own as pending messages with their attempts.  These cost
  memory, so there is a limit; beyond it they are like any other, and the attempts begin anew.
- The *backlog* are messages that no channel has got yet, so it goes to all of them.  nsqd, killed
  while it hands messages on, has some in both: these come from the backlog, once.

Within a group messages stand in the order of the first of its channels by name.  All of this
follows from the folder alone, so an import that was killed finds the same layout again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from martlet.migration.diskqueue import HEAD_BYTES, DiskQueue, DiskQueueChunk, Findings

MAX_COPIES = 1_000_000
"""So many copies of messages, some 70 bytes each, are compared at once."""
MAX_TRIED = 50_000
MAX_GROUPS = 256
"""Of a stretch; the smallest beyond them are stored once for each channel that has them."""
MAX_COMPARED_CHANNELS = 63
"""A topic with more channels than this has its messages stored once for each of them."""
_SAMPLED = 64

Ids = npt.NDArray[np.uint64]
Key = tuple[int, int]
"""A message's id and its body's checksum."""

COPY = np.dtype(
    [
        ("id", "<u8"),
        ("crc", "<u4"),
        ("channel", "<u4"),
        ("file", "<u4"),
        ("size", "<u4"),
        ("position", "<u8"),
    ]
)
"""One channel's copy of a message."""
Copies = npt.NDArray[np.void]


@dataclass
class Tried:
    """A message that was delivered before: its first copy, and by channel the attempts."""

    queue: DiskQueue
    chunk: DiskQueueChunk
    attempts: dict[int, int] = field(default_factory=dict)
    in_backlog: bool = False
    """Then all channels have it."""


@dataclass(frozen=True)
class Group:
    """Messages that the very same channels have: their copies in the queue of the first of them."""

    channels: tuple[int, ...]
    queue: DiskQueue
    copies: Copies

    def chunks(self) -> Iterator[DiskQueueChunk]:
        """The messages in their order, some at a time."""
        edges = np.flatnonzero(np.diff(self.copies["file"].astype(np.int64))) + 1
        for copies in np.split(self.copies, edges):
            number = int(copies["file"][0])
            positions = copies["position"].astype(np.int64)
            yield DiskQueueChunk(
                self.queue.files[number], number, positions, copies["size"].astype(np.int64)
            )


def body_crcs(chunk: DiskQueueChunk) -> npt.NDArray[np.uint32]:
    """The checksums of the messages' bodies."""
    data = memoryview(chunk.file.data)
    ends = zip(chunk.positions.tolist(), chunk.sizes.tolist(), strict=True)
    crcs = (crc32c(data[position + HEAD_BYTES : position + size]) for position, size in ends)
    return np.fromiter(crcs, np.uint32, len(chunk))


class Layout:
    """The layout of a topic."""

    def __init__(
        self,
        queues: list[DiskQueue],
        backlog: DiskQueue | None,
        findings: Findings,
        *,
        max_copies: int = MAX_COPIES,
    ) -> None:
        self._backlog = len(queues)
        """The number of the backlog, behind those of the channels."""
        self._queues = [*queues, *([] if backlog is None else [backlog])]
        self._compares = len(queues) <= MAX_COMPARED_CHANNELS
        self._findings = findings
        self.counts = [0] * len(self._queues)
        """How many copies each queue holds, the backlog last."""
        self._bounds = self._sample(max_copies)
        self.tried = self._find_tried()

    def _sample(self, max_copies: int) -> Ids:
        """Read every queue once. Returns where its parts begin, but for the first."""
        samples: list[Ids] = []
        keys: set[Key] = set()
        self.untold_attempts = 0
        for number, queue in enumerate(self._queues):
            for file_number, file in enumerate(queue.files):
                lowest, highest = (1 << 64) - 1, 0
                for chunk in queue.chunks_of(file_number, self._findings):
                    ids = chunk.ids()
                    lowest, highest = min(lowest, int(ids.min())), max(highest, int(ids.max()))
                    samples.append(ids[::_SAMPLED])
                    self.counts[number] += len(chunk)
                    self._note_tried(chunk, keys)
                file.first_id, file.last_id = lowest, highest
        self._tried_keys = keys
        if sum(self.counts) <= max_copies:
            return np.empty(0, np.uint64)
        sampled = np.sort(np.concatenate(samples))
        return np.unique(sampled[:: max(1, max_copies // _SAMPLED)][1:])

    def _note_tried(self, chunk: DiskQueueChunk, keys: set[Key]) -> None:
        which = chunk.attempts() > 0
        if which.any():
            tried = chunk.some(which)
            for key in zip(tried.ids().tolist(), body_crcs(tried).tolist(), strict=True):
                if len(keys) < MAX_TRIED or key in keys:
                    keys.add(key)
                else:
                    self.untold_attempts += 1

    def _find_tried(self) -> list[Tried]:
        """Of each message that was delivered before, who has it."""
        if not self._tried_keys:
            return []
        tried_by_key: dict[Key, Tried] = {}
        topic_ids = np.array(sorted({topic_id for topic_id, _ in self._tried_keys}), np.uint64)
        for number, queue in enumerate(self._queues):
            for chunk in queue.chunks(self._findings):
                likely = chunk.some(np.isin(chunk.ids(), topic_ids))
                keys = zip(likely.ids().tolist(), body_crcs(likely).tolist(), strict=True)
                attempts = likely.attempts().tolist()
                for at, key in enumerate(keys):
                    if key in self._tried_keys:
                        tried = tried_by_key.get(key)
                        if tried is None:
                            tried = Tried(queue, likely.some(slice(at, at + 1)))
                            tried_by_key[key] = tried
                        # Twice in one queue: requeued, and then nsqd was killed.
                        before = tried.attempts.get(number, 0)
                        tried.attempts[number] = max(before, attempts[at])
        for tried in tried_by_key.values():
            tried.in_backlog = tried.attempts.pop(self._backlog, None) is not None
        return list(tried_by_key.values())

    def groups(self) -> Iterator[Group]:
        """Yield the groups in the order in which they go into the log, but for the backlog."""
        channels = range(self._backlog)
        if not self._compares:
            self._findings.note(
                f"a topic has {len(channels)} channels with messages: each message is stored once"
                f" for each of them, because more than {MAX_COMPARED_CHANNELS} are not compared"
            )
        for stretch in range(len(self._bounds) + 1):
            copies = [self._copies(number, stretch) for number in range(len(self._queues))]
            if self._compares:
                masks = _by_mask(np.concatenate(copies)) if copies else []
            else:
                masks = [(1 << number, some) for number, some in enumerate(copies)]
            for mask, some in masks:
                if len(some) and not mask >> self._backlog & 1:
                    holders = tuple(number for number in channels if mask >> number & 1)
                    yield Group(holders, self._queues[holders[0]], some)

    def backlog(self) -> Iterator[Group]:
        """Yield the messages that go to all channels, behind the groups."""
        if len(self._queues) > self._backlog:
            for stretch in range(len(self._bounds) + 1):
                copies = self._copies(self._backlog, stretch)
                if len(copies):
                    yield Group(tuple(range(self._backlog)), self._queues[self._backlog], copies)

    def _copies(self, number: int, stretch: int) -> Copies:
        """A queue's copies of a stretch, each message once, but for the tried ones."""
        queue = self._queues[number]
        low = int(self._bounds[stretch - 1]) if stretch else 0
        high = int(self._bounds[stretch]) if stretch < len(self._bounds) else 1 << 64
        pieces: list[Copies] = [np.empty(0, COPY)]
        tried = np.array(sorted({topic_id for topic_id, _ in self._tried_keys}), np.uint64)
        for file_number, file in enumerate(queue.files):
            if file.last_id < low or file.first_id >= high:
                continue
            for chunk in queue.chunks_of(file_number, self._findings):
                ids = chunk.ids()
                inside = np.searchsorted(self._bounds, ids, "right") == stretch
                some = chunk.some(inside)
                copies = np.empty(len(some), COPY)
                copies["id"], copies["crc"] = ids[inside], body_crcs(some)
                copies["channel"], copies["file"] = number, file_number
                copies["size"], copies["position"] = some.sizes, some.positions
                pieces.append(self._without_tried(copies, tried))
        merged = np.concatenate(pieces)
        order = np.lexsort((np.arange(len(merged)), merged["crc"], merged["id"]))
        is_first = _changes(merged[order])
        first: Copies = merged[np.sort(order[is_first])]
        return first

    def _without_tried(self, copies: Copies, tried: Ids) -> Copies:
        likely = np.flatnonzero(np.isin(copies["id"], tried))
        keys = zip(copies["id"][likely].tolist(), copies["crc"][likely].tolist(), strict=True)
        kept = np.ones(len(copies), np.bool_)
        kept[likely] = [key not in self._tried_keys for key in keys]
        return copies[kept]


def _changes(ordered: Copies) -> npt.NDArray[np.bool_]:
    """Which of the copies, sorted by message, are the first of theirs."""
    first = np.ones(len(ordered), np.bool_)
    first[1:] = (ordered["id"][1:] != ordered["id"][:-1]) | (
        ordered["crc"][1:] != ordered["crc"][:-1]
    )
    return first


def _by_mask(copies: Copies) -> list[tuple[int, Copies]]:
    """Copies of a stretch by the channels that have them, as bits; the narrowest groups first."""
    order = np.lexsort((copies["channel"], copies["crc"], copies["id"]))
    first = _changes(copies[order])
    numbers = np.cumsum(first) - 1
    bits = np.uint64(1) << copies["channel"][order].astype(np.uint64)
    masks = np.bitwise_or.reduceat(bits, np.flatnonzero(first)) if len(copies) else bits
    kinds, counts = np.unique(masks, return_counts=True)
    if len(kinds) > MAX_GROUPS:
        kinds = kinds[np.sort(np.argsort(-counts, kind="stable")[:MAX_GROUPS])]
    wide = np.isin(masks, kinds)[numbers]
    of_copy = np.where(wide, masks[numbers], bits)
    stored = np.empty(len(copies), np.bool_)
    stored[order] = first | ~wide
    mask_of = np.empty(len(copies), np.uint64)
    mask_of[order] = of_copy
    group_masks = np.unique(mask_of[stored]).tolist()
    group_masks.sort(key=lambda mask: (mask.bit_count(), mask))
    return [(mask, copies[stored & (mask_of == mask)]) for mask in group_masks]
