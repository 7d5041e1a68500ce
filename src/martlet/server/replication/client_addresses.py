"""The addresses at which clients reach each replica, also one that is dead.

A dead replica announces nothing. So each replica keeps the last addresses of all others in its data
folder, and readers that list them learn that a silent address is no other broker's.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import NamedTuple

from martlet.log.storage import Storage
from martlet.replica.replica_set import Seen

NAME = "addresses.json"


class ClientAddresses(NamedTuple):
    """Where clients connect to a replica; empty where they cannot."""

    tcp_address: str
    http_address: str


class AddressBook:
    """The last known addresses of replicas.

    Args:
        storage: of the data folder.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, ClientAddresses] = {}
        with suppress(ValueError, TypeError, AttributeError):
            known = json.loads(storage.read(NAME) or b"{}")
            self._known = {name: ClientAddresses(*map(str, each)) for name, each in known.items()}

    def find(self, name: str) -> ClientAddresses | None:
        """Return the addresses of a replica; None where they are not known."""
        return self._known.get(name)

    def note(self, seen: Seen) -> None:
        """Keep what the replicas of the set announce, and forget those that were removed."""
        found = seen.replica_set
        if found is None:
            return
        known = self._known | {
            name: ClientAddresses(each.tcp_address, each.http_address)
            for name, each in seen.presences.items()
            if each.tcp_address or each.http_address
        }
        known = {name: known[name] for name in sorted(known.keys() & found.replicas.keys())}
        if known != self._known:
            self._known = known
            with suppress(OSError):  # It is known until this process ends.
                self._storage.replace(NAME, json.dumps(known).encode())
