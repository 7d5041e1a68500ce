"""The follower: what a stream tells the brokers of how far it is.

Spark keeps the position in the query's checkpoint, so nothing depends on what is told here but what
brokers keep and people see: a group whose lag is the query's, or a channel that goes along.  What
cannot be told now is told with the next micro-batch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from martlet.spark.brokers.brokers import QueryBrokers
from martlet.spark.brokers.endpoint import (
    BrokerNotFound,
    BrokerQueue,
    BrokerUnreachable,
    QueueRange,
)
from martlet.spark.read.offsets import QueueKey
from martlet.spark.read.options import ReadOptions

_LOG = logging.getLogger(__name__)


class ProgressReporter:
    """Tells the brokers of a query where it is.

    Args:
        options: the query's.
        brokers: its brokers.
    """

    def __init__(self, options: ReadOptions, brokers: QueryBrokers) -> None:
        self._options = options
        self._brokers = brokers
        self._reported: dict[QueueKey, int] = {}

    def begin(self, seen: Mapping[QueueKey, QueueRange]) -> None:
        """Make group and channel of the topics that exist, so that nothing which is stored from now
        on is let go unread.  A topic that does not exist is never made; its channel comes with the
        first `report` of it.

        Raises:
            BrokerUnreachable, BrokerRefused.
        """
        options = self._options
        if options.channel is not None:
            # One call for each topic makes the channel at all its queues.
            for key in {(key.broker, key.topic): key for key in seen}.values():
                place = BrokerQueue(key.topic, key.queue, seen[key].part_id)
                endpoint = self._brokers.endpoint(key.broker)
                endpoint.advance(place, options.channel, seen[key].start_offset)
        if options.group is not None:
            for broker, topic, id in sorted({(k.broker, k.topic, k.topic_id) for k in seen}):
                endpoint = self._brokers.endpoint(broker)
                endpoint.follow(topic, id, options.group, {}, retain=options.retain)

    def report(self, position: Mapping[QueueKey, int], seen: Mapping[QueueKey, QueueRange]) -> None:
        """The query is done with all before a position, or where its queue ends before that, with
        all that there is.

        Raises:
            BrokerRefused: there is a channel of the group's name that is none.
        """
        options, silent = self._options, self._brokers.silent
        changed: dict[tuple[str, str, int], dict[QueueKey, int]] = {}
        for key, offset in position.items():
            if self._reported.get(key) != offset and key in seen and key.broker not in silent:
                changed.setdefault((key.broker, key.topic, key.topic_id), {})[key] = offset
        for (broker, topic, id), offsets in changed.items():
            # It has to be there from the beginning; after that the next one makes up for a failure.
            patient = not offsets.keys() <= self._reported.keys()
            endpoint = self._brokers.endpoint(broker)
            reached = {key: min(offset, seen[key].end_offset) for key, offset in offsets.items()}
            by_queue = {key.queue: offset for key, offset in reached.items()}
            try:
                if options.group is not None:
                    endpoint.follow(
                        *(topic, id, options.group, by_queue),
                        retain=options.retain,
                        patient=patient,
                    )
                if options.channel is not None:
                    for key, offset in reached.items():
                        place = BrokerQueue(topic, key.queue, seen[key].part_id)
                        endpoint.advance(place, options.channel, offset, patient=patient)
            except BrokerUnreachable as error:
                _LOG.warning("what follows topic %s stays behind for now: %s", topic, error)
            except BrokerNotFound as error:
                # Deleted since it was seen: the next look at the broker tells of that.
                _LOG.warning("nothing follows topic %s for now: %s", topic, error)
            else:
                self._reported |= offsets
