"""A data folder, opened read-only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from martlet.log.folder import Folder


class Locks:
    """The kernel's list of locks, as several reads give it, one after the other."""

    def __init__(self, *contents: str) -> None:
        self._contents = list(contents)

    def read_text(self, encoding: str) -> str:
        return self._contents.pop(0)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "log").mkdir()
    (tmp_path / "martlet.lock").touch()
    return Folder(tmp_path)


def test_a_lock_that_one_read_of_the_list_misses_is_seen(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = (folder.path / "martlet.lock").stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    lock = f"1: FLOCK  ADVISORY  WRITE 99 {device} 0 EOF\n"
    other = "2: POSIX  ADVISORY  WRITE 98 fe:01:7 0 EOF\n"
    monkeypatch.setattr("martlet.log.folder._LOCKS", Locks(other, other + lock))
    assert folder.in_use


def test_a_folder_without_a_broker_is_at_rest(folder: Folder) -> None:
    assert not folder.in_use
    (folder.path / "martlet.lock").unlink()
    assert not folder.in_use
