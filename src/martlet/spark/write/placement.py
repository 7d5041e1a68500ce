"""Placement: choose the one broker of several that gets all batches of a query.

All batches of a query go to one broker, so that the rows of a key stay in order, and so that one
broker knows which batches were published.  Rendezvous hashing of the query's name and the addresses
chooses it: each task computes it alone, and a change of the addresses moves few queries.

After such a move the new broker does not know the query's last batch, and would publish it again.
So the commit at a broker that does not know the previous batch asks the other brokers first.

The address of any replica stands for its broker, whichever is primary: while a chosen address does
not answer, the others are asked whether it is that of a replica of theirs.

Lookup daemons find a broker by its id. Two processes that have it, since a data folder was copied,
are refused: a task and the commit, or a batch and its repetition, would not meet the same one.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from hashlib import blake2b
from typing import Any, NamedTuple

from martlet import unreachable
from martlet.addresses import lookup_address
from martlet.client.copied_folder import Process, confirmed, copies_in, refusal
from martlet.reader.brokers.addresses import SparkTls
from martlet.reader.brokers.endpoint import FIRST_PAUSE_S, MAX_PAUSE_S, not_http
from martlet.spark.write.options import WriteFailed

_ANSWER_TIMEOUT_S = 10.0
_REPLICA_TIMEOUT_S = 5.0
"""The time after which another address is asked."""
_OTHERS_TIMEOUT_S = 2.0
_REPLICATION = "/stats?format=json&topic=*&include_clients=false&include_mem=false"
"""Of no topic, as no name is ``*``: the state of the replicas, which everyone may ask for."""


class FoundBroker(NamedTuple):
    """The broker to which an address leads."""

    tcp_addresses: tuple[str, ...]
    """Where clients connect: each leads to the primary; none if lookup daemons find it."""
    broker_id: str = ""
    """The id that its replicas share; empty for a broker without replicas."""


class BrokerUnavailable(Exception):
    """No broker answers at an address, or another program does; the text has the cause."""


def broker_for(name: str, addresses: Sequence[str]) -> str:
    """Choose the address of the broker for a name."""
    key = name.encode()

    def weight(address: str) -> tuple[bytes, str]:
        return blake2b(address.encode() + b" " + key, digest_size=8).digest(), address

    return max(addresses, key=weight)


def find_broker(
    address: str, addresses: Sequence[str], tls: SparkTls | None, timeout_ms: int
) -> FoundBroker:
    """Find the broker to which an HTTP address, also of a replica, leads; retry if it is silent.

    The other `addresses` of the query are asked about one that does not answer.

    Raises:
        BrokerUnavailable: no broker answered for `timeout_ms`, or another program did.
    """
    deadline_s = time.monotonic() + timeout_ms / 1000
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return _ask(address, tls)
        except (OSError, http.client.HTTPException) as error:
            trouble = f"{type(error).__name__}: {error}"
            if not_http(error):
                raise BrokerUnavailable(f"{address}: {unreachable.not_http(error)}") from None
        for other in addresses:
            if other != address and (broker := _ask_about(address, other, tls)) is not None:
                return broker
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise BrokerUnavailable(
                f"the broker at {address} did not answer /info ({trouble}); waited {timeout_ms} ms,"
                " see option timeoutMs"
            )
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 2, MAX_PAUSE_S)


def refuse_copies(broker: str, lookups: Sequence[str], tls: SparkTls | None) -> None:
    """Refuse an id of two running processes that lookup daemons know. Raises WriteFailed."""
    processes: dict[str, Process] = {}
    for lookup in lookups:
        with suppress(OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            _, body = _get(lookup, "/nodes", tls, _OTHERS_TIMEOUT_S)
            for node in json.loads(body)["producers"] or ():
                if node.get("broker") == broker:
                    address = str(lookup_address(node["broadcast_address"], node["http_port"]))
                    processes[address] = Process(broker, str(node["run"]))
    for copies in copies_in(processes):
        now = {address: _process(address, processes[address], tls) for address in copies.addresses}
        for running in confirmed(processes, now):
            raise WriteFailed(
                refusal(running, "each row, and each commit, would go to one or the other")
            )


def _process(address: str, registered: Process, tls: SparkTls | None) -> Process:
    """The process that a broker's HTTP address now leads to; of no broker where it has ended."""
    try:
        status, body = _get(address, "/info", tls, _OTHERS_TIMEOUT_S)
    except (OSError, http.client.HTTPException):
        return Process("", "")
    if status == http.HTTPStatus.FORBIDDEN:
        return registered  # It runs, and speaks TLS alone.
    try:
        return Process.of(json.loads(body))
    except (ValueError, AttributeError):
        return Process("", "")


def _ask(address: str, tls: SparkTls | None) -> FoundBroker:
    """Ask at the address itself. Raises OSError and HTTPException."""
    report = _report(*_get(address, _REPLICATION, tls, _REPLICA_TIMEOUT_S))
    if report is not None:
        return _replicated(report, address)
    status, body = _get(address, "/info", tls, _ANSWER_TIMEOUT_S)
    if status >= 500:
        raise OSError(f"HTTP {status}")
    try:
        tcp_port = int(json.loads(body)["tcp_port"])
    except (ValueError, KeyError, TypeError):
        text = body[:200].decode(errors="replace")
        raise BrokerUnavailable(
            f"{address} is no broker's HTTP address: /info answered HTTP {status}, {text!r}"
        ) from None
    return FoundBroker((_on_host(address, tcp_port),))


def _ask_about(address: str, other: str, tls: SparkTls | None) -> FoundBroker | None:
    """Ask at another address; None unless it is that of a replica of the same broker."""
    try:
        report = _report(*_get(other, _REPLICATION, tls, _OTHERS_TIMEOUT_S))
    except (OSError, http.client.HTTPException):
        return None
    named = () if report is None else report["replicas"].values()
    if report is None or all(replica.get("http_address") != address for replica in named):
        return None
    return _replicated(report, other)


def _report(status: int, body: bytes) -> dict[str, Any] | None:
    """Read what a replica says of itself; None without replicas. Raises OSError: not found yet."""
    if status >= 500:
        raise OSError(f"HTTP {status}")
    try:
        report: dict[str, Any] = json.loads(body)["replication"]
        if "broker_id" not in report:
            return None
    except (ValueError, TypeError, KeyError):
        return None
    if not any(replica.get("tcp_address") for replica in report.get("replicas", {}).values()):
        raise OSError("the replica has not found its replica set yet")
    return report


def _replicated(report: dict[str, Any], address: str) -> FoundBroker:
    """The addresses of all replicas, of the one that answered as the query names its host."""
    replicas = report["replicas"]
    addresses = [tcp for replica in replicas.values() if (tcp := replica.get("tcp_address"))]
    own = replicas.get(report["replica"], {}).get("tcp_address")
    if own:
        addresses.insert(0, _on_host(address, own.rpartition(":")[2]))
    return FoundBroker(tuple(dict.fromkeys(addresses)), report["broker_id"])


def _on_host(address: str, port: int | str) -> str:
    return f"{address.removeprefix('https://').rpartition(':')[0]}:{port}"


def _get(address: str, path: str, tls: SparkTls | None, timeout_s: float) -> tuple[int, bytes]:
    """Send a request. Raises OSError and HTTPException."""
    with closing((tls or SparkTls()).connection(address, timeout_s)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
