"""The home of what is written: the one broker of several that gets a series, whole.

A transaction is at one broker, and so is a batch of a query: else it could be seen by halves.  All
batches of a query go to the same one, so that the rows of a key stay in order, and so that one
broker knows which batches were published.  It is found by rendezvous hashing of the query's name
and the addresses: every task finds it without asking anybody, queries spread over the brokers, and
where an address comes or goes few queries move.

A query whose home has moved would find a broker that does not know its last batch, and publish it
again.  So a commit at a home that does not know the batch before asks the other brokers first.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from contextlib import closing
from hashlib import blake2b

from martlet import unreachable
from martlet.spark.brokers.addresses import SparkTls
from martlet.spark.brokers.endpoint import not_http

_ANSWER_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 2.0


class NoDoor(Exception):
    """No broker answers at an address, or what answers is none; the text says why."""


def home_of(name: str, addresses: Sequence[str]) -> str:
    """The address of the broker at which a name is at home."""
    told = name.encode()

    def drawn(address: str) -> tuple[bytes, str]:
        return blake2b(address.encode() + b" " + told, digest_size=8).digest(), address

    return max(addresses, key=drawn)


def tcp_address(address: str, tls: SparkTls | None, timeout_ms: int) -> str:
    """Where the broker whose HTTP door is at an address takes messages.

    Asks again, at growing intervals, while nobody answers.

    Raises:
        NoDoor: nobody did for `timeout_ms`, or it is no broker.
    """
    deadline_s = time.monotonic() + timeout_ms / 1000
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return _asked(address, tls)
        except (OSError, http.client.HTTPException) as error:
            trouble = f"{type(error).__name__}: {error}"
            if not_http(error):
                raise NoDoor(f"{address}: {unreachable.not_http(error)}") from None
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise NoDoor(
                f"the broker at {address} did not answer /info ({trouble}); waited {timeout_ms} ms,"
                " see option timeoutMs"
            )
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 2, _MAX_PAUSE_S)


def _asked(address: str, tls: SparkTls | None) -> str:
    connection = (tls or SparkTls()).connection(address, _ANSWER_TIMEOUT_S)
    with closing(connection):
        connection.request("GET", "/info")
        response = connection.getresponse()
        body = response.read()
    if response.status >= 500:
        raise OSError(f"HTTP {response.status}")
    try:
        tcp_port = json.loads(body)["tcp_port"]
    except (ValueError, KeyError, TypeError):
        text = body[:200].decode(errors="replace")
        raise NoDoor(
            f"{address} is no broker's HTTP door: /info answered HTTP {response.status}, {text!r}"
        ) from None
    host = address.removeprefix("https://").rpartition(":")[0]
    return f"{host}:{int(tcp_port)}"
