"""The address of a metadata store, as ``--metadata`` gives it."""

from __future__ import annotations

from pathlib import Path

from martlet.server.metadata.etcd_store import EtcdStore
from martlet.server.metadata.sqlite_store import SqliteStore
from martlet.server.metadata.store import MetadataStore


class BadStoreAddress(ValueError):
    """No address of a metadata store; the text says what one looks like."""


def open_store(address: str, name: str) -> MetadataStore:
    """Return the store of an address, for one replica set; the first call connects.

    Args:
        address: ``etcd:HOST:PORT,HOST:PORT`` or ``sqlite:PATH``.

    Raises BadStoreAddress.
    """
    kind, _, rest = address.partition(":")
    if kind == "sqlite" and rest:
        return SqliteStore(Path(rest), name)
    if kind == "etcd":
        endpoints = rest.split(",")
        if all(_is_endpoint(endpoint) for endpoint in endpoints):
            return EtcdStore(endpoints, name)
    raise BadStoreAddress(
        f"{address!r} is no metadata store: it is etcd:HOST:PORT,HOST:PORT for replicas on several"
        " machines, or sqlite:PATH for replicas on this one"
    )


def _is_endpoint(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal() and 0 < int(port) < 1 << 16
