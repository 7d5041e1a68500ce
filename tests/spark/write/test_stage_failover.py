"""Tasks and the driver at a broker with replicas, whose primary is killed; without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.crash.replica_cluster import Cluster
from tests.interop.lookup_process import LookupProcess
from tests.spark.publish import open_count, post, wait_for
from tests.spark.reader.brokers.test_failover import Loop, loop, started, stopped
from tests.spark.stored import rows_at, values_of

from martlet.spark.write import broker_transaction, sink
from martlet.spark.write.broker_transaction import BrokerTransaction
from martlet.spark.write.options import BatchId, CommitMessage, WriteFailed, WriteOptions
from martlet.spark.write.placement import FoundBroker, broker_for, find_broker
from martlet.spark.write.sink import StreamWriter
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

__all__ = ["loop"]
pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(120)]

LIMIT_S = 60.0


class Broker:
    """A broker with three replicas."""

    def __init__(self, folder: Path, loop: Loop, *arguments: str) -> None:
        self.loop = loop
        self.cluster: Cluster = loop.run(started(folder, *arguments))

    @property
    def addresses(self) -> str:
        return ",".join(self.cluster.http.values())

    @property
    def primary(self) -> str:
        return str(self.loop.run(self.cluster.primary()))

    def kill_primary(self) -> str:
        victim = self.primary
        self.cluster.kill(victim)
        return victim

    def options(self, **more: str) -> WriteOptions:
        texts = {"addresses": self.addresses, "topic": "t", "blockBytes": "1024"}
        return WriteOptions.parse(texts | more, "stream")

    def kill_standbys(self) -> list[str]:
        """After it, nothing is confirmed."""
        names = [name for name in self.cluster.http if name != self.primary]
        for name in names:
            self.cluster.kill(name)
        return names

    def fail_over_to(self, standbys: list[str]) -> None:
        """Kill the primary, and start its standbys, which lack the end of its log."""
        self.kill_primary()
        for name in standbys:
            self.cluster.start_one(name)

    def values(self) -> list[str]:
        """The rows of the topic; standbys may lag."""
        return values_of(self.cluster.http[self.primary], "t")

    def open_count(self) -> int:
        return open_count(self.cluster.http[self.primary])

    def close(self) -> None:
        self.loop.run(stopped(self.cluster))


@pytest.fixture
def broker(tmp_path: Path, loop: Loop) -> Iterator[Broker]:
    with closing(Broker(tmp_path, loop)) as made:
        yield made


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [f"{number}-{n:0200}" for n in range(10)]})


def expected(count: int) -> list[str]:
    return [f"{number}-{n:0200}" for number in range(count) for n in range(10)]


def task(options: WriteOptions, transaction: str, *batches: pa.RecordBatch) -> CommitMessage:
    return sink._staged(options, transaction, BatchId("q", 0), iter(batches))


def test_primaries_are_killed_while_rows_are_staged_and_before_the_commit(broker: Broker) -> None:
    write_options = broker.options()
    dead: list[str] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(40):
            if number == 15:
                dead.append(broker.kill_primary())
            yield batch(number)

    with BrokerTransaction(write_options, "t", BatchId("q", 0)) as stage:
        staged = stage.stage(rows())
    assert staged.message_count == 400
    broker.cluster.start_one(*dead)
    broker.loop.run(broker.cluster.in_sync(3))
    broker.kill_primary()
    StreamWriter(write_options).commit([staged], 0)
    assert broker.values() == expected(40)
    # Spark repeats the batch in other pieces, as though it had not heard of the commit.
    again = task(write_options, "u", batch(0), batch(1))
    assert again.is_repeated
    StreamWriter(write_options).commit([again], 0)
    assert broker.values() == expected(40)


def test_a_primary_is_killed_with_a_commit_that_no_standby_has(broker: Broker) -> None:
    write_options = broker.options()
    staged = task(write_options, "t", *map(batch, range(5)))
    with (
        BrokerTransaction(write_options, "t", BatchId("q", 0)) as stage,
        ThreadPoolExecutor(1) as pool,
    ):
        standbys = broker.kill_standbys()
        commit = pool.submit(stage.commit, {staged.branch: 50})
        wait_for(lambda: broker.open_count() == 0)
        assert not commit.done()
        broker.fail_over_to(standbys)
        assert commit.result(LIMIT_S) is False
    assert broker.values() == expected(5)


def test_a_primary_is_killed_after_a_commit_whose_answer_is_lost(broker: Broker) -> None:
    write_options = broker.options()
    staged = task(write_options, "t", *map(batch, range(5)))
    StreamWriter(write_options).commit([staged], 0)
    broker.kill_primary()
    StreamWriter(write_options).commit([staged], 0)
    assert broker.values() == expected(5)


def test_a_commit_that_was_seen_and_lost_is_no_reason_to_publish_less(broker: Broker) -> None:
    """The driver was killed, and the tasks of its next run see a commit that no standby has."""
    write_options = broker.options()
    staged = task(write_options, "t", *map(batch, range(5)))
    standbys = broker.kill_standbys()
    fields = {"id": "t", "branches": {staged.branch: 50}, "series": "q", "series_number": 0}
    request = json.dumps(fields).encode()
    primary = broker.cluster.http[broker.primary]

    def commit() -> None:
        with suppress(OSError):
            post(primary, "/call/transaction.commit", request)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(commit)
        wait_for(lambda: broker.open_count() == 0)
        repeated = task(write_options, "u", *map(batch, range(5)))
        assert repeated.is_repeated
        broker.fail_over_to(standbys)
    with pytest.raises(WriteFailed, match="lost an earlier commit"):
        StreamWriter(write_options).commit([repeated], 0)
    StreamWriter(write_options).commit([task(write_options, "v", *map(batch, range(5)))], 0)
    assert broker.values() == expected(5)


def test_a_dead_replica_stands_for_its_broker(broker: Broker, tmp_path: Path) -> None:
    """Also beside another broker, and with whichever replica the hash chooses."""
    with BrokerProcess(tmp_path / "other") as other:
        write_options = broker.options(addresses=f"{other.http_address},{broker.addresses}")
        dead = broker.cluster.http[broker.kill_primary()]
        names = (f"query {number}" for number in range(1000))
        name = next(n for n in names if broker_for(n, write_options.addresses) == dead)
        place = BatchId(name, 0)
        staged = sink._staged(write_options, "t", place, iter([batch(0)]))
        StreamWriter(write_options).commit([staged], 0)
        assert broker.values() == expected(1)
        found_broker = find_broker(other.http_address, write_options.addresses, None, 1000)
        assert found_broker == ((other.tcp_address,), "")


def test_a_write_asks_again_for_replicas_while_it_reaches_none(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that had just started knew one other, which died; the write waited for that."""
    monkeypatch.setattr(broker_transaction, "_FIND_AGAIN_S", 2.0)
    answers: list[FoundBroker] = []

    def find(*arguments: Any) -> FoundBroker:
        found_broker = find_broker(*arguments)
        dead = f"127.0.0.1:{free_port()}"
        answers.append(found_broker if answers else FoundBroker((dead,), found_broker.broker_id))
        return answers[-1]

    monkeypatch.setattr(broker_transaction, "find_broker", find)
    options = broker.options()
    StreamWriter(options).commit([task(options, "t", batch(0))], 0)
    assert broker.values() == expected(1)
    assert len(answers) > 1


def test_a_batch_query_reads_while_a_replica_is_down(broker: Broker) -> None:
    """Also after the others were started again, since when it has not been seen."""
    write_options = broker.options()
    StreamWriter(write_options).commit([task(write_options, "t", batch(0))], 0)
    broker.fail_over_to(broker.kill_standbys())
    values = [row["value"].decode() for row in rows_at(broker.addresses, "t")]
    assert values == expected(1)


def test_a_lookup_daemon_finds_the_primary(tmp_path: Path, loop: Loop) -> None:
    with LookupProcess(tmp_path / "lookup") as lookup:
        lookup_flag = f"--lookupd-tcp-address={lookup.tcp_address}"
        with closing(Broker(tmp_path, loop, lookup_flag)) as broker:
            texts = {"lookup": lookup.http_address, "broker": "broker-1", "topic": "t"}
            write_options = WriteOptions.parse(texts, "stream")
            staged = task(write_options, "t", batch(0))
            broker.kill_primary()
            StreamWriter(write_options).commit([staged], 0)
            assert broker.values() == expected(1)
