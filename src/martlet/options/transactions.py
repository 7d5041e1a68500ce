"""Options of transactions: when producers are asked about theirs, and how large one may become."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.durations import HOUR_NS, MILLISECOND_NS, SECOND_NS
from martlet.options.flag import Size, option
from martlet.options.options import Options

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class TransactionOptions(Options):
    """Options of all transactions."""

    transaction_check_after_ns: int = option(
        6 * SECOND_NS,
        "how long a transaction may be silent before its producers are asked about it, unless it"
        " asked for another time",
        limits=(MILLISECOND_NS, None),
        section="transactions",
    )
    transaction_check_interval_ns: int = option(
        30 * SECOND_NS,
        "how long to wait for their answer before they are asked again",
        limits=(MILLISECOND_NS, None),
    )
    transaction_checks: int = option(
        15,
        "how often they are asked before the transaction is set aside for a person",
        limits=(1, 10_000),
    )
    transaction_aside_topic: str = option(
        "transactions-set-aside",
        "the topic where the messages of a transaction that is set aside can be seen",
    )
    transaction_memory_ns: int = option(
        72 * HOUR_NS,
        "how long an outcome is remembered, and how long a transaction waits for producers to ask",
        limits=(SECOND_NS, None),
    )
    transaction_outcomes: int = option(
        100_000,
        "how many outcomes are remembered, the newest ones, and no more than one for each KiB of"
        " --max-bytes-per-file",
        limits=(1, 10**6),
    )
    transaction_series: int = option(
        10_000,
        "of how many series of numbered transactions, such as a Spark query's, the last number is"
        " remembered; those longest without a commit go first, and none within"
        " --transaction-memory; no more than one for each 4 KiB of --max-bytes-per-file",
        limits=(1, 10**6),
    )
    max_transactions: int = option(
        10_000,
        "how many transactions may be open at a time, those set aside among them, and no more than"
        " one for each KiB of --max-bytes-per-file",
        limits=(1, 10**6),
    )
    max_transaction_bytes: Size = option(
        256 * MIB,
        "the most bytes of one transaction; they are made visible in one go",
        limits=(1, 2**31),
    )
    max_transaction_sends: int = option(
        10_000,
        "how often messages may be added to one transaction, one or many at a time",
        limits=(1, 10**6),
    )
