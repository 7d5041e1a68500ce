"""Retries and dead letters: whatever fails, crashes or is full, each message is where it belongs.

Random consumers take messages, finish, requeue or reject them, let their time run out and leave;
dead letters are brought back and purged; the disk is full for a while, the broker is killed or
loses its power.  What is checked:

- Always: what was promised to be stored is finished, or the channel has it, or it is a dead letter.
- A message comes again when its policy has it, with one attempt more, and never after its last
  failure; what a consumer cannot have started has not failed, and comes at once.
- It is a dead letter only after its last failure, or because a consumer has said so.
- Without a crash it is never in both places at once.
- Another channel of the topic gets every message once, and nothing that was brought back.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.broker.message_life import MessageLife
from tests.unit.broker.core import SECOND_NS, Client

from martlet.broker.channel.channel import Channel
from martlet.broker.channel.redelivery import held_by
from martlet.broker.dead_letters.dead_letter import CHANNEL
from martlet.broker.dead_letters.redrive import DeadLetter, letters, origin_of, purge, redrive
from martlet.broker.policy import ChannelPolicy
from martlet.broker.queue.peek import PeekedFrames, PeekState, peek
from martlet.broker.retry import DeadLetterReason
from martlet.log.record import FRAME_HEADER_BYTES

TIMEOUT_NS = 5 * SECOND_NS
DELAYS_NS = (SECOND_NS // 2, SECOND_NS)
MAX_FAILURES = 2
DEAD = "t.c.dead"


class Retried(MessageLife):
    """A broker with a channel that has a retry policy, and the known state of its messages."""

    def __init__(self, seed: int, *, sync: bool) -> None:
        super().__init__(seed, sync=sync)
        self.settled: set[bytes] = set()
        """Finished or purged: it need not be anywhere."""
        self.rejected: set[bytes] = set()
        self.clients: list[Client] = []
        self.seen: dict[Client, int] = {}
        self.held: dict[Client, list[int]] = {}
        self.attempts: dict[int, int] = {}
        """By offset: how often the channel has delivered it."""
        self.timed_out: set[Client] = set()
        self.failures: dict[int, int] = {}
        """By offset: how often it has failed."""
        self.lines: dict[Client, list[int]] = {}
        """By client: what was delivered to it, in order, which it has not answered."""
        self.reached: dict[Client, int] = {}
        """By client: how many of those were delivered before the last that it has answered."""
        self.not_before_ns: dict[int, int] = {}
        self.sibling: dict[bytes, set[int]] = {}
        self.core.channel("t")
        policy = ChannelPolicy(
            max_attempts=MAX_FAILURES,
            retry_delays_ms=tuple(delay_ns // 10**6 for delay_ns in DELAYS_NS),
        )
        self.core.broker.topic("t").configure_channel("c", policy)
        self.core.flush()
        self.begin()

    def begin(self) -> None:
        """Begin a life of the broker."""
        self.clients.clear()
        self.core.broker.transfers.waits_for_flush = self.sync
        self.channel = self.core.broker.topics["t"].channels["c"]
        self.other = self.core.client("t", "other").ready(1000)
        self.other_seen = 0
        for offset, message in self.channel.cursor.pending.by_offset.items():
            self.attempts[offset] = message.attempts
            self.failures[offset] = message.failures
            self.not_before_ns[offset] = message.due_ns

    # comparison

    @property
    def keeper(self) -> Channel | None:
        topic = self.core.broker.topics.get(DEAD)
        return None if topic is None else topic.channels.get(CHANNEL)

    @staticmethod
    def bodies(channel: Channel | None) -> list[bytes]:
        """Of all that a channel has yet to finish."""
        if channel is None:
            return []
        frames = PeekedFrames(channel.cursor)
        messages = [
            frames.read(peeked.offset) for peeked in peek(channel, 0, 1 << 20, list(PeekState))
        ]
        return [bytes(read[1][FRAME_HEADER_BYTES:]) for read in messages if read is not None]

    def check(self) -> None:
        """Look at what was delivered, and where all is."""
        self._look()
        super().check()
        alive, dead = self.bodies(self.channel), self.bodies(self.keeper)
        lost = self.promised - self.settled - set(alive) - set(dead)
        assert not lost, f"lost: {sorted(lost)}"
        if not self.crashed and not self.core.broker.transfers:
            both = alive + dead
            assert len(both) == len(set(both))
        for letter in self.letters():
            failures = int(letter.note("failures"))
            assert failures >= MAX_FAILURES or letter.body in self.rejected

    def _look(self) -> None:
        now_ns = self.core.clock.now_ns
        for client in self.clients:
            for number in range(self.seen[client], len(client.got)):
                offset, attempts = client.offset(number), client.got[number].attempts
                assert attempts == self.attempts.get(offset, 0) + 1
                assert self.failures.get(offset, 0) < MAX_FAILURES or self.crashed
                assert now_ns >= self.not_before_ns.get(offset, 0)
                self.attempts[offset] = attempts
                self.held[client].append(number)
                self.lines[client].append(offset)
            self.seen[client] = len(client.got)
        for number in range(self.other_seen, len(self.other.got)):
            self.sibling.setdefault(self.other.got[number].body, set()).add(
                self.other.offset(number)
            )
            self.other.finish(number)
        self.other_seen = len(self.other.got)
        assert all(len(offsets) == 1 for offsets in self.sibling.values())

    def letters(self) -> list[DeadLetter]:
        keeper = self.keeper
        return [] if keeper is None else letters(keeper, 0, 1 << 20)[0]

    # what happens

    def publish(self) -> None:
        topic = self.core.broker.topic("t")
        for _ in range(self.random.choice([1, 1, 3])):
            body = self.body()
            self.published[body] = topic.stage([body])
        self.core.broker.commit()

    def subscribe(self) -> None:
        if len(self.clients) < 3:
            client = self.core.client("t", timeout_ns=TIMEOUT_NS)
            self.clients.append(client)
            self.seen[client], self.held[client] = 0, []
            self.lines[client], self.reached[client] = [], 0
            client.ready(self.random.choice([1, 2, 5]))

    def pick(self) -> tuple[Client, int] | None:
        some = [(client, number) for client in self.clients for number in self.held[client]]
        if not some:
            return None
        client, number = self.random.choice(some)
        self.held[client].remove(number)
        self.answered(client, client.offset(number))
        return client, number

    def answered(self, client: Client, offset: int) -> None:
        index = self.lines[client].index(offset)
        self.lines[client].remove(offset)
        self.reached[client] = max(self.reached[client] - (self.reached[client] > index), index)

    def finish(self) -> None:
        if (picked := self.pick()) is not None:
            client, number = picked
            self.settled.add(client.got[number].body)
            client.finish(number)

    def requeue(self) -> None:
        if (picked := self.pick()) is not None:
            client, number = picked
            asked_ns = self.random.choice([0, 0, 2 * SECOND_NS])
            self.failed(client.offset(number), asked_ns)
            error = self.random.choice(["", "first", "second"])
            self.channel.requeue(client.consumer, client.offset(number), asked_ns, error)

    def failed(self, offset: int, asked_ns: int = 0) -> None:
        failures = self.failures[offset] = self.failures.get(offset, 0) + 1
        delay_ns = asked_ns or DELAYS_NS[min(failures, len(DELAYS_NS)) - 1]
        self.not_before_ns[offset] = self.core.clock.now_ns + delay_ns
        if failures >= MAX_FAILURES:
            self.not_before_ns[offset] = 1 << 62

    def reject(self) -> None:
        if (picked := self.pick()) is not None:
            client, number = picked
            self.rejected.add(client.got[number].body)
            self.not_before_ns[client.offset(number)] = 1 << 62
            self.channel.reject(client.consumer, client.offset(number), DeadLetterReason.REJECTED)

    def wait(self) -> None:
        for client in self.clients:
            client.ready(0)  # What comes again is seen apart from what has timed out.
        self.check()
        self.core.wait(self.random.choice([0, SECOND_NS, SECOND_NS, TIMEOUT_NS]))
        for client, line in self.lines.items():
            held = {offset for (_, offset), _ in held_by(self.channel, client.consumer)}
            late = [offset for offset in line if offset not in held]
            if late:
                self.timed_out.add(client)
                self.reached[client] = sum(o in held for o in line[: self.reached[client]])
                self.lines[client] = [offset for offset in line if offset in held]
                self.held[client] = [n for n in self.held[client] if client.offset(n) in held]
                self.charge(late)
        for client in self.clients:
            client.ready(self.random.choice([1, 2, 5]))

    def leave(self) -> None:
        if self.clients:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            line, reached = self.lines.pop(client), self.reached.pop(client)
            self.held.pop(client)
            client.leave()
            charged = self.charge(line, lost=True)
            started = set(line[: reached + 1])
            assert charged <= started
            assert client in self.timed_out or charged == started

    def charge(self, line: list[int], *, lost: bool = False) -> set[int]:
        """Return the messages charged with a failure; the others come again at once."""
        pending = self.channel.cursor.pending.by_offset
        charged = set()
        for offset in line:
            before = self.failures.get(offset, 0)
            # What has failed for the last time may be with the dead letters already.
            now = pending[offset].failures if offset in pending else MAX_FAILURES
            assert now - before in (0, 1)
            if now == before:
                self.not_before_ns.pop(offset, None)
                continue
            charged.add(offset)
            self.failed(offset)
            if lost and now == 1 < MAX_FAILURES:
                self.not_before_ns.pop(offset)
        return charged

    def redrive(self) -> None:
        waiting = [letter for letter in self.letters() if letter.state is not PeekState.IN_FLIGHT]
        if waiting:
            letter = self.random.choice(waiting)
            part, only = origin_of(self.core.broker, letter)
            redrive(self.core.broker.transfers, letter, lambda: part, only, lambda error: None)

    def purge(self) -> None:
        waiting = [letter for letter in self.letters() if letter.state is not PeekState.IN_FLIGHT]
        if waiting:
            letter = self.random.choice(waiting)
            self.settled.add(letter.body)
            purge(letter)

    def crash(self, *, power: bool) -> None:
        self.check()
        self.make_room()
        if power:
            self.lose_power()
        self.crashed = True
        self.held.clear()
        self.core.kill(power=power)
        self.sibling.clear()
        self.attempts.clear()
        self.failures.clear()
        self.lines.clear()
        self.reached.clear()
        self.not_before_ns.clear()
        self.begin()

    def kill(self) -> None:
        self.crash(power=False)

    def cut_power(self) -> None:
        if self.random.random() < 0.7:
            self.journal()
        self.crash(power=self.sync)

    def drain(self) -> None:
        """In the end each message is finished, here or as a dead letter."""
        self.make_room()
        for client in self.clients:
            client.leave()
        self.clients.clear()
        last = self.core.client("t", timeout_ns=1 << 60).ready(1 << 20)
        for _ in range(12):
            self.core.wait(SECOND_NS)
            self.flush()
        got = set(last.bodies)
        keeper = self.keeper
        if keeper is not None:
            got |= set(self.core.client(DEAD, CHANNEL, timeout_ns=1 << 60).ready(1 << 20).bodies)
        missing = self.promised - self.settled - got
        assert not missing, f"never delivered: {sorted(missing)}"
        assert not self.core.broker.transfers
        assert self.channel.depth == self.channel.deferred_count == 0


STEPS = [
    *["publish"] * 3,
    *["subscribe"] * 2,
    "finish",
    *["requeue"] * 8,
    *["wait"] * 6,
    "reject",
    "leave",
    "redrive",
    "redrive",
    "purge",
    "flush",
    "checkpoint",
    "journal",
    "fill",
    "make_room",
    "kill",
    *["cut_power"] * 2,
]
steps = st.lists(st.sampled_from(STEPS), min_size=20, max_size=80)


@settings(max_examples=120, derandomize=True)
@given(steps, st.integers(0, 1 << 16), st.booleans())
def test_each_message_is_where_it_belongs(steps: list[str], seed: int, sync: bool) -> None:
    Retried(seed, sync=sync).live(steps)


@pytest.mark.slow
@settings(max_examples=5000)
@given(steps, st.integers(0, 1 << 16), st.booleans())
def test_each_message_is_where_it_belongs_for_long(steps: list[str], seed: int, sync: bool) -> None:
    Retried(seed, sync=sync).live(steps)
