"""The audit of one queue, from the facts of all segments.

The log records the offsets that were stored, the cursor of each channel, and its counters.  The
losses follow from that::

    offsets       0 .... 40 .... 90 .... 150 .... 180 ... 200
    stored               | x x x |  xxxx  |      | x x x |
    removed       ------>|                |      |           retention removed these segments
    finished      ----------------------->|           needs [150, 200): it has lost [150, 180)
    contiguous                   |  xxxx  |                  no segment between was removed: lost

``docs/pipelines/audit.md`` says what counts as lost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from martlet.broker.offset_ranges import Stretch, apart_from, with_stretch
from martlet.broker.tracing.counters import COUNTS, FIRST_BUCKET, ChannelCount
from martlet.names import is_ephemeral, is_system
from martlet.pipeline.audit.coverage import Extent, LogRange
from martlet.pipeline.audit.facts import Fact, FactKind
from martlet.pipeline.audit.journal import HOUR_NS
from martlet.pipeline.audit.result import EARLIER, CountLine, Finding

_MAX_STRETCHES = 100
"""The ranges of one loss to report; the count has all."""


@dataclass(frozen=True)
class _Channel:
    """The last known state of a channel."""

    id: int
    name: str
    state: dict[str, Any]


class QueueAudit:
    """Computes the counts and findings of one queue."""

    def __init__(self, extent: Extent, facts: Sequence[Fact]) -> None:
        self._extent = extent
        self._facts = sorted(facts, key=lambda fact: (fact.position, fact.kind))
        runs = self._of(FactKind.RUN)
        self._runs = [run for run in runs if not run.moved]
        self._copies = [run for run in runs if run.moved]
        self._states = [
            (fact.segment, json.loads(fact.payload)) for fact in self._of(FactKind.STATE)
        ]
        self._names: dict[int, str] = {}
        self.lines: dict[tuple[str, int], CountLine] = {}
        self.findings: list[Finding] = []
        self.topic, self.queue = "", 0
        if self._states:
            self._read()

    def _of(self, kind: FactKind) -> list[Fact]:
        return [fact for fact in self._facts if fact.kind == kind]

    def _read(self) -> None:
        newest = self._states[-1][1]
        self.topic, self.queue = newest["name"], newest["queue"]
        for _, state in self._states:
            for channel_id, entry in state["channels"].items():
                if entry["name"]:
                    self._names[int(channel_id)] = entry["name"]
        self._strangers()
        stored: list[Stretch] = []
        for run in sorted([*self._runs, *self._copies], key=lambda run: run.first):
            stored = _joined(stored, run.first, run.end)
        if is_system(self.topic):
            self._judge_needed(stored)
            return
        self._published(stored)
        for channel in self._names:
            self._accounts(channel)
        self._doubled()
        self._finish_gaps()
        self._judge(stored)

    def _line(self, channel: str, hour: int) -> CountLine:
        line = self.lines.get((channel, hour))
        if line is None:
            line = self.lines[channel, hour] = CountLine(self.topic, channel, hour)
        return line

    def _published(self, stored: list[Stretch]) -> None:
        covered: list[Stretch] = []
        for run in sorted(self._runs, key=lambda run: run.first):
            if not run.only:
                self._publish(run, run.messages)
            covered = _joined(covered, run.first, run.end)
        for run in self._copies:
            # A copy counts if the segment of the original was removed.
            messages = sum(end - first for first, end in apart_from(covered, run.first, run.end))
            if messages and not run.only:
                self._publish(run, messages)
            covered = with_stretch(covered, run.first, run.end)

    def _publish(self, run: Fact, messages: int) -> None:
        counts = self._line("", run.since_ns // HOUR_NS).counts
        counts["published"] += messages
        counts["bytes"] += run.body_bytes * messages // run.messages

    def _accounts(self, channel: int) -> None:
        before: dict[int, npt.NDArray[np.int64]] = {}
        for fact in self._of(FactKind.ACCOUNT):
            if fact.only != channel:
                continue
            counts = np.frombuffer(fact.payload, "<i8")
            hour = fact.since_ns // HOUR_NS
            if fact.epoch not in before:
                before[fact.epoch] = np.zeros(COUNTS, np.int64)
                if self._began_before(fact.epoch, fact.position):
                    hour = EARLIER
            self._done(self._line(self._names[channel], hour), counts - before[fact.epoch])
            before[fact.epoch] = counts

    def _began_before(self, epoch: int, position: int) -> bool:
        """Return whether a part of an epoch before a position was removed."""
        began = self._extent.epochs.get(epoch)
        return began is None or self._extent.was_removed(began, position)

    @staticmethod
    def _done(line: CountLine, counts: npt.NDArray[np.int64]) -> None:
        for count in ChannelCount:
            line.counts[count.name.lower()] += int(counts[count])
        line.buckets += counts[FIRST_BUCKET:]
        without_age = counts[[ChannelCount.COMMITTED, ChannelCount.FILTERED]]
        line.counts["finished"] += int(counts[FIRST_BUCKET:].sum() + without_age.sum())

    def _strangers(self) -> None:
        """Check that all segments have the same topic and id base for the queue's number."""
        usual: dict[str, set[int]] = {}
        for segment, state in self._states:
            who = f"topic {state['name']!r} with ids from {state['id_base']}"
            usual.setdefault(who, set()).add(-1 if state["checkpoint"] else segment)
        own = max(usual, key=lambda who: len(usual[who]))
        for who, segments in usual.items():
            if who == own:
                continue
            others = f"the others say {own}: files of two brokers are mixed"
            for segment in sorted(segments):
                at, what = max(segment, 0), "the checkpoint" if segment < 0 else "it"
                damage = LogRange(segment, at, at, f"{what} tells of {who}; {others}")
                self._find("damage", [], [damage], text="these are of another log")

    def _doubled(self) -> None:
        end, last = -1, None
        for run in sorted(self._runs, key=lambda run: (run.first, run.position)):
            if last is not None and run.first < end:
                again = min(run.end, end) - run.first
                self._line("", run.since_ns // HOUR_NS).counts["doubled"] += again
                repeated = LogRange(
                    self._extent.base_of(run.position), run.position, run.end_position,
                    f"stored before at position {last.position}",
                )  # fmt: skip
                self._find("doubled", [(run.first, min(run.end, end))], [repeated])
            if run.end > end:
                end, last = run.end, run

    def _finish_gaps(self) -> None:
        for fact in self._of(FactKind.GAP):
            self._finish_gap(json.loads(fact.payload))
        last: dict[str, tuple[int, dict[str, Any]]] = {}
        by_segment = [entry for entry in self._states if not entry[1]["checkpoint"]]
        for segment, state in by_segment:
            for channel_id, entry in state["channels"].items():
                if channel_id in last and not entry["made"]:
                    self._continued(
                        int(channel_id), *last[channel_id], segment, entry, entry["first_number"]
                    )
                if entry["known"] or channel_id not in last:
                    last[channel_id] = segment, entry
        for segment, state in self._states:
            before = [entry for base, entry in by_segment if base == segment]
            if state["checkpoint"] and before:
                for channel_id, entry in state["channels"].items():
                    channel = before[0]["channels"].get(channel_id)
                    if channel is not None:
                        position = state["position"]
                        self._continued(
                            int(channel_id), segment, channel, position, entry, entry["number"]
                        )

    def _continued(
        self,
        channel_id: int,
        segment: int,
        before: dict[str, Any],
        position: int,
        entry: dict[str, Any],
        number: int,
    ) -> None:
        """Check that a channel's finish records reach up to its next snapshot."""
        missing = number - before["number"]
        let_go = self._extent.was_removed(segment, position)
        if missing <= 0 or let_go or not (before["known"] and entry["known"]):
            return
        gap = {
            "channel": channel_id,
            "missing": missing,
            "since": before["position"],
            "position": max(position, before["position"]),
            "first": min([before["next"], *(first for first, _ in before["ranges"])]),
            "end": entry["next"],
        }
        self._finish_gap(gap)

    def _finish_gap(self, gap: dict[str, Any]) -> None:
        since, until = gap["since"], gap["position"]
        if self._extent.is_torn(since, until + 1):
            return  # The record was not durable; its messages are redelivered.
        places = self._extent.lost_ranges(since, until + 1) or [self._between(since, until)]
        first, end = gap["first"], max(gap["first"], gap["end"])
        text = (
            f"{gap['missing']} finish records are missing; they say what was finished of these"
            " offsets and of older ones that had failed"
        )
        channel = self._names.get(gap["channel"], "")
        self._find("finish", [(first, end)], places, gap["missing"], text=text, channel=channel)

    def _judge(self, stored: list[Stretch]) -> None:
        """Find the offsets of the queue that should exist and do not."""
        state = self._newest()
        end = max([state["end"], state["backlog"], *(run.end for run in self._runs)])
        channels = self._channels()
        for channel in channels:
            end = max(end, channel.state["next"])
        is_there = self._is_there()
        voids = [tuple(void) for void in state["voids"]]
        absent = [
            missing
            for first, stop in apart_from(stored, 0, end)
            for missing in apart_from(voids, first, stop)
        ]
        earlier = 0
        for gap in absent:
            since, until = self._bracket(gap)
            unfinished = {
                channel.name: needed
                for channel in channels
                if (needed := _needed(channel, gap, end))
            }
            if not channels and is_there:
                waiting = gap[1] - max(gap[0], state["backlog"])
                unfinished |= {"": waiting} if waiting > 0 else {}
            let_go = since is None or until is None or self._extent.was_removed(since, until)
            if not is_there:
                unfinished = {}
            if is_ephemeral(self.topic) or (let_go and not unfinished):
                earlier += gap[1] - gap[0]
                continue
            if let_go and self._extent.gone:
                continue  # The messages may have been finished after the journal was read.
            self._lose(gap, unfinished, since, until, all_of_it=not let_go)
        if earlier and not is_ephemeral(self.topic):
            self._line("", EARLIER).counts["published"] += earlier
        for channel in channels:
            last_hour = max((hour for _, hour in self.lines), default=EARLIER)
            self._line(channel.name, last_hour).counts["open"] += self._open(channel, end, voids)

    def _lose(
        self,
        gap: Stretch,
        unfinished: dict[str, int],
        since: int | None,
        until: int | None,
        *,
        all_of_it: bool,
    ) -> None:
        hour = self._hour_near(gap)
        count = gap[1] - gap[0] if all_of_it else max(unfinished.values())
        self._line("", hour).counts["lost"] += count
        self._line("", hour).counts["published"] += count
        for channel, lost in unfinished.items():
            if channel:
                self._line(channel, hour).counts["lost"] += lost
        extent = self._extent
        start, end = since or 0, extent.end if until is None else until
        places = (
            extent.lost_ranges(start, end) or extent.gap(start, end) or [self._between(start, end)]
        )
        self._find("lost", [gap], places, count, unfinished)

    def _judge_needed(self, stored: list[Stretch]) -> None:
        """Check that the messages of a system topic that the checkpoint needs exist."""
        what = "delayed messages" if self._newest()["delayed"] else "messages of transactions"
        for fact in self._of(FactKind.NEEDED):
            needed = json.loads(fact.payload)
            lost: list[Stretch] = [
                missing for first, end in needed for missing in apart_from(stored, first, end)
            ]
            if self._extent.gone:
                continue
            places: list[LogRange] = []
            taken: list[Stretch] = []
            for missing in lost:
                since, until = self._bracket(missing)
                start, stop = since or 0, self._extent.end if until is None else until
                ranges = self._extent.lost_ranges(start, stop)
                if ranges or not self._extent.was_removed(start, stop):
                    # Otherwise the broker removed it on a full disk, after the checkpoint.
                    taken.append(missing)
                    ranges = ranges or [self._between(start, stop)]
                    places += [lost_range for lost_range in ranges if lost_range not in places]
            if taken:
                self._find("lost", taken, places, text=what)

    def _find(
        self,
        kind: str,
        stretches: list[Stretch],
        places: Sequence[LogRange],
        count: int | None = None,
        unfinished: dict[str, int] | None = None,
        text: str = "",
        channel: str = "",
    ) -> None:
        if count is None:
            count = sum(end - first for first, end in stretches)
        self.findings.append(
            Finding(
                kind, self._extent.broker, self.topic, self.queue, channel,
                stretches[:_MAX_STRETCHES], count, unfinished or {}, places, text,
            )
        )  # fmt: skip

    def _between(self, start: int, end: int) -> LogRange:
        return LogRange(self._extent.base_of(start), start, end, "between these positions")

    def _open(self, channel: _Channel, end: int, voids: list[Stretch]) -> int:
        """Count the messages that a channel has not finished."""
        skipped = list(voids)
        for void in channel.state["voids"]:
            skipped = with_stretch(skipped, *void)
        for run in [*self._runs, *self._copies]:
            if run.only not in (0, channel.id):
                skipped = with_stretch(skipped, run.first, run.end)
        ahead = sum(b - a for a, b in apart_from(skipped, channel.state["next"], end))
        return ahead + _needed(channel, (0, channel.state["next"]), channel.state["next"])

    def _newest(self) -> dict[str, Any]:
        newest: dict[str, Any] = max(
            (state for _, state in self._states), key=lambda state: state["position"]
        )
        return newest

    def _last_state(self) -> dict[str, Any]:
        """Return the state in the last segment, or in a checkpoint beyond the log's end."""
        state: dict[str, Any]
        _, state = max(
            self._states,
            key=lambda entry: (
                not entry[1]["checkpoint"] or entry[1]["position"] > self._extent.written_end,
                entry[1]["position"] if entry[1]["checkpoint"] else entry[0],
            ),
        )
        return state

    def _is_there(self) -> bool:
        """Return whether the topic exists at the log's end: it is in the newest snapshot."""
        if self._of(FactKind.DELETED):
            return False
        return max(segment for segment, _ in self._states) >= self._extent.newest_head

    def _channels(self) -> list[_Channel]:
        if not self._is_there() or is_ephemeral(self.topic):
            return []
        there: dict[str, dict[str, Any]] = {}
        for _, state in self._states:
            for channel_id, entry in state["channels"].items():
                if channel_id not in there or _newness(entry) > _newness(there[channel_id]):
                    there[channel_id] = entry
        kept = self._last_state()["channels"]
        return [
            _Channel(int(channel_id), self._names[int(channel_id)], entry)
            for channel_id, entry in there.items()
            if channel_id in kept and not is_ephemeral(self._names.get(int(channel_id), ""))
        ]

    def _bracket(self, gap: Stretch) -> tuple[int | None, int | None]:
        """Return the positions between which a gap's messages were stored; None for unknown."""
        before, behind = self._neighbours(gap)
        made_at = next((s["made_at"] for _, s in self._states if s["made_at"] is not None), None)
        if made_at is None and self._extent.start == 0:
            made_at = 0  # The log still has its first segment.
        since = max((run.end_position for run in before), default=made_at)
        until: int | None = min((run.position for run in behind), default=None)
        if until is None:
            until = max([since or 0, *(state["position"] for _, state in self._states)])
        return since, until

    def _neighbours(self, gap: Stretch) -> tuple[list[Fact], list[Fact]]:
        before = [run for run in self._runs if run.end <= gap[0]]
        return before, [run for run in self._runs if run.first >= gap[1]]

    def _hour_near(self, gap: Stretch) -> int:
        before, behind = self._neighbours(gap)
        if before:
            return max(before, key=lambda run: run.end).until_ns // HOUR_NS
        if behind:
            return min(behind, key=lambda run: run.first).since_ns // HOUR_NS
        return EARLIER


def _newness(entry: dict[str, Any]) -> tuple[bool, int, int]:
    return entry["known"], entry["number"], entry["position"]


def _joined(stretches: list[Stretch], first: int, end: int) -> list[Stretch]:
    """Add a range that begins after the start of the last one; merge the two if they touch."""
    if stretches and first <= stretches[-1][1]:
        stretches[-1] = stretches[-1][0], max(stretches[-1][1], end)
    else:
        stretches.append((first, end))
    return stretches


def _needed(channel: _Channel, gap: Stretch, end: int) -> int:
    """Count the offsets of a gap that a channel has not finished."""
    entry = channel.state
    first, stop = gap
    voids = [tuple(void) for void in entry["voids"]]
    ahead = max(first, entry["next"]), min(stop, end)
    count = sum(b - a for a, b in apart_from(voids, *ahead)) if ahead[0] < ahead[1] else 0
    held: set[int] = set()
    for begin, behind in entry["ranges"]:
        held.update(range(max(begin, first), min(behind, stop)))
    held.update(offset for offset in entry["stragglers"] if first <= offset < stop)
    return count + sum(1 for offset in held if offset < entry["next"])
