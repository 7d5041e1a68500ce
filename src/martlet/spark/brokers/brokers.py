"""The brokers of a query together: their queues and the offsets that these hold.

Their addresses are options, or lookup daemons name them and are asked for new ones every 2 s.  A
broker that answered before and is silent now fails no query at once: its queues are left out until
it is back, or until it was silent for longer than the timeout.
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
"""How often to ask lookup daemons for new brokers."""
_WAIT_S = 2.0
"""How long one poll waits for a broker before it goes on without it."""
_MAX_THREADS = 32
_MAX_TOPICS_NAMED = 20
Seen = dict[QueueKey, QueueRange]


class NoSuchTopicError(ValueError):
    """No broker has a topic of the query."""


class QueryBrokers:
    """The brokers that a query reads from.

    Args:
        options: the query's.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._topics = options.topics
        self._timeout_ms = options.timeout_ms
        self._tls = options.tls
        self._polls = {address: self._new_poll(address) for address in options.addresses}
        self._endpoints: dict[str, Endpoint] = {}
        """By broker id, for requests other than listings."""
        self._lookups = [
            BackgroundPoll(
                Endpoint(address, options.timeout_ms, options.tls),
                lambda endpoint, patient: endpoint.nodes(patient=patient),
            )
            for address in options.lookup_addresses
        ]
        self._lookups_asked_at_s: float | None = None
        self._has_polled = False
        self._foreign: set[str] = set()
        """Addresses that lookup daemons name and at which no Martlet broker answers."""

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_MAX_THREADS, "martlet-poll")

    def _new_poll(self, address: str) -> BackgroundPoll[Listing]:
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
        polls: list[BackgroundPoll[Any]] = [*self._polls.values(), *self._lookups]
        for poll in polls:
            poll.close()

    def poll(self, *, patient: bool) -> Seen:
        """Ask every broker for its queues.

        Args:
            patient: wait for each broker up to the timeout. Otherwise a silent broker counts with
                its latest answer, so that it does not hold up the others. The first poll is always
                patient.

        Raises:
            BrokerUnreachable: a broker was silent for longer than the timeout.
            NotABroker: another program answers at an address.
        """
        patient = patient or not self._has_polled
        self._ask_lookups(patient)
        for poll in self._polls.values():
            poll.begin(self._pool, patient=patient)
        deadline_s = time.monotonic() + _WAIT_S
        for address, poll in list(self._polls.items()):
            was_silent = poll.silent_since_s is not None
            try:
                poll.end(None if patient else max(0.0, deadline_s - time.monotonic()))
            except NotABroker as error:
                self._leave_out(address, error)
                continue
            self._check_silence(poll, was_silent)
        self._has_polled = True
        seen: Seen = {}
        for poll in reversed(self._answered_polls()):
            assert poll.latest is not None
            for queue in poll.latest.queues:
                if self._topics.has(queue.topic):
                    key = QueueKey(_broker(poll), queue.topic, queue.queue, queue.topic_id)
                    seen[key] = queue
        return seen

    def require_topics(self, seen: Seen) -> None:
        """Check that each topic of the query exists.

        Args:
            seen: the result of `poll`.

        Raises:
            NoSuchTopicError: one does not; the text names the topics that do.
        """
        topics = self._topics
        missing = [repr(t) for t in topics.names if not any(key.topic == t for key in seen)]
        if topics.pattern is not None and not seen:
            missing = [f"that matches {topics}"]
        if not missing:
            return
        existing = sorted({name for broker in self.ids for name in self.topics_at(broker)})
        named = ", ".join(existing[:_MAX_TOPICS_NAMED]) or "none"
        more = " ..." if len(existing) > _MAX_TOPICS_NAMED else ""
        raise NoSuchTopicError(
            f"there is no topic {missing[0]} at {self.where}; there is {named}{more}"
        )

    def _check_silence(self, poll: BackgroundPoll[Listing], was_silent: bool) -> None:
        """Fail the query whose broker has been silent for longer than the timeout."""
        if poll.silent_since_s is None:
            if was_silent:
                _LOG.warning("the broker at %s is back", poll.endpoint.address)
            return
        if poll.latest is not None and poll.latest.broker not in self.silent:
            return  # It answers at another address.
        silent_s = time.monotonic() - poll.silent_since_s
        if silent_s > self._timeout_ms / 1000:
            raise BrokerUnreachable(
                f"the broker at {poll.endpoint.address} has been out of reach for {silent_s:.0f} s"
                f" ({poll.trouble}); option timeoutMs is {self._timeout_ms}"
            )
        if not was_silent:
            _LOG.warning(
                "the broker at %s is out of reach for now, and the others are read without it: %s",
                poll.endpoint.address,
                poll.trouble,
            )

    def _leave_out(self, address: str, error: NotABroker) -> None:
        """Leave out an address at which no Martlet broker answers.

        That is an error unless only lookup daemons named it and it has no topic of the query.
        """
        if address not in self._named_by_lookup:
            raise error
        topics = [topic for topic in self._named_by_lookup[address] if self._topics.has(topic)]
        if topics:
            raise NotABroker(
                f"{error}; by lookup it has the topic {topics[0]}, which cannot be read from there"
            )
        _LOG.warning("%s; it has no topic of the query, and is left out", error)
        self._foreign.add(address)
        del self._polls[address]

    @cached_property
    def _named_by_lookup(self) -> dict[str, list[str]]:
        """The topics of brokers at addresses that only lookup daemons have named."""
        return {}

    def _ask_lookups(self, patient: bool) -> None:
        """Add the brokers that lookup daemons name.

        Raises:
            BrokerUnreachable: no lookup daemon answers, and none ever did.
        """
        now_s = time.monotonic()
        recently = (
            self._lookups_asked_at_s is not None
            and now_s - self._lookups_asked_at_s < _LOOKUP_INTERVAL_S
        )
        if not self._lookups or (recently and not patient):
            return
        has_answered = any(lookup.latest is not None for lookup in self._lookups)
        for lookup in self._lookups:
            lookup.begin(self._pool, patient=not has_answered)
        silent: list[BrokerUnreachable] = []
        for lookup in self._lookups:
            was_silent = lookup.silent_since_s is not None
            try:
                lookup.end(_WAIT_S if has_answered else None)
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
        self._lookups_asked_at_s = time.monotonic()
        for lookup in self._lookups:
            for node in lookup.latest or ():
                self._add_node(node)

    def _add_node(self, node: Any) -> None:
        host, port = node["broadcast_address"], node["http_port"]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if address in self._polls and address not in self._named_by_lookup:
            return
        topics = list(node.get("topics", ()))
        if not port:
            wanted = [topic for topic in topics if self._topics.has(topic)]
            if wanted:
                raise BrokerRefused(
                    f"by lookup the broker at {host}:{node.get('tcp_port')} has the topic"
                    f" {wanted[0]}, but it serves no HTTP to be read by: see its --http-address"
                )
            return
        if address in self._foreign and not any(map(self._topics.has, topics)):
            return
        self._named_by_lookup[address] = topics
        if address not in self._polls:
            self._polls[address] = self._new_poll(address)

    @property
    def where(self) -> str:
        """The addresses, for messages."""
        return ", ".join(self._polls) or "the lookup daemons' brokers, of which there are none"

    @property
    def ids(self) -> list[str]:
        """The ids of the brokers that have answered so far."""
        return list(dict.fromkeys(map(_broker, self._answered_polls())))

    @property
    def silent(self) -> set[str]:
        """The ids of those that did not answer the latest poll."""
        polls = self._answered_polls()
        answering = {_broker(poll) for poll in polls if poll.silent_since_s is None}
        return set(map(_broker, polls)) - answering

    def _answered_polls(self) -> list[BackgroundPoll[Listing]]:
        """The polls with an answer, silent ones last; a broker with two addresses has two."""
        polls = [poll for poll in self._polls.values() if poll.latest is not None]
        return sorted(polls, key=lambda poll: poll.silent_since_s is not None)

    @property
    def may_come(self) -> bool:
        """Whether a broker that has not answered yet may still appear."""
        return bool(self._lookups) or any(poll.latest is None for poll in self._polls.values())

    def _poll_of(self, broker: str) -> BackgroundPoll[Listing]:
        for poll in self._answered_polls():
            if _broker(poll) == broker:
                return poll
        raise KeyError(broker)

    def endpoint(self, broker: str) -> Endpoint:
        """The endpoint of a broker that has answered."""
        polled = self._poll_of(broker).endpoint
        known = self._endpoints.get(broker)
        if known is None or known.address != polled.address:
            if known is not None:
                known.close()
            known = self._endpoints[broker] = polled.another()
        return known

    def data_path(self, broker: str) -> str:
        """The broker's data folder, on its own machine."""
        listing = self._poll_of(broker).latest
        assert listing is not None
        return listing.data_path

    def topics_at(self, broker: str) -> list[str]:
        """All topics of a broker, those of the query or not."""
        return sorted({queue.topic for queue in self.endpoint(broker).listing().queues})


def _broker(poll: BackgroundPoll[Listing]) -> str:
    assert poll.latest is not None
    return poll.latest.broker
