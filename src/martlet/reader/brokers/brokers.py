"""The brokers of a query together: their queues and the offsets that these hold.

Their addresses are options, or lookup daemons name them and are asked for new ones every 2 s.  A
broker that answered before and is silent now fails no query at once: its queues are left out until
it is back, or until it was silent for longer than the timeout.

A broker with several addresses has replicas.  It is silent only if all of them are.  Each tells how
far its copy of a queue is confirmed: the furthest end counts, and never goes back.  An address that
has never answered may be that of a dead replica, and only is if another replica names it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from martlet.addresses import lookup_address
from martlet.client.copied_folder import Copies, refusal
from martlet.reader.brokers.background_poll import BackgroundPoll
from martlet.reader.brokers.endpoint import (
    BrokerRefused,
    BrokerUnreachable,
    CopiedFolder,
    Endpoint,
    Listing,
    NotABroker,
    QueueRange,
    ReplicaSource,
)
from martlet.reader.offsets import QueueKey
from martlet.reader.options import ReadOptions

_LOG = logging.getLogger(__name__)
_LOOKUP_INTERVAL_S = 2.0
"""How often to ask lookup daemons for new brokers."""
_WAIT_S = 2.0
"""How long one poll waits for a broker before it goes on without it."""
_SILENT_REPLICA_WAIT_S = 0.05
"""How long it waits for a replica that was silent before, while another one answers."""
_ELECTION_PAUSE_S = 0.2
"""How long it waits between polls of standbys that elect a primary."""
_MAX_THREADS = 32
_MAX_TOPICS_NAMED = 20
Seen = dict[QueueKey, QueueRange]


class NoSuchTopicError(ValueError):
    """No broker has a topic of the query."""


class QueryBrokers:
    """The brokers that a query reads from."""

    def __init__(self, options: ReadOptions) -> None:
        self._topics = options.topics
        self._timeout_ms = options.timeout_ms
        self._tls = options.tls
        self._token = options.token
        self._polls = {address: self._new_poll(address) for address in options.addresses}
        self._endpoints: dict[str, tuple[tuple[str, ...], Endpoint]] = {}
        """By broker id, for requests other than listings, with the addresses."""
        self._lookups = [
            BackgroundPoll(
                Endpoint(address, options.timeout_ms, options.tls),
                lambda endpoint, patient: endpoint.nodes(patient=patient),
            )
            for address in options.lookup_addresses
        ]
        self._lookups_asked_at_s = -math.inf
        self._has_polled = False
        self._ends: dict[QueueKey, int] = {}
        """Of the queues of brokers with replicas: the furthest end that any of them has named."""
        self._foreign: set[str] = set()
        """Addresses that lookup daemons name and at which no Martlet broker answers."""

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_MAX_THREADS, "martlet-poll")

    def _new_poll(self, address: str) -> BackgroundPoll[Listing]:
        def ask(endpoint: Endpoint, patient: bool) -> Listing:
            return endpoint.listing(self._topics.names, patient=patient)

        return BackgroundPoll(self._endpoint((address,)), ask)

    def _endpoint(self, addresses: tuple[str, ...]) -> Endpoint:
        return Endpoint(addresses[0], self._timeout_ms, self._tls, addresses, self._token)

    def close(self) -> None:
        """Close the connections; the next request opens them again."""
        for _, endpoint in self._endpoints.values():
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
            CopiedFolder: two brokers have one id.
        """
        patient = patient or not self._has_polled
        self._ask_lookups(patient)
        for poll in self._polls.values():
            poll.begin(self._pool, patient=patient and not self._answers_elsewhere(poll))
        deadline_s = time.monotonic() + _WAIT_S
        for address, poll in self._as_they_answer(patient):
            was_silent = poll.is_silent
            wait_s = None if patient else max(0.0, deadline_s - time.monotonic())
            if not _has_answered(poll) and self._is_replaced(poll, patient=patient):
                poll.give_up()
                wait_s = _SILENT_REPLICA_WAIT_S if was_silent else _WAIT_S
            try:
                poll.end(wait_s)
            except NotABroker as error:
                self._leave_out(address, error)
                continue
            self._check_silence(poll, was_silent)
        self._has_polled = True
        seen: Seen = {}
        for polls in self._by_broker().values():
            self._check_copies(polls)
            seen |= self._queues(polls)
        self._ends = {key: end for key, end in self._ends.items() if key in seen}
        return seen

    def _as_they_answer(self, patient: bool) -> Iterator[tuple[str, BackgroundPoll[Listing]]]:
        """Yield the polls under way, by address; if patient, as they end or need not be awaited."""
        left = sorted(self._polls.items(), key=lambda item: item[1].is_silent)
        while patient and left:
            ready = [item for item in left if self._is_ready(item[1])]
            ready.sort(key=lambda item: not _has_answered(item[1]))
            yield from ready
            left = [item for item in left if item not in ready]
            if left and not ready:
                requests = [poll.request for _, poll in left if poll.request]
                wait(requests, _ELECTION_PAUSE_S, FIRST_COMPLETED)
        yield from left

    def _is_ready(self, poll: BackgroundPoll[Listing]) -> bool:
        return poll.request is None or poll.request.done() or self._is_replaced(poll, patient=True)

    def _is_replaced(self, poll: BackgroundPoll[Listing], *, patient: bool) -> bool:
        """Whether another replica of the same broker answers in place of an address: of one that
        has never answered the primary, if it can be awaited, as standbys may not know the log's
        end.
        """
        if not patient or poll.latest is not None:
            return self._answers_elsewhere(poll)
        others = self._other_replicas(poll)
        for other in others:
            if other.request is None and (other.latest is None or other.latest.is_standby):
                other.begin(self._pool, patient=False)
                other.end(_WAIT_S)
        return any(
            other.latest is not None and not other.latest.is_standby and not other.is_silent
            for other in others
        )

    def _check_copies(self, polls: list[BackgroundPoll[Listing]]) -> None:
        """Refuse two processes that have one broker's id, and answer at the same time."""
        alone = [
            poll
            for poll in polls
            if poll.latest is not None and poll.latest.is_alone and not poll.is_silent
        ]
        for first, second in pairwise(alone):
            assert first.latest is not None and second.latest is not None
            run = first.latest.run
            if run == second.latest.run:
                continue
            for poll in (second, first):  # One may have ended, and begun again at the other.
                poll.begin(self._pool, patient=False)
                poll.end(None)
            if first.latest.run != run or first.is_silent or second.is_silent:
                continue
            if second.latest.run != run:
                addresses = first.endpoint.address, second.endpoint.address
                copies = Copies(first.latest.broker, addresses)
                raise CopiedFolder(refusal(copies, "the rows of one would be left out"))

    def _queues(self, polls: list[BackgroundPoll[Listing]]) -> Seen:
        """The queues of one broker, given the polls of its replicas, the best first."""
        listings = [poll.latest for poll in polls if poll.latest is not None]
        first = listings[0]
        # The primary knows which queues there are; without it a standby may lag.
        is_sure = (
            not polls[0].is_silent
            and not first.is_standby
            and first.epoch == max(listing.epoch for listing in listings)
        )
        queues: Seen = {}
        for listing in listings[:1] if is_sure else listings:
            for listed in listing.queues:
                if self._topics.has(listed.topic):
                    key = QueueKey(listing.broker, listed.topic, listed.queue, listed.topic_id)
                    queues.setdefault(key, listed)
        return queues if len(listings) == 1 else self._furthest(queues, listings)

    def _furthest(self, queues: Seen, listings: list[Listing]) -> Seen:
        """The same queues, up to the furthest end, and from where all replicas have them on."""
        starts = {key: queue.start_offset for key, queue in queues.items()}
        ends = {key: max(queue.end_offset, self._ends.get(key, 0)) for key, queue in queues.items()}
        for listing in listings:
            for queue in listing.queues:
                key = QueueKey(listing.broker, queue.topic, queue.queue, queue.topic_id)
                if key in queues:
                    starts[key] = max(starts[key], queue.start_offset)
                    ends[key] = max(ends[key], queue.end_offset)
        self._ends |= ends
        return {
            key: replace(queue, start_offset=starts[key], end_offset=ends[key])
            for key, queue in queues.items()
        }

    def _by_broker(self) -> dict[str, list[BackgroundPoll[Listing]]]:
        polls: dict[str, list[BackgroundPoll[Listing]]] = {}
        for poll in self._answered_polls():
            polls.setdefault(_broker(poll), []).append(poll)
        return polls

    def _answers_elsewhere(self, poll: BackgroundPoll[Listing]) -> bool:
        return any(not other.is_silent for other in self._other_replicas(poll))

    def _other_replicas(self, poll: BackgroundPoll[Listing]) -> list[BackgroundPoll[Listing]]:
        return [
            other
            for other in self._polls.values()
            if other is not poll
            and other.latest is not None
            and (
                poll.endpoint.address in other.latest.replicas
                if poll.latest is None
                else other.latest.broker == poll.latest.broker
            )
        ]

    def require_topics(self, seen: Seen) -> None:
        """Check that each topic of the query exists. Raises NoSuchTopicError, which names some."""
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
        if poll.silent_since_s is None:
            if was_silent:
                _LOG.warning("the broker at %s is back", poll.endpoint.address)
            return
        others = self._other_replicas(poll)
        if any(not other.is_silent for other in others):
            if poll.latest is None and not was_silent:
                _LOG.warning(
                    "%s does not answer; it is a replica of the broker at %s, which is read"
                    " without it: %s",
                    poll.endpoint.address,
                    others[0].endpoint.address,
                    poll.trouble,
                )
            return
        since_s = max(replica.silent_since_s or 0.0 for replica in (poll, *others))
        silent_s = time.monotonic() - since_s
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
        """Leave out an address at which no Martlet broker answers; raise the error unless lookup
        daemons alone named it and it has no topic of the query.
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
        """Add the brokers that lookup daemons name. Raises BrokerUnreachable if none ever did."""
        is_recent = time.monotonic() - self._lookups_asked_at_s < _LOOKUP_INTERVAL_S
        if not self._lookups or (is_recent and not patient):
            return
        has_answered = any(lookup.latest is not None for lookup in self._lookups)
        for lookup in self._lookups:
            lookup.begin(self._pool, patient=not has_answered)
        silent: list[BrokerUnreachable] = []
        for lookup in self._lookups:
            was_silent = lookup.is_silent
            try:
                lookup.end(_WAIT_S if has_answered else None)
            except BrokerUnreachable as error:
                silent.append(error)
            if lookup.is_silent and not was_silent:
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
        topics = list(node.get("topics", ()))
        try:
            address = str(lookup_address(host, port))
        except ValueError as error:
            topics_of_query = [topic for topic in topics if self._topics.has(topic)]
            if topics_of_query:
                raise BrokerRefused(
                    f"by lookup the broker at {host}:{node.get('tcp_port')} has the topic"
                    f" {topics_of_query[0]}, but it serves no HTTP to be read by ({error}): see its"
                    " --http-address and --broadcast-address"
                ) from None
            return
        if address in self._polls and address not in self._named_by_lookup:
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
        answering = {_broker(poll) for poll in polls if not poll.is_silent}
        return set(map(_broker, polls)) - answering

    def _answered_polls(self) -> list[BackgroundPoll[Listing]]:
        """The polls with an answer, one for an address: silent ones last, before them standbys."""

        def rank(poll: BackgroundPoll[Listing]) -> tuple[bool, bool, int]:
            assert poll.latest is not None
            return poll.is_silent, poll.latest.is_standby, -poll.latest.epoch

        return sorted((poll for poll in self._polls.values() if poll.latest), key=rank)

    @property
    def may_come(self) -> bool:
        """Whether a broker that has not answered yet may still appear."""
        return bool(self._lookups) or any(
            poll.latest is None and not self._other_replicas(poll) for poll in self._polls.values()
        )

    def replicas(self, broker: str) -> list[ReplicaSource]:
        """The replicas of a broker that has answered, the primary first and silent ones last."""
        polls = self._by_broker()[broker]
        return [
            ReplicaSource(poll.endpoint.address, poll.latest.data_path)
            for poll in polls
            if poll.latest
        ]

    def endpoint(self, broker: str) -> Endpoint:
        """The endpoint of a broker that has answered."""
        addresses = tuple(replica.address for replica in self.replicas(broker))
        opened = self._endpoints.get(broker)
        if opened is None or opened[0] != addresses:
            if opened is not None:
                opened[1].close()
            opened = self._endpoints[broker] = addresses, self._endpoint(addresses)
        return opened[1]

    def topics_at(self, broker: str) -> list[str]:
        """All topics of a broker, those of the query or not."""
        return sorted({queue.topic for queue in self.endpoint(broker).listing().queues})


def _has_answered(poll: BackgroundPoll[Listing]) -> bool:
    request = poll.request
    return request is not None and request.done() and request.exception() is None


def _broker(poll: BackgroundPoll[Listing]) -> str:
    assert poll.latest is not None
    return poll.latest.broker
