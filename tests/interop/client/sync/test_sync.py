"""The client without await, with a real broker: threads, Ctrl-C, forks."""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from tests import brokers

from martlet.client import (
    BadBody,
    Closed,
    ConnectFailed,
    InvalidName,
    Limits,
    Message,
    ProducerFull,
)
from martlet.client.sync import Consumer, Producer
from martlet.client.transport.backoff import Backoff
from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]

SOON = Backoff(first_s=0.05, max_s=0.05)


broker = brokers.process()


def test_published_messages_arrive(broker: BrokerProcess) -> None:
    with Producer(broker.tcp_address) as producer:
        producer.publish("arrives", b"one")
        assert producer.publish_many("arrives", [b"two", b"three"]) == 2
        assert producer.publish_many("arrives", (b"%d" % n for n in range(50_000))) == 50_000
        producer.publish("arrives", b"last", order_key="k")
        assert producer.stats.stored == 50_004
    received: list[bytes] = []
    with Consumer("arrives", "c", broker.tcp_address, max_in_flight=2000) as consumer:
        for message in consumer:
            received.append(message.body)
            message.finish()
            if len(received) == 1000:
                break
        for batch in consumer.batches():
            assert len(batch) == batch.count == batch.unanswered_count == len(batch.ids)
            received += batch.bodies
            batch.finish()
            assert batch.unanswered_count == 0
            if len(received) == 50_004:
                break
    assert received[:3] == [b"one", b"two", b"three"]
    assert len(set(received)) == 50_004


def test_many_threads_share_a_producer_and_a_consumer(broker: BrokerProcess) -> None:
    received: list[bytes] = []
    with (
        Producer(broker.tcp_address) as producer,
        Consumer("threads", "c", broker.tcp_address) as consumer,
    ):

        def publish(name: int) -> None:
            for number in range(50):
                producer.publish("threads", b"%d-%d" % (name, number))
            wait([producer.submit("threads", b"%d+%d" % (name, n)) for n in range(50)])

        def consume() -> None:
            for message in consumer:
                received.append(message.body)
                message.finish()
                if len(received) == 800:
                    consumer.stop()

        with ThreadPoolExecutor(12) as pool:
            done = [pool.submit(publish, name) for name in range(8)]
            done += [pool.submit(consume) for _ in range(4)]
            for each in done:
                each.result(30)
        assert consumer.counts.finished == 800
    assert len(set(received)) == len(received) == 800


def test_handlers_run_in_threads_and_failed_messages_come_again(broker: BrokerProcess) -> None:
    attempts: Counter[bytes] = Counter()
    threads: set[int] = set()
    meeting = threading.Barrier(3)

    def handle(message: Message) -> None:
        attempts[message.body] = message.attempts
        threads.add(threading.get_ident())
        if message.body.startswith(b"together"):
            meeting.wait(10)
        if message.body == b"fails" and message.attempts == 1:
            raise ValueError("not yet")
        if message.body == b"answers itself":
            message.finish()
        if len(attempts) == 5 and attempts[b"fails"] == 2:
            consumer.stop()

    with (
        Producer(broker.tcp_address) as producer,
        Consumer("handlers", "c", broker.tcp_address, retry=SOON) as consumer,
    ):
        producer.publish_many("handlers", [b"together %d" % number for number in range(3)])
        producer.publish_many("handlers", [b"fails", b"answers itself"])
        consumer.run(handle, concurrency=3)
        assert (consumer.counts.finished, consumer.counts.requeued) == (5, 1)
    assert attempts[b"fails"] == 2
    assert threading.get_ident() in threads


def test_one_handler_runs_where_run_was_called(broker: BrokerProcess) -> None:
    threads: set[int] = set()

    def handle(_message: Message) -> None:
        threads.add(threading.get_ident())
        consumer.stop()

    with (
        Producer(broker.tcp_address) as producer,
        Consumer("here", "c", broker.tcp_address) as consumer,
    ):
        producer.publish("here", b"x")
        consumer.run(handle)
        with pytest.raises(ValueError, match="concurrency=0"):
            consumer.run(handle, concurrency=0)
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_handler_may_close_its_own_consumer(broker: BrokerProcess, concurrency: int) -> None:
    """It waited for itself, until it was given up after ``close_timeout_s``."""
    topic, closed = f"closes-{concurrency}", threading.Event()

    def handle(_message: Message) -> None:
        consumer.close()
        closed.set()

    with Producer(broker.tcp_address) as producer:
        producer.publish(topic, b"x")
    with Consumer(topic, "c", broker.tcp_address, close_timeout_s=1000) as consumer:
        consumer.run(handle, concurrency=concurrency)
    assert closed.is_set()
    with Consumer(topic, "c", broker.tcp_address) as consumer:
        message = next(consumer)
        assert (message.body, message.attempts) == (b"x", 2)
        message.finish()


def test_errors_are_those_of_the_client(broker: BrokerProcess) -> None:
    with pytest.raises(ConnectFailed, match="refused"), Producer("127.0.0.1:9", timeout_s=0.2):
        pass
    with pytest.raises(ValueError, match="retries=-1"):
        Producer(broker.tcp_address, retries=-1)
    producer = Producer(broker.tcp_address, limits=Limits(max_pending_messages=1))
    with pytest.raises(Closed, match="use 'with Producer"):
        producer.publish("t", b"x")
    with pytest.raises(Closed, match="use 'with Consumer"):
        next(Consumer("t", "c", broker.tcp_address))
    with producer:
        with pytest.raises(InvalidName):
            producer.publish("a b", b"x")
        with pytest.raises(BadBody):
            producer.publish("t", b"")
        with pytest.raises(BadBody):
            producer.publish_many("t", iter([b"x", b""]))
        with pytest.raises(ValueError, match="defer_ms=-1"):
            producer.publish("t", b"x", defer_ms=-1)
        with pytest.raises(ProducerFull, match="max_pending_messages=1"):
            wait([producer.submit("t", b"x") for _ in range(10_000)])
    with pytest.raises(Closed):
        producer.publish("t", b"x")
    with pytest.raises(Closed, match="used once"), producer:
        pass


def test_signatures_are_those_of_the_client() -> None:
    assert "order" in (Producer.__init__.__doc__ or "")
    assert "max_in_flight" in (Consumer.__init__.__doc__ or "")


INTERRUPTED = """
import signal
import sys
from martlet.client.sync import Consumer, Producer
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
address, where = sys.argv[1:]
try:
    with Consumer("interrupt", "c", address) as consumer, Producer(address) as producer:
        def handle(message):
            import time
            print("waiting", flush=True)
            time.sleep(60)
        if where == "run":
            producer.publish("interrupt", b"x")
            consumer.run(handle, concurrency=1)
        elif where == "for":
            print("waiting", flush=True)
            for message in consumer:
                message.finish()
        else:
            print("waiting", flush=True)
            for batch in consumer.batches():
                batch.finish()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("where", ["run", "for", "batches"])
def test_ctrl_c_ends_waiting_calls(broker: BrokerProcess, where: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, broker.tcp_address, where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=20)
        assert (out, process.returncode) == ("interrupted\n", 0), error
    finally:
        process.kill()
        process.communicate()
    if where == "run":
        # What the handler was at work on is for another, at once.
        with Consumer("interrupt", "c", broker.tcp_address) as consumer:
            message = next(consumer)
            assert (message.body, message.attempts) == (b"x", 1)
            message.finish()


FORKED = """
import os, sys
from martlet.client.errors import Closed
from martlet.client.sync import Consumer, Producer
address = sys.argv[1]
with Producer(address) as producer, Consumer("fork", "c", address) as consumer:
    producer.publish("fork", b"parent 1")
    child = os.fork()
    if not child:
        for use in (lambda: producer.publish("fork", b"x"), lambda: next(consumer)):
            try:
                use()
            except Closed as error:
                assert "before os.fork()" in str(error), error
            else:
                os._exit(2)
        producer.close()
        with Producer(address) as own:
            own.publish("fork", b"child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    producer.publish("fork", b"parent 2")
    bodies = []
    for message in consumer:
        message.finish()
        bodies.append(message.body)
        if len(bodies) == 3:
            break
print(sorted(bodies))
"""


def test_a_producer_works_in_a_forked_child_and_its_parent(broker: BrokerProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, broker.tcp_address],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[b'child', b'parent 1', b'parent 2']\n"
