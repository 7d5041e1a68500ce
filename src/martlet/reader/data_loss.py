"""Data loss: fail a query whose messages are no longer in the log, or log why and go on."""

from __future__ import annotations

import logging
from enum import Enum

from martlet.reader.offsets import QueueKey
from martlet.text import counted

_LOG = logging.getLogger(__name__)
_GO_ON = "To go on without them, set option failOnDataLoss to false."


class LossReport(Enum):
    """Why messages are missing: a word, the cause, and how to avoid it."""

    RETENTION = (
        "retention",
        "the broker has removed the earlier messages, as no channel of the topic needed them",
        "So that the broker keeps what a stream has not read yet, give the stream a group and set"
        " retain to true (options group and retain, or channel), or let the topic keep a history"
        " (--retention).",
    )
    RECREATION = (
        "recreation",
        "the topic was deleted and created again under the same name",
        "The new topic is read from its start when the query goes on.",
    )
    DELETION = ("deletion", "the topic was deleted", "")
    CORRUPTION = (
        "corruption",
        "the log is damaged there",
        "Run martlet log verify on the broker's data folder to see what is damaged; an archive may"
        " have the messages.",
    )
    TRUNCATION = (
        "truncation",
        "the broker's log ends before it: it has lost its tail, as a power cut can do to a broker"
        " that does not flush before it answers",
        "With --flush=sync a broker does not lose what it has answered.",
    )
    BROKER = (
        "missing broker",
        "that broker is not among those of the query",
        "Name its address, or start it where it was.",
    )

    def __init__(self, word: str, why: str, way_out: str) -> None:
        self.word = word
        self.why = why
        self.way_out = way_out


class DataLossError(Exception):
    """Messages that a query wants are not in the broker's log."""

    def __init__(self, text: str, loss: LossReport) -> None:
        super().__init__(text, loss)
        self.loss = loss

    def __str__(self) -> str:
        return str(self.args[0])


def report_loss(
    fail: bool, key: QueueKey, expected: int, there: int, loss: LossReport, detail: str = ""
) -> int:
    """Raise DataLossError, or log the loss and return where to go on.

    Args:
        fail: the option failOnDataLoss.
        expected: the offset to be read.
        there: the offset at which the queue goes on.
    """
    if there > expected:
        first = f"but the first one there is {there} ({counted(there - expected, 'offset')} gone)"
    elif there < expected:
        first = f"but the queue ends at {there}"
    else:
        first = "and is missing"
    text = f"data loss by {loss.word}: {key}: offset {expected} is wanted, {first}: {loss.why}"
    text += f" ({detail})." if detail else "."
    if fail:
        raise DataLossError(" ".join([text, loss.way_out, _GO_ON]).replace("  ", " "), loss)
    _LOG.warning("%s Going on at %d, as failOnDataLoss is false.", text, there)
    return there
