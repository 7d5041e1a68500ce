"""The brokers of a query, seen together: which queues there are and what they hold.

Their addresses are given, or lookup daemons know them, and are asked now and then for new ones.  A
broker that was heard and is silent is not given up: it is left out of what is read until it is back
or has been away for too long.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from martlet.spark.brokers.background_poll import BackgroundPoll
from martlet.spark.brokers.endpoint import (
    BrokerRefused,
    BrokerUnreachable,
    Endpoint,
    Listing,
    NotABroker,
    QueueRange,
)
from martlet.spark.read.offsets import QueueKey
from martlet.spark.read.options import ReadOptions

_LOG = logging.getLogger(__name__)
_LOOKUP_INTERVAL_S = 2.0
"""How often lookup daemons are asked for brokers that are new."""
_WAIT_S = 2.0
"""How long one look waits for a broker before it goes on without it."""
_MAX_THREADS = 32
_MAX_TOPICS_NAMED = 20
Seen = dict[QueueKey, QueueRange]


class NoSuchTopicError(ValueError):
    """No broker has a topic that is to be read."""


class QueryBrokers:
    """The brokers that a query reads from.

    Args:
        options: the query's.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._topics = options.topics
        self._timeout_ms = options.timeout_ms
        self._tls = options.tls
        self._watches = {address: self._watch(address) for address in options.addresses}
        self._endpoints: dict[str, Endpoint] = {}
        """By broker, for whatever is asked beside listings."""
        self._lookups = [
            BackgroundPoll(
                Endpoint(address, options.timeout_ms, options.tls),
                lambda endpoint, patient: endpoint.nodes(patient=patient),
            )
            for address in options.lookup_addresses
        ]
        self._found_at_s: float | None = None
        self._looked = False
        self._foreign: set[str] = set()
        """Addresses known to lookup daemons where something else answers."""

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_MAX_THREADS, "martlet-look")

    def _watch(self, address: str) -> BackgroundPoll[Listing]:
        def ask(endpoint: Endpoint, patient: bool) -> Listing:
            return endpoint.listing(self._topics.names, patient=patient)

        return BackgroundPoll(Endpoint(address, self._timeout_ms, self._tls), ask)

    def close(self) -> None:
        """Close the connections; the next request opens them again."""
        for endpoint in self._endpoints.values():
            endpoint.close()
        if "_pool" in self.__dict__:
            self._pool.shutdown(wait=False, cancel_futures=True)
            del self._pool
        watches: list[BackgroundPoll[Any]] = [*self._watches.values(), *self._lookups]
        for watch in watches:
            watch.close()

    def look(self, *, patient: bool) -> Seen:
        """Ask every broker what it holds.

        Args:
            patient: wait for each of them. Else one that is silent is taken to hold what it held
                when it was heard last, so that it does not keep the others waiting. The first look
                is always patient.

        Raises:
            BrokerUnreachable: a broker was silent for longer than the timeout.
            NotABroker: something else answers at an address.
        """
        patient = patient or not self._looked
        self._find(patient)
        for watch in self._watches.values():
            watch.begin(self._pool, patient=patient)
        deadline_s = time.monotonic() + _WAIT_S
        for address, watch in list(self._watches.items()):
            was_silent = watch.silent_since_s is not None
            try:
                watch.end(None if patient else max(0.0, deadline_s - time.monotonic()))
            except NotABroker as error:
                self._let_go(address, error)
                continue
            self._judge(watch, was_silent)
        self._looked = True
        seen: Seen = {}
        for watch in reversed(self._answered_polls()):
            assert watch.latest is not None
            for queue in watch.latest.queues:
                if self._topics.has(queue.topic):
                    key = QueueKey(_broker(watch), queue.topic, queue.queue, queue.topic_id)
                    seen[key] = queue
        return seen

    def require_topics(self, seen: Seen) -> None:
        """Check that each topic of the query exists.

        Args:
            seen: what `look` has returned.

        Raises:
            NoSuchTopicError: one does not; the text names those that do.
        """
        topics = self._topics
        missing = [repr(t) for t in topics.names if not any(key.topic == t for key in seen)]
        if topics.pattern is not None and not seen:
            missing = [f"that matches {topics}"]
        if not missing:
            return
        there = sorted({name for broker in self.ids for name in self.topics_at(broker)})
        named = ", ".join(there[:_MAX_TOPICS_NAMED]) or "none"
        more = " ..." if len(there) > _MAX_TOPICS_NAMED else ""
        raise NoSuchTopicError(
            f"there is no topic {missing[0]} at {self.where}; there is {named}{more}"
        )

    def _judge(self, watch: BackgroundPoll[Listing], was_silent: bool) -> None:
        """See whether a broker has been silent for too long."""
        if watch.silent_since_s is None:
            if was_silent:
                _LOG.warning("the broker at %s is back", watch.endpoint.address)
            return
        if watch.latest is not None and watch.latest.broker not in self.silent:
            return  # It answers at another address.
        silent_s = time.monotonic() - watch.silent_since_s
        if silent_s > self._timeout_ms / 1000:
            raise BrokerUnreachable(
                f"the broker at {watch.endpoint.address} has been out of reach for {silent_s:.0f} s"
                f" ({watch.trouble}); option timeoutMs is {self._timeout_ms}"
            )
        if not was_silent:
            _LOG.warning(
                "the broker at %s is out of reach for now, and the others are read without it: %s",
                watch.endpoint.address,
                watch.trouble,
            )

    def _let_go(self, address: str, error: NotABroker) -> None:
        """Something else than a broker is at an address: no harm if lookup daemons alone named it,
        and it has no topic of the query.
        """
        if address not in self._named_by_lookup:
            raise error
        topics = [topic for topic in self._named_by_lookup[address] if self._topics.has(topic)]
        if topics:
            raise NotABroker(
                f"{error}; by lookup it has the topic {topics[0]}, which can not be read from there"
            )
        _LOG.warning("%s; it has none of the topics, and is left out", error)
        self._foreign.add(address)
        del self._watches[address]

    @cached_property
    def _named_by_lookup(self) -> dict[str, list[str]]:
        """The topics of brokers at addresses that only lookup daemons have named."""
        return {}

    def _find(self, patient: bool) -> None:
        """Take in the brokers that lookup daemons know.

        Raises:
            BrokerUnreachable: none of them answers, and none ever did.
        """
        now_s = time.monotonic()
        recently = self._found_at_s is not None and now_s - self._found_at_s < _LOOKUP_INTERVAL_S
        if not self._lookups or (recently and not patient):
            return
        heard_before = any(lookup.latest is not None for lookup in self._lookups)
        for lookup in self._lookups:
            lookup.begin(self._pool, patient=not heard_before)
        silent: list[BrokerUnreachable] = []
        for lookup in self._lookups:
            was_silent = lookup.silent_since_s is not None
            try:
                lookup.end(_WAIT_S if heard_before else None)
            except BrokerUnreachable as error:
                silent.append(error)
            if lookup.silent_since_s is not None and not was_silent:
                _LOG.warning(
                    "the lookup daemon at %s is out of reach; going on with the brokers that are"
                    " known: %s",
                    lookup.endpoint.address,
                    lookup.trouble,
                )
        if len(silent) == len(self._lookups):
            raise silent[0]
        self._found_at_s = time.monotonic()
        for lookup in self._lookups:
            for node in lookup.latest or ():
                self._take_in(node)

    def _take_in(self, node: Any) -> None:
        host, port = node["broadcast_address"], node["http_port"]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if address in self._watches and address not in self._named_by_lookup:
            return
        topics = list(node.get("topics", ()))
        if not port:
            wanted = [topic for topic in topics if self._topics.has(topic)]
            if wanted:
                raise BrokerRefused(
                    f"by lookup the broker at {host}:{node.get('tcp_port')} has the topic"
                    f" {wanted[0]}, but it has no HTTP door to be read from: see its --http-address"
                )
            return
        if address in self._foreign and not any(map(self._topics.has, topics)):
            return
        self._named_by_lookup[address] = topics
        if address not in self._watches:
            self._watches[address] = self._watch(address)

    # what was heard

    @property
    def where(self) -> str:
        """The addresses, for people."""
        return ", ".join(self._watches) or "the lookup daemons' brokers, of which there are none"

    @property
    def ids(self) -> list[str]:
        """The brokers heard so far."""
        return list(dict.fromkeys(map(_broker, self._answered_polls())))

    @property
    def silent(self) -> set[str]:
        """Those of them that were silent at the last look."""
        told = self._answered_polls()
        heard = {_broker(watch) for watch in told if watch.silent_since_s is None}
        return set(map(_broker, told)) - heard

    def _answered_polls(self) -> list[BackgroundPoll[Listing]]:
        """Those that were heard, and that answer, before those that do not; two may be of one
        broker.
        """
        told = [watch for watch in self._watches.values() if watch.latest is not None]
        return sorted(told, key=lambda watch: watch.silent_since_s is not None)

    @property
    def may_come(self) -> bool:
        """Whether a broker that was not heard yet may still be found."""
        return bool(self._lookups) or any(watch.latest is None for watch in self._watches.values())

    def _heard(self, broker: str) -> BackgroundPoll[Listing]:
        for watch in self._answered_polls():
            if _broker(watch) == broker:
                return watch
        raise KeyError(broker)

    def endpoint(self, broker: str) -> Endpoint:
        """Where a broker that was heard answers."""
        watched = self._heard(broker).endpoint
        known = self._endpoints.get(broker)
        if known is None or known.address != watched.address:
            if known is not None:
                known.close()
            known = self._endpoints[broker] = watched.another()
        return known

    def data_path(self, broker: str) -> str:
        """The broker's data folder, on its own machine."""
        told = self._heard(broker).latest
        assert told is not None
        return told.data_path

    def topics_at(self, broker: str) -> list[str]:
        """All topics that a broker has, those of the query or not."""
        return sorted({queue.topic for queue in self.endpoint(broker).listing().queues})


def _broker(watch: BackgroundPoll[Listing]) -> str:
    assert watch.latest is not None
    return watch.latest.broker
