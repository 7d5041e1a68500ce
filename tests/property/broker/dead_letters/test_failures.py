"""Poison among healthy messages: what ends its client becomes a dead letter, and nothing else does.

Random lives of clients on a simulated clock.  A client is lost as soon as it has a poison in a
handler; a healthy message is always finished when it is handled, but may wait, time out while it
waits, be given back, and be at work beside a poison.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.core import SECOND_NS, Client, Core

from martlet.broker.channel.redelivery import held_by

TIMEOUT_NS = 10 * SECOND_NS
POISON = b"poison"


class Program:
    """A program with a client: it handles messages in the order in which they came.

    Args:
        concurrency: how many are in handlers at once.
        says_started: whether it is a Martlet, which handles suspects alone.
    """

    def __init__(self, core: Core, ready: int, concurrency: int, *, says_started: bool) -> None:
        self.core = core
        self.concurrency = concurrency
        self.says_started = says_started
        self.client: Client = core.client("t", timeout_ns=TIMEOUT_NS, says_started=says_started)
        self.at_work: list[int] = []
        self.line: list[int] = []
        self.bodies: dict[int, bytes] = {}
        self.seen = 0
        self.is_alone = False
        self.client.ready(ready)

    def look(self) -> None:
        """See what has come, and what has timed out while it waited."""
        for number in range(self.seen, len(self.client.got)):
            offset = self.client.offset(number)
            if offset in self.line:
                self.line.remove(offset)  # Its time had run out.
            self.line.append(offset)
            self.bodies[offset] = self.client.got[number].body
        self.seen = len(self.client.got)
        channel = self.client.channel
        held = {offset for (_, offset), _ in held_by(channel, self.client.consumer)}
        self.line = [offset for offset in self.line if offset in held]

    def is_suspect(self, offset: int) -> bool:
        pending = self.client.channel.cursor.pending.by_offset.get(offset)
        return pending is not None and pending.is_suspect

    def begin(self, max_count: int) -> bool:
        """Begin with a run of what waits. Returns whether that ends the program."""
        self.look()
        begun: list[int] = []
        while self.line and not self.is_alone and max_count > len(begun):
            if len(self.at_work) == self.concurrency:
                break
            if self.says_started and self.is_suspect(self.line[0]):
                if self.at_work:
                    break
                self.is_alone = True
            begun.append(self.line.pop(0))
            self.at_work.append(begun[-1])
        if begun and self.says_started:
            self.client.channel.started(self.client.consumer, begun[-1])
        if any(self.bodies[offset].startswith(POISON) for offset in begun):
            self.client.leave()
            return True
        return False

    def end(self, at: int) -> None:
        """A handler has done with its message."""
        if self.at_work:
            offset = self.at_work.pop(at % len(self.at_work))
            self.client.channel.finish(self.client.consumer, offset)
            self.is_alone = False

    def touch(self) -> None:
        for offset in self.at_work:
            self.client.channel.touch(self.client.consumer, offset)

    def give_back(self, count: int) -> None:
        """Give the last waiting messages back; a Martlet client is not charged."""
        self.look()
        late = self.line[len(self.line) - count :]
        self.line = self.line[: len(self.line) - len(late)]
        self.client.ready(len(self.at_work))
        self.client.channel.give_back(self.client.consumer, late)
        self.client.ready(self.concurrency + 5)

    def stop(self) -> None:
        while self.at_work:
            self.end(0)
        self.look()
        self.client.ready(0)
        if self.says_started:
            self.client.channel.give_back(self.client.consumer, self.line)
        self.client.consumer.progress.takes_no_more = True
        self.client.leave()


class Lives:
    """A broker, and programs that come and go."""

    def __init__(self, seed: int, max_attempts: int, *, says_started: bool) -> None:
        self.random = Random(seed)
        self.says_started = says_started
        self.max_attempts = max_attempts
        self.core = Core(segment_bytes=1 << 20)
        self.core.configure(max_attempts=max_attempts, retry_delays_ms=[100, 1000])
        self.programs: list[Program] = []
        self.lost_count = 0
        self.restart_count = 0
        self.poison: set[bytes] = set()
        self.count = 0

    def publish(self) -> None:
        for _ in range(self.random.choice([1, 3, 8])):
            self.count += 1
            is_poison = self.random.random() < 0.1
            body = b"%s %d" % (POISON if is_poison else b"healthy", self.count)
            if is_poison:
                self.poison.add(body)
            self.core.publish("t", body)

    def begin_program(self) -> None:
        if len(self.programs) < 3:
            concurrency = self.random.choice([1, 1, 4]) if self.says_started else 1
            ready = self.random.choice([1, 5, 30])
            self.programs.append(
                Program(self.core, ready, concurrency, says_started=self.says_started)
            )

    def work(self) -> None:
        for program in list(self.programs):
            if program.begin(self.random.choice([1, 3, 30])):
                self.programs.remove(program)
                self.lost_count += 1

    def end(self) -> None:
        for program in self.programs:
            for _ in range(self.random.choice([1, 1, 5])):
                program.end(self.random.randrange(100) if self.says_started else 0)

    def wait(self) -> None:
        for program in self.programs:
            program.touch()
        max_ns = TIMEOUT_NS - 1 if self.says_started else SECOND_NS // 10
        self.core.wait(self.random.choice([SECOND_NS // 10, max_ns]))

    def give_back(self) -> None:
        if self.says_started and self.programs:
            self.random.choice(self.programs).give_back(self.random.choice([1, 5]))

    def stop(self) -> None:
        if self.programs:
            self.programs.pop(self.random.randrange(len(self.programs))).stop()

    def restart(self) -> None:
        self.core.broker.write_journal()
        self.restart_count += 1
        self.programs.clear()
        self.core.kill()

    def dead(self) -> list[bytes]:
        is_any = len(self.core.broker.topics) > 1
        return [body for body, _ in self.core.dead_letters()] if is_any else []

    def drain(self) -> None:
        """All is handled in the end, after as many losses as the poison may cost."""
        # What was on its way to the dead letters when the broker was killed is alive again.
        failures = max(2, self.max_attempts) + 2 * self.restart_count
        bound = len(self.poison) * failures
        channel = self.core.channel("t")
        for _ in range(100 * (bound + self.count + 1)):
            if not (channel.depth or channel.in_flight_count or channel.deferred_count):
                break
            self.begin_program()
            self.work()
            self.end()
            self.wait()
        else:
            raise AssertionError("something comes again for ever")
        for program in self.programs:
            program.stop()
        assert self.lost_count <= bound
        assert sorted(self.dead()) == sorted(self.poison)


STEPS = [
    *["publish"] * 3,
    *["begin_program"] * 3,
    *["work"] * 6,
    *["end"] * 5,
    *["wait"] * 2,
    "give_back",
    "stop",
    "restart",
]
steps = st.lists(st.sampled_from(STEPS), min_size=10, max_size=40)


@settings(max_examples=40, derandomize=True)
@given(steps, st.integers(0, 1 << 16), st.integers(1, 4))
def test_with_clients_that_report_starts_only_poison_is_dead(
    steps: list[str], seed: int, max_attempts: int
) -> None:
    lives = Lives(seed, max_attempts, says_started=True)
    for step in ["publish", "begin_program", *steps]:
        getattr(lives, step)()
    lives.drain()


@settings(max_examples=25, derandomize=True)
@given(steps, st.integers(0, 1 << 16), st.integers(1, 4))
def test_with_clients_of_nsq_that_handle_one_after_the_other_too(
    steps: list[str], seed: int, max_attempts: int
) -> None:
    lives = Lives(seed, max_attempts, says_started=False)
    for step in ["publish", "begin_program", *steps]:
        getattr(lives, step)()
    lives.drain()
