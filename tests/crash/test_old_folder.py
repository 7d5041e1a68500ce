"""A data folder that an earlier version has written: today's version sees the same in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.old_folder import look, unpacked

from martlet.log.folder import Folder
from martlet.log.verify import verify

pytestmark = pytest.mark.crash

ARCHIVES = sorted((Path(__file__).parents[1] / "data").glob("data_folder_*.tar.xz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_the_folder_of_an_earlier_version_keeps_its_messages(archive: Path) -> None:
    with unpacked(archive) as (folder, ledger):
        checked = verify(Folder(folder))
        assert checked.damage == []
        assert checked.segments > 1
        found = look(folder)
    seen = ledger["seen"]
    assert found.keys() == seen.keys()
    for name, value in seen.items():
        shown = found[name]
        if isinstance(value, dict):  # A later version may say more.
            shown = {field: shown[field] for field in value}
        assert shown == value, name
    delivered = {id for _, _, id in found["delivered plain c"]}
    assert ledger["finished"]
    assert not delivered & set(ledger["finished"])


def test_there_is_such_a_folder() -> None:
    assert ARCHIVES
