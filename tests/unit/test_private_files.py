"""Files and folders for their owner alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from martlet.private_files import make_private, make_private_folder, private_opener


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def make_file(path: Path) -> Path:
    with open(path, "wb", opener=private_opener) as file:
        file.write(b"x")
    return path


def test_what_is_made_is_its_owners(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b")
    assert mode_of(tmp_path / "a" / "b") == 0o700
    assert mode_of(tmp_path / "a") == 0o755
    assert mode_of(make_file(tmp_path / "a" / "b" / "file")) == 0o600


def test_a_folder_that_exists_stays_as_it_is_and_files_in_it_are_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path)
    assert mode_of(tmp_path) == 0o755
    assert mode_of(make_file(tmp_path / "file")) == 0o600


def test_in_a_folder_that_is_shared_on_purpose_the_group_may_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o2750)
    make_private_folder(tmp_path / "log")
    assert mode_of(tmp_path / "log") == 0o750
    assert mode_of(make_file(tmp_path / "log" / "file")) == 0o640
    assert make_private([tmp_path / "log", tmp_path / "log" / "file"]) == []


def test_others_lose_their_rights_to_what_exists_and_its_owner_none(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder, file, script, kept, link = (tmp_path / name for name in ("d", "f", "s", "k", "l"))
    folder.mkdir()
    for path, mode in ((file, 0o644), (script, 0o755), (kept, 0o400)):
        path.touch()
        path.chmod(mode)
    link.symlink_to(tmp_path)
    assert make_private([folder, file, script, kept, link, tmp_path / "missing"]) == [
        *(folder, file, script)
    ]
    assert [mode_of(path) for path in (folder, file, script, kept)] == [
        *(0o700, 0o600, 0o700, 0o400)
    ]
    assert mode_of(tmp_path) == 0o755
