"""Plan a read that ends: the messages between two bounds, as tasks."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from martlet.reader.brokers.brokers import QueryBrokers
from martlet.reader.brokers.endpoint import BrokerNotFound
from martlet.reader.data_loss import LossReport, report_loss
from martlet.reader.offsets import spans
from martlet.reader.options import ReadOptions
from martlet.reader.resolved_bounds import resolve
from martlet.reader.split import Task, plan

if TYPE_CHECKING:
    from martlet.reader.filters import RowFilter


def batch_tasks(options: ReadOptions, row_filter: RowFilter | None) -> list[Task]:
    """Cut the offsets that the bounds of a query enclose now into tasks, without the batches of
    which no message can match a filter.

    Raises:
        NoSuchTopicError: a topic does not exist.
        ValueError: the offsets of an option do not exist.
        DataLossError: the log no longer holds the starting offsets.
        BrokerUnreachable, BrokerRefused: a broker does not answer, or not with its log.
    """
    with closing(QueryBrokers(options)) as brokers:
        try:
            return _tasks(brokers, options, row_filter)
        except BrokerNotFound:  # A topic was deleted between the poll and the plan.
            return _tasks(brokers, options, row_filter)


def _tasks(brokers: QueryBrokers, options: ReadOptions, row_filter: RowFilter | None) -> list[Task]:
    seen = brokers.poll(patient=True)
    brokers.require_topics(seen)
    start = resolve(brokers, options.start, seen, "startingOffsets")
    for key, offset in start.items():
        first = seen[key].start_offset
        if offset < first:
            start[key] = report_loss(
                options.fail_on_data_loss, key, offset, first, LossReport.RETENTION
            )
    end = resolve(brokers, options.end, seen, "endingOffsets")
    return plan(spans(start, end), seen, brokers, options, row_filter)
