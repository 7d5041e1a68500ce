"""Whatever a broker is asked to do, and however often it is killed, its log audits clean."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core
from tests.unit.pipeline.audited import Files

from martlet.broker.errors import NotInFlight
from martlet.broker.policy import ChannelPolicy
from martlet.broker.retention.history import Retention

TOPICS = ("t", "u", "e#ephemeral")
CHANNELS = ("a", "b", "c#ephemeral")
STEPS = 150


class Life:
    """A broker that does what chance wants of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        kept = self.random.random() < 0.3
        retention = Retention(SECOND_NS * self.random.randrange(1, 1000))
        self.core = Core(retention=retention) if kept else Core()
        self.clients: list[Client] = []

    def step(self) -> None:
        steps = {
            self.publish: 30, self.subscribe: 10, self.answer: 25, self.wait: 10,
            self.journal: 7, self.checkpoint: 5, self.leave: 3, self.kill: 2, self.stop: 1,
            self.empty: 2, self.delete: 1, self.pause: 1, self.retry: 1, self.grow: 1,
        }  # fmt: skip
        self.random.choices(list(steps), list(steps.values()))[0]()

    def publish(self) -> None:
        some = self.random.randrange
        delay_ns = some(1, 5) * SECOND_NS if some(10) == 0 else 0
        bodies = [b"x" * some(1, 300) for _ in range(some(1, 8))]
        self.core.publish(self.random.choice(TOPICS), *bodies, delay_ns=delay_ns)

    def subscribe(self) -> None:
        some = self.random.randrange
        topic, channel = self.random.choice(TOPICS), self.random.choice(CHANNELS)
        client = self.core.client(topic, channel, timeout_ns=some(1, 10) * SECOND_NS)
        self.clients.append(client.ready(some(1, 20)))

    def client(self) -> Client | None:
        self.clients = [c for c in self.clients if not (c.closed or c.channel.closed)]
        return self.random.choice(self.clients) if self.clients else None

    def answer(self) -> None:
        client = self.client()
        if client is None:
            return
        for number in range(len(client.got)):
            with suppress(NotInFlight):
                how = self.random.random()
                if how < 0.5:
                    client.finish(number)
                elif how < 0.55:
                    client.requeue(number, self.random.choice([0, SECOND_NS]))
                elif how < 0.58:
                    client.touch(number)
        client.got = [got for got in client.got if self.random.random() < 0.3]

    def wait(self) -> None:
        self.core.wait(self.random.randrange(1, 3000) * 10**6)

    def journal(self) -> None:
        self.core.broker.write_journal()

    def checkpoint(self) -> None:
        self.core.checkpoint()

    def leave(self) -> None:
        client = self.client()
        if client is not None:
            self.clients.remove(client)
            if client.consumer in client.channel.consumers:  # and does not stand at several queues
                client.leave()

    def kill(self) -> None:
        self.core.kill()
        self.clients.clear()

    def stop(self) -> None:
        self.core.stop()
        self.clients.clear()

    def empty(self) -> None:
        topic = self.core.broker.topics.get(self.random.choice(TOPICS))
        if topic is None:
            return
        if topic.channels and self.random.random() < 0.5:
            self.core.broker.empty_channel(topic, self.random.choice(list(topic.channels)))
        else:
            self.core.broker.empty_topic(topic.name)

    def delete(self) -> None:
        topic = self.core.broker.topics.get(self.random.choice(TOPICS))
        if topic is None:
            return
        if topic.channels and self.random.random() < 0.7:
            self.core.broker.delete_channel(topic, self.random.choice(list(topic.channels)))
        else:
            self.core.broker.delete_topic(topic.name)

    def pause(self) -> None:
        topic = self.core.broker.topics.get(self.random.choice(TOPICS))
        if topic is not None:
            topic.set_paused(self.random.random() < 0.5)

    def retry(self) -> None:
        topic = self.core.broker.topics.get("t")
        if topic is None:
            return
        for channel in topic.channels:
            if channel in CHANNELS[:2]:
                policy = ChannelPolicy(retry_delays_ms=(500,), max_attempts=2)
                topic.configure_channel(channel, policy)

    def grow(self) -> None:
        topic = self.core.broker.topics.get(self.random.choice(TOPICS[:2]))
        if topic is not None:
            count = self.random.randrange(len(topic.at_queues), 4)
            self.core.broker.set_queues(topic.name, max(count, len(topic.at_queues)))


def check(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    for and_then in (life.wait, life.journal, life.kill, life.stop):
        and_then()
        audit = Files(life.core).audit()
        assert not audit.findings, audit.text()


class Unplugged(Life):
    """One that has its power cut, when most of what it has stored is durable."""

    def step(self) -> None:
        super().step()
        if self.random.random() < 0.7:
            self.core.flush()

    def kill(self) -> None:
        self.core.kill(power=True)
        self.clients.clear()


@pytest.mark.parametrize("seed", [0, 2, 12, 19])
def test_a_power_cut_is_no_alarm(seed: int) -> None:
    life = Unplugged(seed)
    for _ in range(STEPS):
        life.step()
    life.kill()
    audit = Files(life.core).audit()
    # A message not reported durable may be missing; nothing else is reported.
    assert {finding.kind for finding in audit.findings} <= {"lost"}, audit.text()


@pytest.mark.parametrize("seed", range(3))
def test_any_damage_is_found_and_placed(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.stop()
    life.core.publish("t", b"the last record may be a torn one")
    *headers, _ = Files(life.core).headers_of_all()
    for header in life.random.sample(headers, 10):
        files = Files(life.core)
        files.damage(header, life.random.randrange(header.length))
        damaged = [span for finding in files.audit().findings for span in finding.places]
        assert any(span.start <= header.position < span.end for span in damaged), header


@pytest.mark.parametrize("seed", range(5))
def test_its_log_is_clean(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 205))
def test_its_log_is_clean_many_times(seed: int) -> None:
    check(seed)
