"""The brokers of a query, seen together: which queues there are and what they hold."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from martlet.spark.endpoint import BrokerUnreachable, Endpoint, Listing, QueueRange
from martlet.spark.offsets import QueueKey
from martlet.spark.options import EARLIEST, Bound

_LOG = logging.getLogger(__name__)


class Brokers:
    """Endpoints by broker id.

    Args:
        addresses: HTTP addresses; each is asked who it is.
        topics: the topics of the query; others are left out of what is seen.
        timeout_ms: how long a broker may be out of reach.
    """

    def __init__(self, addresses: Sequence[str], topics: Sequence[str], timeout_ms: int) -> None:
        self._topics = frozenset(topics)
        self._timeout_ms = timeout_ms
        self._endpoints = [Endpoint(address, timeout_ms) for address in addresses]
        self._listings: dict[str, Listing] = {}
        """By address, the last that was heard."""
        self._silent_since_s: dict[str, float] = {}

    def close(self) -> None:
        """Close the connections; the next request opens them again."""
        for endpoint in self._endpoints:
            endpoint.close()

    def look(self, *, patient: bool) -> dict[QueueKey, QueueRange]:
        """Ask every broker what it holds.

        Args:
            patient: wait for each of them. Else one that was heard before and is silent now is
                taken to hold what it held then, so that it does not keep the others waiting.

        Raises:
            BrokerUnreachable: a broker was silent for longer than the timeout.
        """
        seen: dict[QueueKey, QueueRange] = {}
        for endpoint in self._endpoints:
            listing = self._listing(endpoint, patient)
            for queue in listing.queues:
                if queue.topic in self._topics:
                    seen[QueueKey(listing.broker, queue.topic, queue.queue)] = queue
        return seen

    def _listing(self, endpoint: Endpoint, patient: bool) -> Listing:
        known = self._listings.get(endpoint.address)
        try:
            listing = endpoint.listing(patient=patient or known is None)
        except BrokerUnreachable:
            now_s = time.monotonic()
            since_s = self._silent_since_s.setdefault(endpoint.address, now_s)
            if patient or known is None or now_s - since_s > self._timeout_ms / 1000:
                raise
            if since_s == now_s:
                _LOG.warning("the broker at %s is out of reach for now", endpoint.address)
            return known
        self._silent_since_s.pop(endpoint.address, None)
        self._listings[endpoint.address] = listing
        return listing

    @property
    def ids(self) -> list[str]:
        """The brokers heard so far."""
        return [listing.broker for listing in self._listings.values()]

    def endpoint(self, broker: str) -> Endpoint:
        """Where a broker that was heard answers."""
        for endpoint in self._endpoints:
            listing = self._listings.get(endpoint.address)
            if listing is not None and listing.broker == broker:
                return endpoint
        raise KeyError(broker)

    def data_path(self, broker: str) -> str:
        """The broker's data folder, on its own machine."""
        return self._listings[self.endpoint(broker).address].data_path

    def topics_at(self, broker: str) -> list[str]:
        """All topics that a broker has, those of the query or not."""
        listing = self._listings[self.endpoint(broker).address]
        return sorted({queue.topic for queue in listing.queues})

    def resolve(
        self, bound: Bound, seen: Mapping[QueueKey, QueueRange], option: str
    ) -> dict[QueueKey, int]:
        """The offset that a bound means in each of the queues seen.

        Args:
            option: the option's name, for the error.

        Raises:
            ValueError: offsets are given for queues that do not exist, or not for all that do.
        """
        if bound.timestamp_ns is not None:
            return {
                key: self.endpoint(key.broker).offset_at(key.topic, key.queue, bound.timestamp_ns)
                for key in seen
            }
        if bound.offsets is None:
            assert bound.everywhere is not None
            return {key: _absolute(bound.everywhere, queue) for key, queue in seen.items()}
        given = self._given(bound.offsets, seen, option)
        for key in given.keys() - seen.keys():
            raise ValueError(f"option {option}: there is no {key}")
        for key in seen.keys() - given.keys():
            raise ValueError(
                f"option {option} gives no offset for {key}; -2 means earliest, -1 latest"
            )
        for key, offset in given.items():
            if offset > seen[key].end_offset:
                raise ValueError(
                    f"option {option}: offset {offset} of {key} is behind its end, "
                    f"{seen[key].end_offset}"
                )
        return {key: _absolute(offset, seen[key]) for key, offset in given.items()}

    def _given(
        self, offsets: Mapping[str, object], seen: Mapping[QueueKey, QueueRange], option: str
    ) -> dict[QueueKey, int]:
        """The offsets of an option by queue, whether they are by broker or not."""
        given: dict[QueueKey, int] = {}
        for outer, value in offsets.items():
            assert isinstance(value, dict)
            for inner, offset in value.items():
                if isinstance(offset, dict):
                    for queue, exact in offset.items():
                        given[QueueKey(outer, inner, int(queue))] = exact
                    continue
                holders = [key for key in seen if key[1:] == (outer, int(inner))]
                if len(holders) > 1 and offset >= 0:
                    raise ValueError(
                        f"option {option}: {len(holders)} brokers have topic {outer}, queue"
                        f' {inner}; write {{"<broker id>": {{"{outer}": {{"{inner}": {offset}}}}}}}'
                        f" for each of {', '.join(key.broker for key in holders)}"
                    )
                for key in holders or [QueueKey("?", outer, int(inner))]:
                    given[key] = offset
        return given


def _absolute(offset: int, queue: QueueRange) -> int:
    """An offset, or EARLIEST or LATEST, as an offset of the queue."""
    if offset >= 0:
        return offset
    return queue.start_offset if offset == EARLIEST else queue.end_offset
