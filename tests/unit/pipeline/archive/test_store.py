"""Stores: what an archive needs is there on each, on a disk and in an object store alike."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from tests.unit.pipeline.archive.test_commit import KEY, begun, commit, join, write

from martlet.pipeline.archive.parquet_table import ParquetTable
from martlet.pipeline.archive.store import LocalStore, Store, exchange


@pytest.fixture(scope="module")
def object_store() -> Iterator[str]:
    """The URL of a bucket of moto's, which speaks S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        url = f"s3://key:secret@bucket?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        fs.FileSystem.from_uri(url.replace("?", "?allow_bucket_creation=true&"))[0].create_dir(
            "bucket"
        )
        yield url
    finally:
        server.stop()


@pytest.fixture(params=["path", "file", "generic", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    out = tmp_path / "out"
    if request.param in ("path", "file"):
        return Store.at(str(out) if request.param == "path" else out.as_uri())
    if request.param == "generic":
        system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        return Store(system, "out", str(out))
    url: str = request.getfixturevalue("object_store")
    return Store.at(url.replace("bucket?", f"bucket/{uuid.uuid4().hex}?"))


def test_files(store: Store) -> None:
    assert store.read("a/b") is None
    assert store.files("a") == {}
    assert store.create("a/b", b"one")
    assert not store.create("a/b", b"two")
    assert store.read("a/b") == b"one"
    store.replace("a/b", b"three")
    assert store.read("a/b") == b"three"
    with store.sink("a/c/d") as sink:
        sink.write(b"1234")
    store.flush("a/c/d")
    assert store.files("a") == {"a/b": 5}
    assert store.files("a", recursive=True) == {"a/b": 5, "a/c/d": 4}
    assert store.folders("a") == ["a/c"]
    assert store.missing(["a/b", "a/x", "a/c/d"]) == ["a/x"]


class Crash(Exception):
    """The process ends here."""


@pytest.mark.parametrize(
    ("step", "left"), [("_write", b"old"), ("remove", b"old"), ("move", b"new")]
)
def test_a_crash_while_a_file_is_replaced_leaves_one_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, left: bytes
) -> None:
    system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    store = Store(system, "out", str(tmp_path / "out"))
    store.replace("a/b", b"old")

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(store, step, crash)
        with pytest.raises(Crash):
            store.replace("a/b", b"new")
    assert store.read("a/b") == left
    store.replace("a/b", b"newer")
    assert store.read("a/b") == b"newer"


def test_a_move_may_be_done_again(store: Store) -> None:
    store.create("staged/x", b"one")
    for _ in range(2):
        store.move("staged/x", "p=1/x")
    assert store.read("p=1/x") == b"one"
    assert store.read("staged/x") is None
    with pytest.raises(FileNotFoundError):
        store.move("staged/y", "p=1/y")


def test_removing_a_missing_file_does_no_harm(store: Store) -> None:
    store.create("a/b", b"one")
    store.create("a/c/d", b"one")
    store.remove("a/x")
    store.remove("a/b")
    store.remove_tree("nothing")
    store.remove_tree("a/c")
    assert store.files("a", recursive=True) == {}


def test_an_archive(store: Store) -> None:
    """Batches are committed and small files joined."""
    table = begun(store)
    commit(table, 0, 3, 6, 9)
    table.commit("run", [write(store, 9, 10, "last", table), write(store, 10, 11, "last", table)])
    assert join(table, store) == 1
    table = ParquetTable(store)
    table.begin("next")
    assert table.position() == {KEY: 11}
    offsets: list[int] = []
    for name in table.files(recursive=True):
        with store.system.open_input_file(store.path(name)) as file:
            offsets += pq.read_table(file, partitioning=None)["offset"].to_pylist()
    assert sorted(offsets) == list(range(11))
    rows = ds.dataset(store.root, filesystem=store.system, partitioning="hive", format="parquet")
    assert rows.count_rows() == 11
    assert store.files("_martlet/staged", recursive=True) == {}


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        Store.at("nonsense://somewhere/x")


def test_folders_are_exchanged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "b").exists()
    assert (tmp_path / "b" / "a").exists()
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "c")


def test_the_holder_of_the_lock_keeps_others_out(tmp_path: Path) -> None:
    import fcntl

    store = LocalStore(tmp_path)
    with store.lock(), (tmp_path / "_martlet/lock").open("ab") as file:  # noqa: SIM117
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (tmp_path / "_martlet/lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
