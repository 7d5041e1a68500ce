"""The error of an unusable data folder has its name, the flag and what to do."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from martlet.log.storage import DiskStorage, FolderInUse, StorageFull
from martlet.options import BrokerOptions
from martlet.server import data_folder
from martlet.server.data_folder import IDENTITY_NAME, NsqdData, open_folder
from martlet.testing import Broker

LOG = logging.getLogger("folder")


def refused(path: Path) -> str:
    with pytest.raises(OSError, match="--data-path") as caught:
        open_folder(path, BrokerOptions(), LOG)
    message = str(caught.value)
    assert message.startswith(f"the data folder {path} cannot be used: ")
    return message


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    for wrong in (path, path / "below"):
        assert "a file is where a folder has to be: move it away, or give" in refused(wrong)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "log").write_bytes(b"")
    assert "a file is where a folder has to be: move it away, or give" in refused(inside)


@pytest.mark.parametrize(
    ("number", "error_text"),
    [
        (errno.EACCES, "let the user that runs the broker write there (chown, chmod), or give"),
        (errno.EROFS, "its disk can only be read: mount it otherwise, or give another --data-path"),
        (errno.ENOSPC, "its disk is full: free some space, or give another --data-path"),
        (errno.EIO, "give another --data-path if it is not meant"),
    ],
)
def test_errors_of_the_system_are_explained(
    number: int, error_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so the system is asked to refuse."""

    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(data_folder, "DiskStorage", refuse)
    assert error_text in refused(tmp_path)


def test_a_folder_that_cannot_be_created() -> None:
    with pytest.raises(OSError, match=r"folder /proc/nope cannot be created \(No such .*: create"):
        open_folder(Path("/proc/nope"), BrokerOptions(), LOG)


@pytest.mark.parametrize(
    ("number", "way_out"),
    [
        (errno.ENOSPC, "lower --min-free-bytes or --max-bytes-per-file"),
        (errno.EDQUOT, "raise --max-disk-bytes"),
    ],
)
def test_a_limit_of_the_disk_is_named_instead_of_a_full_disk(
    tmp_path: Path, number: int, way_out: str
) -> None:
    error = str(data_folder.refusal(tmp_path, StorageFull(number, "no room")))
    assert f"used: no room; {way_out}, free some space, or give another --data-path" in error


@pytest.mark.parametrize("content", ["", "[1]", "{}", "nonsense"])
def test_a_name_that_cannot_be_understood(tmp_path: Path, content: str) -> None:
    """It ended in a traceback, and kept the folder locked."""
    (tmp_path / IDENTITY_NAME).write_text(content, encoding="ascii")
    message = refused(tmp_path)
    assert "cannot be understood" in message
    assert "put it back from a backup, or delete it" in message
    (tmp_path / IDENTITY_NAME).unlink()
    open_folder(tmp_path, BrokerOptions(), LOG).storage.close()


def test_another_format(tmp_path: Path) -> None:
    (tmp_path / IDENTITY_NAME).write_text('{"version": 99, "broker": "x"}', encoding="ascii")
    assert "broker.json says format 99, this Martlet reads 1: run the one" in refused(tmp_path)


def test_another_broker_on_it(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    with pytest.raises(FolderInUse, match="or give this one another --data-path"):
        open_folder(tmp_path, BrokerOptions(), LOG)
    storage.close()


async def test_an_error_of_the_log_at_the_start_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "a segment")

    monkeypatch.setattr("martlet.server.build.restore", refuse)
    with pytest.raises(OSError, match=f"the data folder {tmp_path} cannot be used: .*a segment"):
        async with Broker(tmp_path):
            pass
    DiskStorage(tmp_path).close()  # it was let go


@pytest.mark.parametrize(
    "name",
    [
        "nsqd.dat",
        "t.diskqueue.meta.dat",
        "t:c.diskqueue.000003.dat",
        "t.diskqueue.000004.dat.bad",
    ],
)
def test_a_folder_of_nsqds_is_refused_and_stays_as_it_was(tmp_path: Path, name: str) -> None:
    """It started empty, and said nothing of the messages that were there."""
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(NsqdData) as caught:
        open_folder(tmp_path, BrokerOptions(), LOG)
    message = str(caught.value)
    assert f"{tmp_path} has files of nsqd's ({name})" in message
    assert f"run 'martlet import-nsqd {tmp_path} --data-path=OTHER'" in message
    assert "with --ignore-nsqd-data" in message
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_folder_of_nsqds_is_taken_where_that_is_wanted_or_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "nsqd.dat").write_bytes(b"{}")
    (tmp_path / "t.diskqueue.meta.dat").write_bytes(b"")
    for options in (BrokerOptions(ignore_nsqd_data=True), BrokerOptions()):
        open_folder(tmp_path, options, LOG).storage.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert all("files of nsqd's (nsqd.dat and 1 more), which are not read" in w for w in warnings)


def modes(folder: Path) -> dict[str, int]:
    """The rights of all that a data folder has, by path."""
    found = {".": folder.stat().st_mode & 0o777}
    for path in folder.rglob("*"):
        found[str(path.relative_to(folder))] = path.stat().st_mode & 0o777
    return found


def check_private(folder: Path) -> None:
    for name, mode in modes(folder).items():
        assert mode == (0o700 if (folder / name).is_dir() else 0o600), name


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
async def test_a_broker_makes_its_files_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    opened = open_folder(path, BrokerOptions(), LOG)
    storage = opened.storage
    segment = storage.create(0, 1 << 16)
    storage.reserve(1 << 16, 1)
    storage.write_at("index/1-0.idx", b"x", 0)
    storage.replace("cut/0000000001-00000000000000000000.log", b"x")
    storage.replace("checkpoint", b"x")
    storage.sealed(segment, has_properties=False)
    opened.close()
    assert {"log", "index", "cut", "checkpoint", "martlet.lock", IDENTITY_NAME} <= set(modes(path))
    check_private(path)


@pytest.mark.usefixtures("usual_umask")
def test_files_of_an_earlier_version_are_closed_to_others_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data"
    opened = open_folder(path, BrokerOptions(), LOG)
    opened.storage.write_at("index/1-0.idx", b"x", 0)
    opened.close()
    for each in (path, *path.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    (path / "mine.toml").touch(0o644)
    with caplog.at_level(logging.INFO):
        open_folder(path, BrokerOptions(), LOG).close()
    assert "could be read by other users" in caplog.text
    found = modes(path)
    assert (found.pop("."), found.pop("mine.toml")) == (0o755, 0o644)
    assert set(found.values()) == {0o700, 0o600}
    caplog.clear()
    with caplog.at_level(logging.INFO):
        open_folder(path, BrokerOptions(), LOG).close()
    assert "other users" not in caplog.text


@pytest.mark.usefixtures("usual_umask")
def test_a_folder_that_is_shared_with_a_group_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(0o2750)
    for _ in range(2):
        opened = open_folder(path, BrokerOptions(), LOG)
        opened.storage.write_at("index/1-0.idx", b"x", 0)
        opened.close()
        assert set(modes(path).values()) == {0o750, 0o640}


def test_a_folder_of_other_things_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log").chmod(0o755)
    open_folder(tmp_path, BrokerOptions(), LOG).close()
    assert modes(tmp_path)["log"] == 0o755


SMALL = BrokerOptions(max_bytes_per_file=100 << 20, min_free_bytes=64 << 20)


def with_free_space(monkeypatch: pytest.MonkeyPatch, mib: int) -> None:
    monkeypatch.setattr(DiskStorage, "_free_bytes", lambda storage: mib << 20)


@pytest.mark.parametrize(
    ("mib", "way_out"),
    [(264, "=66MiB or less"), (165, "=33MiB or less"), (10, "; give smaller ones")],
)
def test_a_new_folder_on_a_disk_that_is_too_small_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mib: int, way_out: str
) -> None:
    with_free_space(monkeypatch, mib)
    for _ in range(2):
        with pytest.raises(OSError, match="--data-path") as caught:
            open_folder(tmp_path / "data", SMALL, LOG)
        error = str(caught.value)
        assert f"room for {mib}.0 MiB, and 265.0 MiB are needed: 2 segments of 100.0 MiB" in error
        assert "(--max-bytes-per-file), 64.0 MiB that stay free (--min-free-bytes), and" in error
        assert way_out in error
    with_free_space(monkeypatch, 265)
    open_folder(tmp_path / "data", SMALL, LOG).close()


def test_a_small_disk_is_warned_of_and_a_folder_with_messages_never_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_free_space(monkeypatch, 365)
    opened = open_folder(tmp_path, SMALL, LOG)
    assert "small disk" not in caplog.text
    opened.storage.create(0, 1 << 20)
    opened.close()
    for mib, until in ((363, " until consumers have finished"), (10, ", whatever consumers")):
        caplog.clear()
        with_free_space(monkeypatch, mib)
        open_folder(tmp_path, SMALL, LOG).close()
        assert f"{tmp_path} is on a small disk: its disk has room for {mib + 1}.0 MiB, and" in (
            caplog.text
        )
        assert f"messages are refused{until}" in caplog.text
