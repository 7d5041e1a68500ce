"""Placement: choose the one broker of several that gets all batches of a query.

A transaction lives on one broker, and so does a batch: otherwise readers could see half of it.  All
batches of a query go to the same broker, so that the rows of a key stay in order, and so that one
broker knows which batches were published.  Rendezvous hashing of the query's name and the addresses
chooses it: each task computes it alone, queries spread over the brokers, and a change of the
addresses moves few queries.

After such a move the new broker does not know the query's last batch, and would publish it again.
So the commit at a broker that does not know the previous batch asks the other brokers first.
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


class BrokerUnavailable(Exception):
    """No broker answers at an address, or another program does; the text has the cause."""


def broker_for(name: str, addresses: Sequence[str]) -> str:
    """Choose the address of the broker for a name."""
    key = name.encode()

    def weight(address: str) -> tuple[bytes, str]:
        return blake2b(address.encode() + b" " + key, digest_size=8).digest(), address

    return max(addresses, key=weight)


def tcp_address(address: str, tls: SparkTls | None, timeout_ms: int) -> str:
    """Ask the broker at an HTTP address for its TCP address; retry at growing intervals.

    Raises:
        BrokerUnavailable: no broker answered for `timeout_ms`, or another program did.
    """
    deadline_s = time.monotonic() + timeout_ms / 1000
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return _ask(address, tls)
        except (OSError, http.client.HTTPException) as error:
            trouble = f"{type(error).__name__}: {error}"
            if not_http(error):
                raise BrokerUnavailable(f"{address}: {unreachable.not_http(error)}") from None
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise BrokerUnavailable(
                f"the broker at {address} did not answer /info ({trouble}); waited {timeout_ms} ms,"
                " see option timeoutMs"
            )
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 2, _MAX_PAUSE_S)


def _ask(address: str, tls: SparkTls | None) -> str:
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
        raise BrokerUnavailable(
            f"{address} is no broker's HTTP address: /info answered HTTP {response.status},"
            f" {text!r}"
        ) from None
    host = address.removeprefix("https://").rpartition(":")[0]
    return f"{host}:{int(tcp_port)}"
