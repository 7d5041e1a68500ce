"""Report a stream's position to the brokers, as a consumer group's offsets or a channel's.

Spark keeps the authoritative position in the query's checkpoint.  The report only decides what
brokers retain and what lag they show, so a report that fails is made up for by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from martlet.reader.brokers.brokers import QueryBrokers
from martlet.reader.brokers.endpoint import BrokerNotFound, BrokerUnreachable, Endpoint, QueueRange
from martlet.reader.offsets import QueueKey, Span, unread
from martlet.reader.options import ReadOptions
from martlet.text import counted, readable_size

_LOG = logging.getLogger(__name__)
_ANY_BYTES = 1 << 62


class ProgressReporter:
    """Reports the position of one query."""

    def __init__(self, options: ReadOptions, brokers: QueryBrokers) -> None:
        self._options = options
        self._brokers = brokers
        self._reported: dict[QueueKey, int] = {}

    def begin(self, seen: Mapping[QueueKey, QueueRange]) -> None:
        """Create the group and the channel of existing topics, which retain messages from now on.

        Topics are never created; the channel of a later topic comes with its first `report`.
        Raises BrokerUnreachable, BrokerRefused.
        """
        options = self._options
        if options.channel is not None or options.retain:
            self._warn_of_backlogs(seen)
        if options.channel is not None:
            # One call for each topic makes the channel at all its queues.
            for key in {(key.broker, key.topic): key for key in seen}.values():
                endpoint = self._brokers.endpoint(key.broker)
                endpoint.advance(seen[key].source, options.channel, seen[key].start_offset)
        if options.group is not None:
            for broker, topic, topic_id in sorted({(k.broker, k.topic, k.topic_id) for k in seen}):
                named = {"topic": topic, "topic_id": topic_id}
                self._follow(self._brokers.endpoint(broker), named, {}, patient=True)

    def _warn_of_backlogs(self, seen: Mapping[QueueKey, QueueRange]) -> None:
        """Name the topics without a channel: the broker has kept all messages for the first one."""
        topics: dict[tuple[str, str], list[QueueKey]] = {}
        for key, queue in seen.items():
            if queue.start_offset < queue.end_offset:
                topics.setdefault((key.broker, key.topic), []).append(key)
        for (broker, topic), keys in topics.items():
            endpoint = self._brokers.endpoint(broker)
            described = endpoint.call("topic.describe", {"topic": topic})
            policies = [described["channel_policies"].get(name) for name in described["channels"]]
            if any((policy or {}).get("retain") != "off" for policy in policies):
                continue
            spans = [Span(key, seen[key].start_offset, seen[key].end_offset) for key in keys]
            size = sum(
                endpoint.reach(seen[key].source, start, end, _ANY_BYTES)[1]
                for key, start, end in spans
            )
            _LOG.warning(
                "topic %s had no channel, so the broker has kept %s of it (%s of the log) for the"
                " first one, which is %r now: it deletes those that are read, and at once those"
                " before the starting offsets. To keep them, let the topic have a history (martlet"
                " topic configure %s retention_ms=8760h, or the broker's --retention), or read it"
                " without option channel or retain (an archive: --channel=)",
                topic,
                counted(unread(spans), "message", form=","),
                readable_size(size),
                self._options.channel or self._options.group,
                topic,
            )

    def report(self, position: Mapping[QueueKey, int], seen: Mapping[QueueKey, QueueRange]) -> None:
        """Report that the query has committed all messages before a position.

        A queue that ends before its offset is reported up to its end. Raises BrokerRefused: a
        channel of the group's name exists and is no group.
        """
        options, silent = self._options, self._brokers.silent
        changed: dict[tuple[str, str, int], dict[QueueKey, int]] = {}
        for key, offset in position.items():
            if self._reported.get(key) != offset and key in seen and key.broker not in silent:
                changed.setdefault((key.broker, key.topic, key.topic_id), {})[key] = offset
        for (broker, topic, topic_id), offsets in changed.items():
            # The first report creates the channel, so it must succeed; later ones make up for it.
            patient = not offsets.keys() <= self._reported.keys()
            endpoint = self._brokers.endpoint(broker)
            reached = {key: min(offset, seen[key].end_offset) for key, offset in offsets.items()}
            by_queue = {str(key.queue): offset for key, offset in reached.items()}
            try:
                if options.group is not None:
                    named = {"topic": topic, "topic_id": topic_id}
                    self._follow(endpoint, named, by_queue, patient=patient)
                if options.channel is not None:
                    for key, offset in reached.items():
                        source = seen[key].source
                        endpoint.advance(source, options.channel, offset, patient=patient)
            except BrokerUnreachable as error:
                _LOG.warning("the position in topic %s is not reported yet: %s", topic, error)
            except BrokerNotFound as error:
                # Deleted since the last poll; the next one finds out.
                _LOG.warning("the position in topic %s cannot be reported: %s", topic, error)
            else:
                self._reported |= offsets

    def _follow(
        self,
        endpoint: Endpoint,
        topic: Mapping[str, object],
        offsets: Mapping[str, int],
        *,
        patient: bool,
    ) -> None:
        """Report offsets by queue as those of the consumer group, which is created if missing."""
        fields = {"group": self._options.group, "retain": self._options.retain, "offsets": offsets}
        endpoint.call("group.follow", {**topic, **fields}, patient=patient)
