"""Addresses of metadata stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from martlet.server.metadata.address import BadStoreAddress, open_store
from martlet.server.metadata.etcd_store import EtcdStore
from martlet.server.metadata.sqlite_store import SqliteStore


def test_the_kind_names_the_store(tmp_path: Path) -> None:
    assert isinstance(open_store(f"sqlite:{tmp_path / 'x.db'}", "1"), SqliteStore)
    assert isinstance(open_store("etcd:10.0.0.1:2379,[::1]:2379", "1"), EtcdStore)


@pytest.mark.parametrize(
    "address",
    [
        *("", "sqlite", "sqlite:", "etcd:", "etcd:host", "etcd:host:0", "etcd:h:1,"),
        *("etcd:https://h:2379", "zk:host:2181"),
    ],
)
def test_what_is_no_address_is_refused_with_examples(address: str) -> None:
    with pytest.raises(BadStoreAddress, match="etcd:HOST:PORT,HOST:PORT for replicas on several"):
        open_store(address, "1")
