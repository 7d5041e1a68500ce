"""Options of transactions: when producers are asked about theirs, and how large one may become."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.flag import Size, option
from martlet.options.options import Options
from martlet.text import HOUR_NS, MILLISECOND_NS, SECOND_NS

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TransactionOptions(Options):
    """Options of all transactions."""

    transaction_check_after_ns: int = option(
        6 * SECOND_NS,
        "the time after which the producers of a silent transaction are asked about its outcome,"
        " unless it requests another",
        limits=(MILLISECOND_NS, None),
        section="transactions",
    )
    transaction_check_interval_ns: int = option(
        30 * SECOND_NS,
        "the time between two such checks",
        limits=(MILLISECOND_NS, None),
    )
    transaction_checks: int = option(
        15,
        "maximum checks; then the transaction is set aside for an operator",
        limits=(1, 10_000),
    )
    transaction_aside_topic: str = option(
        "transactions-set-aside",
        "the topic that shows the messages of transactions that are set aside",
    )
    transaction_memory_ns: int = option(
        72 * HOUR_NS,
        "how long an outcome is remembered, and how long a transaction waits for a producer that"
        " can be asked",
        limits=(SECOND_NS, None),
    )
    transaction_outcomes: int = option(
        100_000,
        "maximum remembered outcomes, the newest; at most one for each KiB of --max-bytes-per-file",
        limits=(1, 10**6),
    )
    transaction_series: int = option(
        10_000,
        "maximum series of numbered transactions, such as those of a Spark query, whose last number"
        " is remembered; the series that is longest without a commit is forgotten first, but none"
        " within --transaction-memory; at most one for each 4 KiB of --max-bytes-per-file",
        limits=(1, 10**6),
    )
    max_transactions: int = option(
        10_000,
        "maximum open transactions, with those set aside; at most one for each KiB of"
        " --max-bytes-per-file",
        limits=(1, 10**6),
    )
    max_transaction_bytes: Size = option(
        0,
        "maximum bytes of one transaction, whose messages become visible at once; 0 for no limit"
        " but the disk's",
        limits=(0, 2**62),
    )
    max_transaction_sends: int = option(
        100_000,
        "maximum commands that add messages to one transaction, each one or many",
        limits=(1, 10**6),
    )
