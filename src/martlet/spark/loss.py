"""What a query does when messages that it wants have gone."""

from __future__ import annotations

import logging

from martlet.spark.offsets import QueueKey

_LOG = logging.getLogger(__name__)
_WAY_OUT = (
    "To go on behind the gap, set option failOnDataLoss to false. "
    "So that the broker keeps what a stream has not read yet, give the stream a channel "
    "(option channel)."
)


class DataLossError(Exception):
    """Messages that a query wants are no longer, or not, in the broker's log."""


def tell_loss(fail: bool, key: QueueKey, wanted: int, there: int, why: str) -> int:
    """Fail, or log the loss and return where to go on.

    Args:
        fail: the option failOnDataLoss.
        key: the queue.
        wanted: the offset that was to be read.
        there: the offset at which the queue goes on.
        why: what happened, as far as it is known.

    Raises:
        DataLossError: `fail` is set.
    """
    first = f"but the first one there is {there}" if there != wanted else "and is not to be had"
    text = f"{key}: offset {wanted} is wanted, {first}: {why}."
    if fail:
        raise DataLossError(f"{text} {_WAY_OUT}")
    _LOG.warning("%s Going on at %d, as failOnDataLoss is false.", text, there)
    return there
