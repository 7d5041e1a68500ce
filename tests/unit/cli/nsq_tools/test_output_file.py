"""Output files: their names, when the next one is begun, and what can be read when."""

import errno
import gzip
import random
import resource
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cramjam
import pytest

from martlet.cli.nsq_tools.output_file import Output
from martlet.cli.nsq_tools.to_file import FileOptions
from martlet.options import OptionError

START_S = 1_700_000_000.0


class World:
    """An output in a folder, with a clock."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.now_s = START_S
        self.elapsed_s = 0.0
        self.folder = folder
        flags: dict[str, Any] = {
            "topics": ("t",),
            "nsqd_tcp_addresses": ("127.0.0.1:4150",),
            "output_dir": str(folder),
            "host_identifier": "here",
            "datetime_format": "%H",
        }
        self.options = FileOptions(**(flags | changes))
        self.output = Output(self.options, "t", lambda: self.now_s, lambda: self.elapsed_s)

    def write(self, *lines: bytes) -> None:
        for line in lines:
            self.output.write(line)
        self.output.close()

    def files(self) -> dict[str, bytes]:
        """Return the files of the folder."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }


def hour(now_s: float) -> str:
    return time.strftime("%H", time.localtime(now_s))


def unpacked_zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.decompress(data))


def whole_members(data: bytes) -> bytes:
    """Return the readable part of a compressed file, up to the member being written."""
    content = b""
    while data:
        member = zlib.decompressobj(wbits=31)
        text = member.decompress(data)
        if not member.eof:
            break
        content += text
        data = member.unused_data
    return content


def test_a_plain_file_has_no_number_and_is_gone_on_with(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(b"one\n")
    World(tmp_path).write(b"two\n")
    assert world.files() == {f"t.here.{hour(START_S)}.log": b"one\ntwo\n"}


def test_another_hour_is_another_file(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.output.write(b"one\n")
    world.now_s += 3600
    world.write(b"two\n")
    assert list(world.files().values()) == [b"one\n", b"two\n"]


def test_size_and_age_begin_files_with_numbers(tmp_path: Path) -> None:
    world = World(tmp_path, rotate_size=6, rotate_interval_ns=10 * 10**9)
    for line in (b"one\n", b"two\n", b"three\n"):
        world.output.write(line)
    world.now_s += 100
    assert not world.output.is_due, "the clock was set ahead, and no time has passed"
    world.now_s -= 200
    world.elapsed_s += 11
    world.write(b"four\n")
    head = "t.here-00000"
    tail = f".{hour(START_S)}.log"
    assert world.files() == {
        f"{head}0{tail}": b"one\ntwo\n",
        f"{head}1{tail}": b"three\n",
        f"{head}2{tail}": b"four\n",
    }


@pytest.mark.parametrize(
    ("kind", "suffix", "read"),
    [("gzip", ".log.gz", whole_members), ("zstd", ".log.zst", unpacked_zstd)],
)
def test_synced_lines_are_readable_though_the_writer_never_ended(
    tmp_path: Path, kind: str, suffix: str, read: Callable[[bytes], bytes]
) -> None:
    world = World(tmp_path, **{kind: True})
    for line in (b"one\n", b"two\n"):
        world.output.write(line)
        world.output.sync()
    world.output.write(b"not synced\n")
    (name,) = world.files()
    assert name.endswith(suffix)
    assert read(world.files()[name]) == b"one\ntwo\n"
    world.output.close()
    assert read_whole(tmp_path / name) == b"one\ntwo\nnot synced\n"
    World(tmp_path, **{kind: True}).write(b"another file\n")
    assert len(world.files()) == 2


def test_a_line_that_was_broken_off_is_ended(tmp_path: Path) -> None:
    path = tmp_path / f"t.here.{hour(START_S)}.log"
    path.write_bytes(b"one\ntw")
    World(tmp_path).write(b"two\n")
    assert path.read_bytes() == b"one\ntw\ntwo\n"


def test_a_whole_file_is_moved_and_takes_nobodys_name(tmp_path: Path) -> None:
    work, done = tmp_path / "work", tmp_path / "done"
    world = World(
        tmp_path,
        work_dir=str(work),
        output_dir=str(done),
        filename_format="<TOPIC>/<TOPIC><REV>.log",
    )
    world.output.write(b"one\n")
    assert list(world.files()) == ["work/t/t-000000.log"]
    (done / "t" / "t-000000.log").write_bytes(b"somebody else's")
    world.output.close()
    world.write(b"two\n")
    assert world.files() == {
        "done/t/t-000000.log": b"somebody else's",
        "done/t/t-000001.log": b"one\n",
        "done/t/t-000002.log": b"two\n",
    }


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"topics": ()}, "--topic or --topic-pattern"),
        ({"nsqd_tcp_addresses": ()}, "name the source of the messages"),
        ({"gzip": True, "filename_format": "x"}, "needs a <REV>"),
        ({"rotate_size": 1, "filename_format": "x"}, "needs a <REV>"),
        ({"topic_pattern": "a"}, "needs a --lookup"),
        ({"gzip": True, "gzip_level": 10}, "--gzip-level"),
        ({"zstd": True, "zstd_level": 20}, "--zstd-level"),
        ({"zstd": True, "gzip": True}, "one of --gzip and --zstd"),
        ({"zstd": True, "filename_format": "x"}, "needs a <REV>"),
        ({"channel": ""}, "--channel needs a name"),
        (
            {
                "topic_pattern": "(",
                "nsqd_tcp_addresses": (),
                "lookupd_http_addresses": ("127.0.0.1:1",),
            },
            r"--topic-pattern=\(: missing \)",
        ),
    ],
)
def test_conflicting_options_are_refused(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        World(tmp_path, **changes)


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.output.write(b"whole\n")
    world.output.sync()
    gone = World(tmp_path, gzip=True, filename_format="<TOPIC><REV>")
    gone.output.write(random.randbytes(5000))
    with files_of_at_most(4096):
        with pytest.raises(OSError, match=r"File too large: '.*/t\.here\."):
            world.output.write(b"x" * 5000)
        with pytest.raises(OSError, match=r"File too large: '.*/t-000000\.gz'"):
            gone.output.sync()
    assert any(data.startswith(b"whole\n") for data in world.files().values())


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """No file may become larger, as on a full disk: what fits of a write is written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def torn(folder: Path, **changes: Any) -> tuple[World, Path]:
    """An output whose file has a line that is whole, and where its files end."""
    work, done = folder / "work", folder / "done"
    names = {"work_dir": str(work), "output_dir": str(done), "filename_format": "<REV>"}
    world = World(folder, **(names | changes))
    world.output.write(b"whole\n")
    world.output.sync()
    return world, done / f"-000000{world.options.suffix}"


@pytest.mark.parametrize("changes", [{"gzip": True}, {"rotate_interval_ns": 10**12}], ids=str)
def test_a_member_torn_by_a_full_disk_is_cut_before_more_is_written(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Nothing could be read behind a torn member."""
    world, path = torn(tmp_path, **changes)
    with files_of_at_most(4096), pytest.raises(OSError, match="File too large"):
        world.output.write(random.randbytes(100_000))
    world.write(b"after\n")
    assert read_whole(path) == b"whole\nafter\n"


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("ends", ["sync", "close"])
def test_a_file_that_cannot_be_ended_is_whole_where_it_is_moved_to(
    tmp_path: Path, kind: str, ends: str
) -> None:
    """It was moved with the torn member at its end, or not moved at all."""
    world, path = torn(tmp_path, **{kind: True})
    world.output.write(random.randbytes(5000))
    with files_of_at_most(4096), pytest.raises(OSError, match="File too large"):
        getattr(world.output, ends)()
    world.output.close()
    assert read_whole(path) == b"whole\n"
    assert list(world.files()) == [f"done/{path.name}"]


def test_a_file_that_cannot_be_cut_is_not_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, path = torn(tmp_path, gzip=True)
    world.output.write(random.randbytes(5000))

    def fails(_file: int, _size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("martlet.cli.nsq_tools.output_file.os.ftruncate", fails)
    with files_of_at_most(4096), pytest.raises(OSError, match="Input/output error"):
        world.output.close()
    assert list(world.files()) == [f"work/{path.name}"]
    assert whole_members(world.files()[f"work/{path.name}"]) == b"whole\n"


def test_a_shared_file_is_not_cut(tmp_path: Path) -> None:
    """The bytes at its end may be of another process."""
    world = World(tmp_path)
    world.output.write(b"whole\n")
    (path,) = tmp_path.iterdir()
    with path.open("ab") as other:
        other.write(b"another's\n")
    with files_of_at_most(4096), pytest.raises(OSError, match="File too large"):
        world.output.write(b"x" * 5000)
    world.output.close()
    World(tmp_path).write(b"after\n")
    assert path.read_bytes() == b"whole\nanother's\n".ljust(4096, b"x") + b"\nafter\n"


def read_whole(path: Path) -> bytes:
    """Return the bytes for a reader that stops at anything torn."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    return unpacked_zstd(data) if path.suffix == ".zst" else data
