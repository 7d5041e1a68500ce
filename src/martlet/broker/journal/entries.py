"""The entries of the journal: the format of everything in the log except messages.

An entry is the payload of a record of the log (see `martlet.log.record`) whose kind is one of
these:

=============  ========================================================================
`TOPOLOGY`     JSON, one of `TopologyEntry`: topics and channels
`TRANSACTION`  JSON, one of `TransactionEntry`: transactions
`BUNDLE`       JSON, before the batches that are stored with it: `CommittedEntry`,
               `CommittingEntry` or `SetAsideEntry`
`BATCH`        of half messages: the body of its first message is a `HalfBatchEntry`
`EPOCH`        JSON, a list of [start, end]: the positions behind the last checkpoint that a start
               of the broker has passed over as damaged; empty where there are none
`CURSOR`       binary: the state of a channel (`martlet.broker.journal.cursors`)
`MARKS`        binary: which delayed messages are done (`martlet.broker.delayed.done_bitmap`)
`PRODUCERS`    binary: the known sends of producers (`martlet.broker.idempotence`)
`ACCOUNTS`     binary: the counters of channels (`martlet.broker.tracing.counters`)
`TRACE`        binary: the history of messages (`martlet.broker.tracing.recorder`)
=============  ========================================================================

Topology and transactions are JSON, because they are few and people read them in a dump.  The fields
of a dataclass here are the fields of its JSON, in this order; a field with a default is left out
where it has that value (see `martlet.broker.journal.codec`).  A new field needs a default, and an
earlier version ignores it.

Two rules make a start possible after any crash:

- A power cut may lose any of the entries that are not yet durable, and keep later ones. So each
  entry is complete in itself, and changes that must happen together are one entry.
- Each segment begins with the journal in full, and a checkpoint file holds nothing else: a
  `SnapshotEntry`, the cursor of each channel, the marks of each bucket, the known sends and an
  `AllTransactionsEntry`.  So older segments can be retired.

Numbers of topics and channels are u32, never 0, and never used again.  Offsets and positions are
u64; a range (first, end) does not contain its end.  Times are nanoseconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, overload

from martlet.broker.journal import codec
from martlet.log.checkpoint_file import Checkpoint
from martlet.log.record import BadRecord, RecordKind
from martlet.log.recovery import LogDamage
from martlet.properties.model import NORMAL_PRIORITY, KeyHash

HALF = "%half"
"""The name of the topic that holds half messages."""
_MAX_PASSED = 1000
"""The maximum number of damaged ranges in the note of a start; of more, the last ones."""
Stretches = tuple[tuple[int, int], ...]
"""Ranges as (first, end), rising and separate."""


# topics and channels


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRecord:
    """The fields that make a topic a bucket of another topic's delayed messages: those that are due
    at or after `start_ns` and before `end_ns`.
    """

    topic: int
    """The number of that topic's queue."""
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRecord:
    """A channel at one queue of its topic."""

    id: int
    """Its number, the same at all queues of the topic."""
    name: str
    paused: bool
    start: int | None = None
    """The channel needs nothing below this offset; used if no cursor entry is known. None in
    entries of early versions: then all stored messages are delivered.
    """
    voids: Stretches = ()
    """Offsets that the channel skips."""
    limit: int | None = None
    """The channel saw its topic up to this offset, even if the entry that unpaused the topic was
    lost. None in entries of early versions, which is 0.
    """
    policy: Mapping[str, Any] | None = None
    """The values that differ from the default of `martlet.broker.policy.ChannelPolicy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic at one of its queues. Here each queue is a topic with a number of its own."""

    id: int
    """The number of this queue."""
    name: str
    queue: int = 0
    """Which of the topic's queues this is."""
    of: int = 0
    """The number of the topic's queue 0, if this is another one; else 0."""
    id_base: int
    """A message's id minus its offset, modulo 2**64."""
    paused_at: int | None
    """Channels see the topic end at this offset; None where it is not paused."""
    backlog_offset: int
    """The start of the topic's first channel."""
    voids: Stretches
    """Offsets emptied before any channel read them."""
    policy: Mapping[str, Any] | None = None
    """The values that differ from the default of `martlet.broker.policy.TopicPolicy`."""
    delayed: BucketRecord | None = None
    """None but for a bucket."""
    priority: int = NORMAL_PRIORITY
    """The priority of all messages in this queue."""
    key_hash: KeyHash = KeyHash.CRC32C
    """Leads from an order key to a queue of the topic."""
    end_offset: int | None = None
    """The offset behind the last message; only in a `SnapshotEntry`."""
    channels: tuple[ChannelRecord, ...] | None = None
    """The channels of this queue; only in a `SnapshotEntry`."""

    @property
    def key(self) -> tuple[int, int]:
        """The number of the topic's queue 0, and the number of this queue."""
        return self.of or self.id, self.queue


class IndexRecord(NamedTuple):
    """A topic's index file, as far as a checkpoint covers it."""

    first_row: int
    """The number of the file's first row, which is in its name."""
    row_count: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEntry:
    """All topics and channels; replaces all entries before.

    Written at the head of each segment, and as the first entry of a checkpoint file.
    """

    op: ClassVar = "snapshot"
    topics: tuple[TopicRecord, ...]
    """All topics at all their queues, without ephemeral ones."""
    last_id: int
    """The highest number that a topic or channel ever had."""
    position: int | None = None
    """Of a checkpoint: the position of the log at this state."""
    epoch: int | None = None
    """Of a checkpoint: the number of the broker's run that wrote it."""
    stored: Stretches | None = None
    """The ranges of positions that were not retired then, for audits; None in entries of early
    versions.
    """
    indexes: Mapping[int, IndexRecord] | None = None
    """Of a checkpoint: by topic number, the index files."""


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic was created at a queue, or has changed."""

    op: ClassVar = "topic"
    topic: TopicRecord


@dataclass(frozen=True, slots=True)
class TopicDeletedEntry:
    """A topic was deleted at a queue, with its channels there."""

    op: ClassVar = "topic_deleted"
    id: int
    """The queue's number."""


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """A channel was created at a queue, or has changed."""

    op: ClassVar = "channel"
    topic_id: int
    """The queue's number."""
    channel: ChannelRecord
    """The channel there."""


@dataclass(frozen=True, slots=True)
class ChannelReplayedEntry:
    """A channel was set back: it gets all messages from an offset on again."""

    op: ClassVar = "channel_replayed"
    topic_id: int
    """The queue's number."""
    id: int
    offset: int
    """The channel's new position."""


@dataclass(frozen=True, slots=True)
class ChannelDeletedEntry:
    """A channel was deleted at a queue."""

    op: ClassVar = "channel_deleted"
    topic_id: int
    """The queue's number."""
    id: int
    backlog_offset: int | None = None
    """The topic's, without the channel. None in entries of early versions, which wrote the topic in
    an entry of its own before.
    """


@dataclass(frozen=True, slots=True)
class TogetherEntry:
    """Changes of all queues of a topic, so that a restart finds all or none."""

    op: ClassVar = "together"
    ops: tuple[TopologyEntry, ...]


TopologyEntry = (
    SnapshotEntry
    | TopicEntry
    | TopicDeletedEntry
    | ChannelEntry
    | ChannelReplayedEntry
    | ChannelDeletedEntry
    | TogetherEntry
)


# transactions


class HalfBatch(NamedTuple):
    """A batch of hidden messages added to a transaction."""

    first_offset: int
    """The offset of the batch in the topic of half messages; its first message is a
    `HalfBatchEntry`, and the others follow.
    """
    message_count: int
    topic: str
    """The name of their target topic."""
    queue: int
    """The target queue; -1 for any."""
    size_bytes: int
    time_count: int = 0
    """The number of distinct delivery times; 0 for immediate delivery."""

    @property
    def weight(self) -> int:
        """The number of batches that it becomes when it is committed."""
        return max(1, self.time_count)


Series = tuple[str, int]
"""The name of a series, and the transaction's number in it."""


class PublishedRange(NamedTuple):
    """Half messages that a bundle of a large commit has published."""

    first_offset: int
    """The first batch's, in the topic of half messages."""
    end_offset: int
    """The offset behind the last batch's first message."""
    position: int
    """The position behind the bundle."""


HeldQueues = tuple[tuple[int, int], ...]
"""Numbers of queues in the log, each with the offset from which on readers wait for a commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """A transaction that has not ended (`martlet.broker.transactions.state`)."""

    id: str
    """Chosen by its producer."""
    group: str
    """The group of the producers that answer check-backs; empty for none."""
    begun_at_ns: int
    check_after_ns: int
    """The inactivity before a check-back."""
    series: Series | None = None
    """Its number in a series; None for none."""
    disposable: bool = False
    """Whether it is rolled back, not set aside, after too long inactivity."""
    state: str
    """A `TransactionState`."""
    checks: int
    """The number of check-backs since its last activity."""
    gaps: tuple[str, ...] = ()
    """The branches with lost batches."""
    chosen: Mapping[str, int] | None = None
    """The branches that it was prepared with, or is committed with, and the message count of each.
    """
    published: tuple[PublishedRange, ...] = ()
    """What its commit, which is under way, has published."""
    held_from: HeldQueues = ()
    """Where readers wait for its end."""
    branches: Mapping[str, tuple[HalfBatch, ...]]
    """The batches of each branch, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfBatchEntry:
    """The first message of a batch of half messages: describes the others, and repeats fields of
    the `TransactionRecord`, in case its `BegunEntry` is lost.
    """

    transaction: str
    branch: str
    number: int
    """The number of the batch in the branch, from 0."""
    topic: str
    """The name of their target topic."""
    queue: int
    """The target queue; -1 for any."""
    group: str
    begun_at_ns: int
    check_after_ns: int
    series: Series | None = None
    disposable: bool = False
    times: tuple[tuple[int, int], ...] = ()
    """The delivery times and the message count of each, in order; empty for immediate delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllTransactionsEntry:
    """All open transactions, and the outcomes of ended ones; replaces all entries before."""

    op: ClassVar = "all"
    transactions: tuple[TransactionRecord, ...]
    """The transactions that have not ended."""
    outcomes_bytes: int | None = None
    """The size of the outcomes; None in entries of early versions: nothing follows them."""
    packed: bytes = b""
    """Outcomes (`martlet.broker.transactions.state`), and behind them the last commit of each
    series (the same module).
    """


@dataclass(frozen=True, slots=True)
class BegunEntry:
    """A transaction has begun, without messages: each batch names its transaction."""

    op: ClassVar = "begun"
    transaction: TransactionRecord


@dataclass(frozen=True, slots=True)
class PreparedEntry:
    """A transaction has all its messages."""

    op: ClassVar = "prepared"
    id: str
    branches: Mapping[str, int] | None
    """The branches that belong to it, and the message count of each; None for all."""


@dataclass(frozen=True, slots=True)
class CheckedEntry:
    """A check-back: producers are asked for the outcome of transactions."""

    op: ClassVar = "checked"
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RolledBackEntry:
    """A transaction was rolled back."""

    op: ClassVar = "rolled_back"
    id: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class SetAsideEntry:
    """A transaction was set aside for an operator to decide."""

    op: ClassVar = "set_aside"
    id: str
    topics: tuple[TopicRecord, ...] | None = None
    """In a bundle, those topics of its batches whose entries a power cut may lose."""


@dataclass(frozen=True, slots=True)
class CommittingEntry:
    """A large transaction is committed: the batches of the same bundle are some of its messages.

    A restart goes on with the commit, also where a power cut has lost other bundles of it.
    """

    op: ClassVar = "committing"
    id: str
    branches: Mapping[str, int]
    """The branches that belong to it, and the message count of each."""
    first_offset: int
    end_offset: int
    """The range of these messages, as of a `PublishedRange`."""
    held_from: HeldQueues
    """Where readers wait for its end."""
    topics: tuple[TopicRecord, ...]
    """Those topics of its batches whose entries a power cut may lose."""


@dataclass(frozen=True, slots=True)
class CommittedEntry:
    """A transaction was committed: the batches of the same bundle are its messages."""

    op: ClassVar = "committed"
    id: str
    at_ns: int
    topics: tuple[TopicRecord, ...]
    """Those topics of its batches whose entries a power cut may lose."""
    series: Series | None = None
    """Its number in a series; None for none."""


@dataclass(frozen=True, slots=True)
class UnknownTransactionEntry:
    """An entry whose op a later version has added: only its topics are used."""

    topics: tuple[TopicRecord, ...] = ()


TransactionEntry = (
    AllTransactionsEntry
    | BegunEntry
    | PreparedEntry
    | CheckedEntry
    | RolledBackEntry
    | SetAsideEntry
    | CommittingEntry
    | CommittedEntry
)

encode = codec.encode
"""The bytes of an entry."""


@overload
def decode(kind: Literal[RecordKind.TOPOLOGY], entry: bytes) -> TopologyEntry: ...
@overload
def decode(
    kind: Literal[RecordKind.TRANSACTION, RecordKind.BUNDLE], entry: bytes
) -> TransactionEntry | UnknownTransactionEntry: ...
@overload
def decode(kind: Literal[RecordKind.BATCH], entry: bytes) -> HalfBatchEntry: ...
def decode(kind: RecordKind, entry: bytes) -> Any:
    """Decode the entry in a record of a kind. Raises BadRecord, which names the op, the field and
    the wrong value.
    """
    if kind is RecordKind.TOPOLOGY:
        return codec.decode(entry, TopologyEntry)
    if kind is RecordKind.BATCH:
        return codec.decode(entry, HalfBatchEntry)
    return codec.decode(entry, TransactionEntry, UnknownTransactionEntry)


def json_of(entry: bytes) -> Any:
    """Return the JSON of an entry as stored, for people; without the bytes behind it."""
    return json.loads(entry.partition(codec.SEPARATOR)[0])


class CheckpointHead(NamedTuple):
    """The first entry of a checkpoint file, with the fields that no other snapshot has."""

    snapshot: SnapshotEntry
    position: int
    epoch: int
    indexes: Mapping[int, IndexRecord]


def checkpoint_head(loaded: Checkpoint) -> CheckpointHead:
    """Return the head of a checkpoint. Raises BadRecord."""
    entry = decode(RecordKind.TOPOLOGY, loaded.entries[0][2])
    match entry:
        case SnapshotEntry(position=int(position), epoch=int(epoch), indexes=Mapping() as indexes):
            return CheckpointHead(entry, position, epoch, indexes)
    raise BadRecord("a checkpoint that does not begin with a snapshot and its position")


def encode_retired(bases: Iterable[int]) -> bytes:
    """Encode the base positions of segments that nothing needs (RETIRED)."""
    return json.dumps(list(bases), separators=(",", ":")).encode()


def decode_retired(entry: bytes) -> list[int]:
    """Decode the base positions of segments that nothing needs."""
    return [int(base) for base in json.loads(entry)]


def encode_passed(damaged: Iterable[LogDamage]) -> bytes:
    """Encode the note of a start (EPOCH): the damaged ranges that it skipped."""
    stretches = [(damage.start, damage.end) for damage in damaged][-_MAX_PASSED:]
    return json.dumps(stretches, separators=(",", ":")).encode() if stretches else b""


def decode_passed(entry: bytes) -> list[tuple[int, int]]:
    """Decode the ranges in the note of a start."""
    return [(int(start), int(end)) for start, end in json.loads(entry)] if entry else []
