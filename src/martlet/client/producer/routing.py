"""Which broker gets what: the one with the least in flight, or the home of an order key.

What has no order key goes to the broker that has the fewest bytes to answer; among equals, to the
one whose turn is longest ago.  So one message after the other goes round, and a broker that is slow
gets less.

The home of a key is found by rendezvous hashing: each broker draws a number from its name and the
key, and the highest wins.  Every producer finds the same home without asking anybody, and when a
broker goes only the keys that were at home there move.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from martlet.client.producer.in_flight import InFlightQueue
from martlet.client.producer.publication import OrderKey, PendingPublish


def lightest(lanes: Iterable[InFlightQueue], publication: PendingPublish) -> InFlightQueue | None:
    """The lane with the least in flight that has room; a slow one only if there is no other."""
    best: InFlightQueue | None = None
    best_weight = (False, 0, 0)
    for lane in lanes:
        if lane.has_room(publication):
            weight = (lane.is_slow, lane.size_bytes, lane.turn)
            if best is None or weight < best_weight:
                best, best_weight = lane, weight
    return best


def home(
    lanes: Iterable[InFlightQueue], key: OrderKey, *, among_all: bool = False
) -> InFlightQueue | None:
    """The lane at which the key is at home, of those that are up, or of all."""
    topic, rest = key
    text = topic.encode() + b" " + (rest.encode() if isinstance(rest, str) else rest)
    return max(
        (lane for lane in lanes if lane.is_up or among_all),
        key=lambda lane: (blake2b(text, digest_size=8, key=_key(lane.name)).digest(), lane.name),
        default=None,
    )


def _key(name: str) -> bytes:
    """The name as a key of the hash, which takes no more than 64 bytes."""
    encoded = name.encode()
    return encoded if len(encoded) <= 64 else blake2b(encoded).digest()
