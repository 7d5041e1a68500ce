"""Pull consumers without await, on a real broker."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests import brokers

from martlet.client import Closed, PulledMessage
from martlet.client.sync import BroadcastConsumer, Producer, PullConsumer
from martlet.testing import BrokerProcess

broker = brokers.process()


def publish(broker: BrokerProcess, topic: str, count: int) -> list[bytes]:
    bodies = [b"%d" % n for n in range(count)]
    with Producer(broker.tcp_address) as producer:
        producer.publish_many(topic, bodies)
    return bodies


def test_messages_are_done_when_the_next_is_asked_for(broker: BrokerProcess) -> None:
    bodies = publish(broker, "one", 20)
    got = []
    with PullConsumer("one", "g", broker.tcp_address, start="first") as consumer:
        for message in consumer:
            got.append(message.body)
            if message.offset == 9:
                message.finish()
                break
        assert consumer.position(0) == 10
        for message in consumer:
            if message.offset == 12:
                break
        assert [place.queue for place in consumer.assignment] == [0]
    with PullConsumer("one", "g", broker.tcp_address) as consumer:
        assert consumer.position(0) == 12
        for message in consumer:
            got.append(message.body)
            if message.offset == 19:
                consumer.commit()
                assert consumer.committed(0) == 20
                assert consumer.lag(0) == 0
                consumer.stop()
        consumer.close()
    assert got == bodies[:10] + bodies[12:]
    with pytest.raises(Closed):
        iter(PullConsumer("one", "g", broker.tcp_address)).__next__()


def test_batches_and_going_elsewhere(broker: BrokerProcess) -> None:
    bodies = publish(broker, "batches", 50)
    with PullConsumer("batches", "g", broker.tcp_address, start="first") as consumer:
        got: list[bytes] = []
        for batch in consumer.batches(max_messages=20):
            got += batch.bodies
            if len(got) == 50:
                batch.finish()
                break
        assert got == bodies
        consumer.seek(0, 48)
        consumer.pause()
        consumer.resume(0)
        for batch in consumer.batches():
            assert batch.bodies == bodies[48:]
            assert batch.offsets.tolist() == [48, 49]
            batch.finish()
            break


def test_handlers_run_in_threads_and_may_close(broker: BrokerProcess) -> None:
    bodies = publish(broker, "handlers", 40)
    got: list[bytes] = []
    threads: set[int] = set()
    barrier = threading.Barrier(2, timeout=20)

    def handle(message: PulledMessage) -> None:
        threads.add(threading.get_ident())
        if message.offset < 2:
            barrier.wait()
        got.append(message.body)
        if len(got) == 40:
            consumer.close()

    with PullConsumer("handlers", "g", broker.tcp_address, start="first") as consumer:
        consumer.run(handle, concurrency=2)
    assert sorted(got) == sorted(bodies)
    assert len(threads) == 2


def test_a_broadcasting_one(broker: BrokerProcess, tmp_path: Path) -> None:
    bodies = publish(broker, "prices", 5)
    for expected in (bodies[:3], bodies[3:]):
        with BroadcastConsumer(
            "prices", broker.tcp_address, offsets=tmp_path / "offsets", start="first"
        ) as consumer:
            got = []
            for message in consumer:
                got.append(message.body)
                message.finish()
                if len(got) == len(expected):
                    break
            assert got == expected
