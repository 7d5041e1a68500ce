"""What a simulated cluster promised, and what must hold of it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from martlet.broker.journal.entries import decode_retired
from martlet.log.copy import CopiedLog
from martlet.log.record import BadRecord, RecordKind, payload, read_record
from martlet.log.segmented import SegmentedLog

if TYPE_CHECKING:
    from tests.simulation.node import Node

    from martlet.broker.broker import BrokerCore
    from martlet.broker.queue.queue_log import LogView
    from martlet.replica.replica_set import ReplicaSet


class Broken(AssertionError):
    """An invariant does not hold."""


class Oracle:
    """Remembers all that was confirmed, answered and seen, whatever becomes of the nodes."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        """The confirmed records, by position."""
        self.end_position = 0
        """Behind the last confirmed record."""
        self.primaries: dict[int, str] = {}
        """The process that was elected in each epoch."""
        self.bodies: dict[tuple[str, int], bytes] = {}
        """By topic and offset: what a consumer got."""
        self.answered: set[bytes] = set()
        """The bodies that were answered OK."""
        self.received: set[bytes] = set()
        """The bodies that a consumer got."""
        self._bases: set[int] = set()
        """The segments with confirmed records."""
        self._retired: set[int] = set()
        """The segments of which the confirmed log says that nothing needs them."""
        self._unanswered: dict[object, list[tuple[int, list[bytes]]]] = defaultdict(list)
        self.elections = self.confirmations = self.set_changes = self.followed_count = 0

    def replica_set_changed(self, before: ReplicaSet, after: ReplicaSet) -> None:
        """The document was swapped."""
        if after.epoch not in (before.epoch, before.epoch + 1):
            raise Broken(f"epoch {after.epoch} behind {before.epoch}")
        if after.epoch == before.epoch and after.primary != before.primary:
            raise Broken(f"epoch {after.epoch} has two primaries")
        self.set_changes += after.in_sync != before.in_sync

    def elected(self, node: Node, copy: CopiedLog, epoch: int) -> None:
        """A node begins an epoch with a log."""
        node.cluster.say(f"{node.address} begins epoch {epoch} at {copy.end_position}")
        self.elections += 1
        process = f"{node.address}, {node.instance}"
        other = self.primaries.setdefault(epoch, process)
        if other != process or epoch != node.replica.note.pledged:
            raise Broken(f"epoch {epoch} of {node.address}, where {self.primaries} were")
        if epoch < max(self.primaries):
            # A replica that looks late may begin an epoch after a later one has begun, without
            # what was confirmed in that. Those that are in sync have pledged to the later one:
            # the earlier confirms nothing but what both have, which `confirmed` compares.
            return
        if copy.end_position < self.end_position:
            raise Broken(
                f"{node.name} is elected with a log up to {copy.end_position}, and"
                f" {self.end_position} is confirmed"
            )
        self._compare(node, copy, 0, self.end_position)
        missing = self._bases - self._retired - {segment.base for segment in copy.segments}
        if missing:
            raise Broken(f"{node.name} is elected without the segments at {sorted(missing)}")

    def confirmed(self, node: Node, log: SegmentedLog, position: int) -> None:
        """A primary says that its log is confirmed up to a position."""
        self.confirmations += 1
        if node.replica.is_replaced:
            raise Broken(f"{node.address} confirms, and another process is {node.name}")
        self._compare(node, log, node.checked_position, position)
        node.checked_position = position
        self.end_position = max(self.end_position, position)
        waiting = self._unanswered[node.broker]
        while waiting and waiting[0][0] <= position:
            self.answered.update(waiting.pop(0)[1])

    def followed(self, node: Node, log: SegmentedLog, position: int) -> None:
        """A standby has taken in the log up to a position."""
        if position > node.checked_position:
            self.followed_count += 1
            if position > self.end_position:
                raise Broken(f"{node.name} has taken in {position}, which is not confirmed")
            self._compare(node, log, node.checked_position, position)
            node.checked_position = position

    def shown(self, node: Node, view: LogView) -> None:
        """A standby shows a log and its topics to readers."""
        for topic in view.all_topics():
            queue = topic.queue
            shown_queue, checked = node.shown.get(topic.id, (None, 0))
            start = checked if shown_queue is queue else 0
            if queue.visible_end < start:
                raise Broken(f"{node.name} takes back {topic.name} from {queue.visible_end} on")
            for row in queue.index.rows(queue.index.find(start), queue.index.end_row):
                record = view.log.view(row.position, row.length)
                if record is None:
                    continue  # Retired.
                header, _ = read_record(record, 0, row.position)
                if (header.topic, header.first_offset) != (topic.id, row.first_offset):
                    raise Broken(f"{node.name} shows another record in place of {row}")
                if header.next_position > min(self.end_position, view.visible_position):
                    raise Broken(f"{node.name} shows {row}, which is not confirmed")
            node.shown[topic.id] = queue, queue.visible_end

    def removed(self, node: Node, files: dict[int, bytearray]) -> None:
        """A node has removed segments with these bytes."""
        early = [
            base
            for base, data in files.items()
            if base in self.records
            and base not in self._retired
            and data[: len(self.records[base])] == self.records[base]
        ]
        if early:
            raise Broken(f"{node.name} has removed segments that may be needed: {sorted(early)}")

    def _compare(self, node: Node, log: SegmentedLog, start: int, end: int) -> None:
        """Compare a log with what is confirmed, and learn what is new."""
        segment = log.following(0)
        while segment is not None and segment.base < end:
            at = max(start, segment.base)
            while at < min(end, segment.base + segment.capacity):
                try:
                    header, record = read_record(segment.view, at - segment.base, at)
                except BadRecord as error:
                    if at in self.records:
                        raise Broken(f"{node.name} lacks a confirmed record: {error}") from None
                    behind = [stop for first, stop in log.damaged if first <= at < stop]
                    if not behind:
                        break
                    at = behind[0]
                    continue
                if header.kind == RecordKind.SEGMENT_END:
                    break
                data = bytes(record)
                if header.kind == RecordKind.RETIRED and end > self.end_position:
                    self._retired.update(decode_retired(bytes(payload(header, record))))
                if at not in self.records:
                    self._bases.add(segment.base)
                if self.records.setdefault(at, data) != data:
                    raise Broken(f"{node.name} has another record at {at}")
                at += len(data)
            segment = log.following(segment.base + 1)

    def published(
        self, node: Node, broker: BrokerCore, topic: str, bodies: list[bytes], position: int
    ) -> None:
        """A publisher waits for an answer."""
        self._unanswered[broker].append((position, bodies))

    def delivered(self, topic: str, offset: int, body: bytes) -> None:
        """A consumer got a message."""
        if self.bodies.setdefault((topic, offset), body) != body:
            raise Broken(f"{topic} {offset} is {body!r} and was {self.bodies[topic, offset]!r}")
        self.received.add(body)

    @property
    def lost(self) -> set[bytes]:
        """What was answered OK, and has not come."""
        return self.answered - self.received

    def end(self) -> None:
        """Nothing more happens: all that was answered has arrived."""
        if lost := sorted(self.lost):
            raise Broken(f"{len(lost)} messages were answered OK and are lost: {lost[:3]}")
