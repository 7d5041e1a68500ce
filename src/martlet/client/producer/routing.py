"""The choice of a broker: the one with the least in flight, or the one of an order key.

Messages without an order key go to the broker with the fewest bytes in flight; among equals, to the
one chosen longest ago. So single messages rotate, and a slow broker gets fewer.

The broker of a key is found by rendezvous hashing: each broker draws a number from its id, or from
its address if it tells no id, and the key, and the highest wins.  Every producer finds the same
broker without asking, and when a broker goes only its own keys move.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from martlet.client.producer.in_flight import InFlightQueue
from martlet.client.producer.pending import OrderKey, PendingPublish


def lightest(brokers: Iterable[InFlightQueue], pending: PendingPublish) -> InFlightQueue | None:
    """Choose the broker with the least in flight below its limit, a slow one only as the last."""
    best: InFlightQueue | None = None
    best_weight = (False, 0, 0)
    for broker in brokers:
        if broker.may_begin(pending):
            weight = (broker.is_slow, broker.size_bytes, broker.turn)
            if best is None or weight < best_weight:
                best, best_weight = broker, weight
    return best


def broker_of_key(brokers: Iterable[InFlightQueue], key: OrderKey) -> InFlightQueue | None:
    """Return the broker of a key, of those that are up."""
    return max(
        (broker for broker in brokers if broker.is_up),
        key=lambda broker: rank(broker.home_name, key),
        default=None,
    )


def order_key_of(topic: str, key: str | bytes | None) -> OrderKey:
    """Return the key of messages that go to one broker."""
    return topic, key.decode(errors="surrogateescape") if isinstance(key, bytes) else key or ""


def rank(name: str, key: OrderKey) -> tuple[bytes, str]:
    """Return the number that a broker of this name draws for a key."""
    text = " ".join(key).encode(errors="surrogateescape")
    return blake2b(text, digest_size=8, key=_hash_key(name)).digest(), name


def _hash_key(name: str) -> bytes:
    """Return the name as a key of the hash, which accepts at most 64 bytes."""
    encoded = name.encode()
    return encoded if len(encoded) <= 64 else blake2b(encoded).digest()
