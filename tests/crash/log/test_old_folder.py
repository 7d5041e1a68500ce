"""A data folder that an earlier version has written: today's version sees the same in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.old_folder import FLAGS, look, unpacked

from martlet.client import Producer
from martlet.log.folder import Folder
from martlet.log.verify import verify
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

ARCHIVES = sorted((Path(__file__).parents[2] / "data").glob("data_folder_*.tar.xz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_the_folder_of_an_earlier_version_keeps_its_messages(archive: Path) -> None:
    with unpacked(archive) as (folder, ledger):
        checked = verify(Folder(folder))
        assert checked.damage == []
        assert checked.segments > 1
        shown_now = look(folder)
    seen = ledger["seen"]
    assert shown_now.keys() == seen.keys()
    for name, value in seen.items():
        shown = shown_now[name]
        if isinstance(value, dict):  # A later version may say more.
            shown = {field: shown[field] for field in value}
        assert shown == value, name
    delivered = {id for _, _, id in shown_now["delivered plain c"]}
    assert ledger["finished"]
    assert not delivered & set(ledger["finished"])


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
async def test_order_keys_lead_to_the_queues_that_they_led_to(archive: Path) -> None:
    with unpacked(archive) as (folder, ledger), BrokerProcess(folder, *FLAGS) as broker:
        seen = ledger["seen"]
        bases = {
            int(queue["id_base"], 16): queue["queue"] for queue in seen["topic wide"]["queues"]
        }
        async with Producer(broker.tcp_address) as producer:
            for message in seen["messages"]["wide"]:
                key = message["properties"]["order_key"]
                sent = await producer.send("wide", b"later", order_key=key)
                assert sent.queue == bases[int(message["id"], 16) - message["offset"]]


def test_there_is_such_a_folder() -> None:
    assert ARCHIVES
