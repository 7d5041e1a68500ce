"""Transactions of the client, at real brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.interop.client.kit import losing_answers, take
from tests.interop.cutting_proxy import CuttingProxy
from tests.polling import until
from tests.unit.client.scripted_broker import ScriptedBroker

from martlet.broker.transactions import large_commit
from martlet.broker.transactions.state import TransactionLimits
from martlet.client import (
    Backoff,
    BadBody,
    Consumer,
    Contribution,
    NotSupported,
    Outcome,
    PendingTransaction,
    Producer,
    Transaction,
    TransactionEnded,
    TransactionRefused,
    TransactionUnclear,
    WrongBroker,
)
from martlet.client import sync as blocking
from martlet.names import PUBLISH_AGAIN
from martlet.protocol.nsq import negotiation
from martlet.server.rpc import transactions as transaction_calls
from martlet.testing import Broker
from martlet.testing.ports import free_port
from martlet.text import MILLISECOND_NS


def asking_often() -> Broker:
    """A broker whose transactions are silent soon, and never set aside."""
    return Broker(
        transaction_check_after_ns=50 * MILLISECOND_NS,
        transaction_check_interval_ns=20 * MILLISECOND_NS,
        transaction_checks=10_000,
    )


async def bodies(broker: Broker, topic: str, count: int) -> list[bytes]:
    """The first messages of a topic."""
    async with Consumer(topic, "looking", addresses=broker.tcp_address) as consumer:
        return [message.body for message in await take(consumer, count)]


async def fail_in(transaction: Transaction, body: bytes) -> None:
    async with transaction:
        await transaction.publish("orders", body)
        raise LookupError


def stored_count(broker: Broker, topic: str) -> int:
    stored = broker.server.broker.topics.get(topic)
    return 0 if stored is None else sum(part.queue.end_offset for part in stored.at_queues)


async def test_a_block_commits_the_messages_added_in_it(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer:
        async with producer.transaction() as transaction:
            await transaction.publish("orders", b"one", tag="red", keys="k")
            await asyncio.gather(*(transaction.publish("orders", b"%d" % n) for n in range(50)))
            assert await transaction.publish_many("mails", [b"a", b"b", b"c"]) == 3
            assert stored_count(broker, "orders") == stored_count(broker, "mails") == 0
        assert transaction.contribution.message_count == 54
        with pytest.raises(TransactionEnded, match="is committed"):
            await transaction.publish("orders", b"late")
        await transaction.commit()
    assert await bodies(broker, "orders", 51) == [b"one", *(b"%d" % n for n in range(50))]
    assert await bodies(broker, "mails", 3) == [b"a", b"b", b"c"]
    # What was added in one turn of the loop has gone together.
    assert broker.server.broker.transactions.half is not None
    assert broker.server.broker.transactions.half.queue.index.end_row < 10


async def test_messages_added_without_waiting_and_their_commit_are_one_request(
    broker: Broker,
) -> None:
    async with Producer(broker.tcp_address) as producer:
        async with producer.transaction() as transaction:
            transaction.add("orders", [b"one", b"two"], tag="red")
            transaction.add("orders", [b"three"])
        assert transaction.contribution.message_count == 3
        with pytest.raises(TransactionEnded, match="is committed"):
            transaction.add("orders", [b"late"])
        with suppress(LookupError):
            async with producer.transaction() as failed:
                failed.add("orders", [b"never"])
                raise LookupError
    assert await bodies(broker, "orders", 3) == [b"one", b"two", b"three"]
    assert broker.server.broker.transactions.half is None


async def test_messages_added_without_waiting_are_sent_with_the_next_step(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer:
        async with producer.transaction() as transaction:
            transaction.add("orders", [b"one"])
            transaction.add("mails", [b"a"])
        async with producer.transaction() as transaction:
            transaction.add("orders", [b"two"])
            await transaction.publish("orders", b"three")
            transaction.add("orders", [b"four"])
        async with producer.transaction("named") as transaction:
            transaction.add("orders", [b"five"])
            await transaction.prepare()
        async with producer.transaction() as driver:
            await driver.begin()
            async with producer.join_transaction(driver.id) as joined:
                joined.add("orders", [b"six"])
            await driver.commit(joined.contribution)
        begun = producer.transaction()
        assert await begun.begin() == "open"
        begun.add("orders", [b"seven"])
        await begun.commit()
    numbers = [b"one", b"two", b"three", b"four", b"five", b"six", b"seven"]
    assert await bodies(broker, "orders", 7) == numbers
    assert not broker.server.broker.transactions.open
    assert await bodies(broker, "mails", 1) == [b"a"]


async def test_messages_added_while_a_commit_waits_for_its_broker_go_with_it() -> None:
    address = f"127.0.0.1:{free_port()}"
    async with Broker(tcp_address=address) as broker:
        soon = Backoff(first_s=0.01, max_s=0.02)
        producer = await Producer(address, backoff=soon, timeout_s=20).__aenter__()
    added, published = both = [producer.transaction() for _ in range(2)]
    for transaction in both:
        transaction.add("orders", [b"one"])
    steps = [asyncio.create_task(item.commit()) for item in (*both, *both)]
    await asyncio.sleep(0)
    added.add("orders", [b"two"])
    steps.append(asyncio.create_task(published.publish("orders", b"two")))
    async with Broker(tcp_address=address) as broker, asyncio.timeout(50):
        await asyncio.gather(*steps)
        assert [transaction.contribution.message_count for transaction in both] == [2, 2]
        assert stored_count(broker, "orders") == 4
        assert not broker.server.broker.transactions.open
        await producer.close()


async def test_an_older_broker_gets_the_commit_apart(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(negotiation, "EXTENSION_VERSION", 3)
    async with Producer(broker.tcp_address) as producer, producer.transaction() as transaction:
        transaction.add("orders", [b"one"])
    assert await bodies(broker, "orders", 1) == [b"one"]
    assert broker.server.broker.transactions.half is not None


async def test_an_unclear_commit_of_one_request_is_called_again(broker: Broker) -> None:
    async with (
        CuttingProxy(broker.tcp_address) as proxy,
        Producer(proxy.address, backoff=Backoff(first_s=0.01, max_s=0.02)) as producer,
    ):
        transaction = producer.transaction()
        transaction.add("orders", [b"one"])
        proxy.swallow()
        committing = asyncio.create_task(transaction.commit())
        await asyncio.wait_for(proxy.swallowed.wait(), 50)
        committing.cancel()
        await asyncio.wait([committing])
        with pytest.raises(TransactionUnclear, match="may be committed"):
            await transaction.rollback()
        with pytest.raises(TransactionUnclear, match="may be committed"):
            transaction.add("orders", [b"two"])
        proxy.go_on()
        await transaction.commit()
    assert stored_count(broker, "orders") == 1


async def test_steps_wait_for_the_next_primary(broker: Broker) -> None:
    log = broker.server.broker.log
    async with Producer(broker.tcp_address, timeout_s=20) as producer:
        whole, other = producer.transaction(), producer.transaction()
        await other.publish("orders", b"one")
        whole.add("orders", [b"two"])
        refused = asyncio.Event()
        log.on_refused = lambda reason: refused.set()
        log.refuse_writes(f"replica b becomes primary: {PUBLISH_AGAIN}")
        steps = []
        for step in (other.publish("orders", b"three"), other.commit(), whole.commit()):
            refused.clear()
            steps.append(asyncio.create_task(step))
            await asyncio.wait_for(refused.wait(), 50)
        log.accept_writes()
        await asyncio.wait_for(asyncio.gather(*steps), 50)
    assert sorted(await bodies(broker, "orders", 3)) == [b"one", b"three", b"two"]


def holding_back(broker: Broker) -> None:
    """Let transactions above 1 kB be committed in steps of that size."""
    transactions = broker.server.broker.transactions
    transactions.limits = replace(transactions.limits, bundle_bytes=1000)


async def test_a_large_transaction_is_seen_at_once(broker: Broker) -> None:
    holding_back(broker)
    async with Producer(broker.tcp_address) as producer:
        await producer.publish("orders", b"-1 before it")
        transaction = producer.transaction()
        for number in range(40):
            await transaction.publish("orders", b"%d " % number + b"x" * 500)
        committing = asyncio.create_task(transaction.commit())
        queue = broker.server.broker.topics["orders"].queue
        seen, stored = set(), set()
        while not committing.done():
            if broker.server.broker.transactions.large_commit is not None:
                seen.add(queue.visible_end)
                stored.add(queue.end_offset)
            await producer.publish("orders", b"-1 beside it")
        await committing
        count = queue.end_offset
    assert len(stored) > 3
    assert len(seen) == 1
    numbers = [int(body.split()[0]) for body in await bodies(broker, "orders", count)]
    assert [number for number in numbers if number >= 0] == [*range(40)]


async def test_a_client_waits_for_a_large_commit_as_long_as_it_goes_on(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_calls, "_MAX_COMMIT_WAIT_S", 0.01)
    monkeypatch.setattr(large_commit, "_REST_NS", 100 * MILLISECOND_NS)
    holding_back(broker)
    async with Producer(broker.tcp_address, timeout_s=1) as producer:
        transaction = producer.transaction()
        for _ in range(20):
            await transaction.publish("orders", b"x" * 600)
        await transaction.commit()
    assert stored_count(broker, "orders") == 20


async def test_a_large_commit_without_space_says_so_and_goes_on(broker: Broker) -> None:
    holding_back(broker)
    log = broker.server.broker.log
    async with Producer(broker.tcp_address) as producer:
        transaction = producer.transaction()
        for _ in range(20):
            await transaction.publish("orders", b"x" * 600)
        committing = asyncio.create_task(transaction.commit())
        await until(lambda: broker.server.broker.transactions.large_commit is not None)
        log.refuse_writes("no space")
        refusal = r"is being committed: no space; it goes on"
        with pytest.raises(TransactionRefused, match=refusal) as refused:
            await asyncio.gather(committing, transaction.commit())
        assert refused.value.state == "committing"
        assert broker.server.broker.topics["orders"].queue.visible_end == 0
        with pytest.raises(TransactionRefused, match="committing, and cannot be rolled back"):
            await transaction.rollback()
        log.accept_writes()
        await until(lambda: broker.server.broker.transactions.large_commit is None)
        await transaction.commit()
    assert stored_count(broker, "orders") == 20


async def test_a_refused_commit_of_one_request_stores_nothing(broker: Broker) -> None:
    broker.server.broker.transactions.limits = TransactionLimits(max_bytes=10)
    async with Producer(broker.tcp_address) as producer:
        transaction = producer.transaction()
        transaction.add("orders", [b"x" * 20])
        with pytest.raises(TransactionRefused, match="--max-transaction-bytes"):
            await transaction.commit()
        await transaction.rollback()
    assert stored_count(broker, "orders") == 0


async def test_a_block_that_fails_rolls_back(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer:
        transaction = producer.transaction()
        with pytest.raises(LookupError):
            await fail_in(transaction, b"one")
        with pytest.raises(TransactionEnded, match="is rolled-back"):
            await transaction.commit()
        async with producer.transaction() as empty:
            pass
        await empty.commit()
    assert stored_count(broker, "orders") == 0
    assert not broker.server.broker.transactions.open


async def test_one_of_its_own_name_is_committed_once(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer:
        async with producer.transaction("job-17") as first:
            await first.publish("orders", b"once")
        with pytest.raises(TransactionEnded, match="'job-17' is committed"):
            await fail_in(producer.transaction("job-17"), b"the block is not entered")
        assert await producer.transaction("job-17").begin() == "committed"
        # One that was rolled back may be tried again.
        with pytest.raises(LookupError):
            await fail_in(producer.transaction("job-18"), b"in vain")
        async with producer.transaction("job-18") as again:
            await again.publish("orders", b"twice")
            await again.prepare()
    assert await bodies(broker, "orders", 2) == [b"once", b"twice"]


async def test_other_producers_join_and_the_committer_names_the_branches(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as driver, Producer(broker.tcp_address) as task:
        transaction = driver.transaction("batch-1")
        assert await transaction.begin() == "open"
        parts: list[Contribution] = []
        for number in range(3):
            async with task.join_transaction("batch-1") as joined:
                await joined.publish_many("orders", [b"%d" % number] * 2)
            parts.append(joined.contribution)
        async with task.join_transaction("batch-1") as in_vain:
            await in_vain.publish("orders", b"tried in vain")
        with pytest.raises(TransactionRefused, match="INCOMPLETE") as refused:
            await transaction.commit(*parts, Contribution("nobody", 1))
        assert refused.value.state == "open"
        await transaction.commit(*parts)
        with pytest.raises(TransactionRefused, match="is committed"):
            await task.join_transaction("batch-1").publish("orders", b"late")
        with pytest.raises(TransactionRefused, match="NOT_FOUND"):
            await task.join_transaction("batch-2").publish("orders", b"early")
    assert await bodies(broker, "orders", 6) == [b"0", b"0", b"1", b"1", b"2", b"2"]


async def test_a_refused_message_fails_the_transaction(broker: Broker) -> None:
    async with Producer(broker.tcp_address) as producer:
        transaction = producer.transaction()
        with pytest.raises(BadBody):
            await transaction.publish("orders", b"")
        await transaction.publish("orders", b"good")
        with pytest.raises(TransactionRefused, match="has no queue 99"):
            await transaction.publish("orders", b"bad", queue=99)
        with pytest.raises(TransactionRefused):
            await transaction.commit()
        await transaction.rollback()
    assert stored_count(broker, "orders") == 0


async def lost_answer(proxy: CuttingProxy, step: Coroutine[Any, Any, Any]) -> None:
    """A step that is done by the broker, and whose answer is lost with the connection."""
    async with losing_answers(proxy):
        task = asyncio.create_task(step)
    await asyncio.wait_for(task, 50)


async def test_lost_answers_are_asked_for_again(broker: Broker) -> None:
    async with (
        CuttingProxy(broker.tcp_address) as proxy,
        Producer(proxy.address, backoff=Backoff(first_s=0.01, max_s=0.02)) as producer,
    ):
        transaction = producer.transaction("mine")
        await lost_answer(proxy, transaction.begin())
        for number in range(4):
            await lost_answer(proxy, transaction.publish("orders", b"%d" % number))
        await transaction.publish("orders", b"4")
        await lost_answer(proxy, transaction.prepare())
        await lost_answer(proxy, transaction.commit())
        whole = producer.transaction()
        whole.add("orders", [b"5"])
        await lost_answer(proxy, whole.commit())
        other = producer.transaction()
        await other.publish("orders", b"x")
        await lost_answer(proxy, other.rollback())
    assert await bodies(broker, "orders", 6) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert stored_count(broker, "orders") == 6


async def test_a_broker_that_does_not_answer_leaves_it_unclear() -> None:
    async with Broker() as broker:
        async with Producer(broker.tcp_address, timeout_s=0.5) as producer:
            transaction = producer.transaction()
            await transaction.publish("orders", b"one")
            await broker.server.stop()
            with pytest.raises(TransactionUnclear, match="may have been done or not"):
                await transaction.commit()
        broker._server = None
        await broker.__aenter__()


async def test_another_producer_of_the_group_is_asked_for_one_that_died() -> None:
    checked: list[PendingTransaction] = []
    outcomes = {"paid": Outcome.COMMIT, "failed": Outcome.ROLLBACK}
    enough = asyncio.Event()

    async def check(pending: PendingTransaction) -> Outcome:
        checked.append(pending)
        if len(checked) < 3:
            raise LookupError("the database is not there")
        if [pending.id for pending in checked[-3:]] == ["unknown"] * 3:
            enough.set()
        return outcomes.get(pending.id, Outcome.UNKNOWN)

    async with (
        asking_often() as broker,
        Producer(broker.tcp_address, group="billing", check=check) as alive,
    ):
        async with Producer(broker.tcp_address, group="billing") as dies:
            for id in ("paid", "failed", "unknown"):
                await dies.transaction(id).publish("orders", id.encode())
        assert await bodies(broker, "orders", 1) == [b"paid"]
        await asyncio.wait_for(enough.wait(), 50)
        assert list(broker.server.broker.transactions.open) == ["unknown"]
        assert {pending.id for pending in checked} == {"paid", "failed", "unknown"}
        assert checked[0].topics == {"orders": 1}
        assert not checked[0].is_prepared
        assert alive.stats.brokers
    assert stored_count(broker, "orders") == 1


async def test_over_two_brokers_each_is_at_one() -> None:
    async with Broker() as one, Broker() as two:
        addresses = [one.tcp_address, two.tcp_address]
        async with Producer(addresses) as producer, Producer(addresses) as other:
            for number in range(20):
                async with producer.transaction(f"named-{number}") as transaction:
                    await transaction.publish("orders", b"a")
                    async with other.join_transaction(transaction.id) as joined:
                        await joined.publish("mails", b"b")
                    await transaction.commit(joined.contribution)
            assert stored_count(one, "orders") == stored_count(one, "mails") > 0
            assert stored_count(two, "orders") == stored_count(two, "mails") > 0
            transaction = producer.transaction(broker=one.tcp_address)
            adding = [transaction.publish("orders", b"x", order_key=str(n)) for n in range(50)]
            refused = await asyncio.gather(*adding, return_exceptions=True)
            assert "a transaction is at one broker" in "".join(map(str, refused))
            assert {type(error) for error in refused} == {WrongBroker, type(None)}
            await transaction.rollback()
            with pytest.raises(WrongBroker, match="there is no broker 'nowhere:1'"):
                await producer.transaction(broker="nowhere:1").publish("orders", b"x")


async def test_a_broker_that_is_no_martlet_has_no_transactions() -> None:
    async with ScriptedBroker() as broker, Producer(broker.address) as producer:
        with pytest.raises(NotSupported, match="no Martlet broker"):
            producer.transaction()


async def test_without_await() -> None:
    """The same from threads, and a check that blocks."""
    seen = threading.Event()

    def check(pending: PendingTransaction) -> Outcome:
        return Outcome.COMMIT if pending.id == "left" else Outcome.UNKNOWN

    def program(address: str) -> None:
        with blocking.Producer(address, group="g", check=check) as producer:
            with producer.transaction() as transaction:
                transaction.publish("orders", b"one")
                assert transaction.publish_many("orders", (b"%d" % n for n in range(3))) == 3
            with producer.transaction() as transaction:
                transaction.add("mails", (b"%d" % n for n in range(2)))
            with suppress(LookupError), producer.transaction() as failed:
                failed.publish("orders", b"never")
                raise LookupError
            driver = producer.transaction("batch")
            assert driver.begin() == "open"
            with producer.join_transaction("batch") as joined:
                joined.publish("orders", b"joined")
            driver.prepare(joined.contribution)
            driver.commit(joined.contribution)
            producer.transaction("left").publish("orders", b"left")
            assert seen.wait(20)

    async with asking_often() as broker:
        running = asyncio.create_task(asyncio.to_thread(program, broker.tcp_address))
        assert await bodies(broker, "orders", 6) == [b"one", b"0", b"1", b"2", b"joined", b"left"]
        seen.set()
        await running
        assert await bodies(broker, "mails", 2) == [b"0", b"1"]


@pytest.mark.parametrize("at_first", [0, 1])
async def test_a_transaction_goes_on_at_another_address_of_its_broker(
    tmp_path: Path, at_first: int
) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    backoff = Backoff(first_s=0.01, max_s=0.1)
    async with asyncio.timeout(50):
        async with Broker(tmp_path, tcp_address=addresses[at_first]):
            producer = await Producer(addresses, backoff=backoff).__aenter__()
            transaction = producer.transaction()
            await transaction.publish("t", b"one")
        async with Broker(tmp_path, tcp_address=addresses[1 - at_first]) as broker:
            await transaction.publish("t", b"two")
            await transaction.commit()
            assert await bodies(broker, "t", 2) == [b"one", b"two"]
            await producer.close()
