"""Output files: their names, when the next one is begun, and what can be read when."""

import gzip
import random
import resource
import time
import zlib
from pathlib import Path
from typing import Any

import cramjam
import pytest

from martlet.options import OptionError
from martlet.options.to_file import FileOptions
from martlet.tools.output import Output

START_S = 1_700_000_000.0


class World:
    """An output in a folder, with a clock."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.now_s = START_S
        self.folder = folder
        flags: dict[str, Any] = {
            "topics": ("t",),
            "nsqd_tcp_addresses": ("127.0.0.1:4150",),
            "output_dir": str(folder),
            "host_identifier": "here",
            "datetime_format": "%H",
        }
        self.options = FileOptions(**(flags | changes))
        self.output = Output(self.options, "t", lambda: self.now_s)

    def files(self) -> dict[str, bytes]:
        """What is in the folder."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }


def hour(now_s: float) -> str:
    return time.strftime("%H", time.localtime(now_s))


def whole_members(data: bytes) -> bytes:
    """What can be read of a compressed file, up to the member that was being written."""
    found = b""
    while data:
        member = zlib.decompressobj(wbits=31)
        text = member.decompress(data)
        if not member.eof:
            break
        found += text
        data = member.unused_data
    return found


def test_a_plain_file_has_no_number_and_is_gone_on_with(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.output.write(b"one\n")
    world.output.close()
    again = World(tmp_path)
    again.output.write(b"two\n")
    again.output.close()
    assert world.files() == {f"t.here.{hour(START_S)}.log": b"one\ntwo\n"}


def test_another_hour_is_another_file(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.output.write(b"one\n")
    world.now_s += 3600
    world.output.write(b"two\n")
    world.output.close()
    assert list(world.files().values()) == [b"one\n", b"two\n"]


def test_size_and_age_begin_files_with_numbers(tmp_path: Path) -> None:
    world = World(tmp_path, rotate_size=6, rotate_interval_ns=10 * 10**9)
    for line in (b"one\n", b"two\n", b"three\n"):
        world.output.write(line)
    world.now_s += 11
    world.output.write(b"four\n")
    world.output.close()
    head = "t.here-00000"
    tail = f".{hour(START_S)}.log"
    assert world.files() == {
        f"{head}0{tail}": b"one\ntwo\n",
        f"{head}1{tail}": b"three\n",
        f"{head}2{tail}": b"four\n",
    }


def test_what_was_synced_can_be_read_though_the_writer_never_ended(tmp_path: Path) -> None:
    world = World(tmp_path, gzip=True)
    world.output.write(b"one\n")
    world.output.sync()
    world.output.write(b"two\n")
    world.output.sync()
    world.output.write(b"not synced\n")
    (name,) = world.files()
    assert name.endswith(".log.gz")
    assert whole_members(world.files()[name]) == b"one\ntwo\n"
    world.output.close()
    assert gzip.decompress(world.files()[name]) == b"one\ntwo\nnot synced\n"


def test_a_zstd_file_is_a_row_of_frames(tmp_path: Path) -> None:
    world = World(tmp_path, zstd=True)
    world.output.write(b"one\n")
    world.output.sync()
    world.output.write(b"two\n")
    world.output.sync()
    world.output.write(b"not synced\n")
    (name,) = world.files()
    assert name.endswith(".log.zst")
    assert bytes(cramjam.zstd.decompress(world.files()[name])) == b"one\ntwo\n"
    world.output.close()
    assert bytes(cramjam.zstd.decompress(world.files()[name])) == b"one\ntwo\nnot synced\n"
    again = World(tmp_path, zstd=True)
    again.output.write(b"another file\n")
    again.output.close()
    assert len(world.files()) == 2


def test_a_line_that_was_broken_off_is_ended(tmp_path: Path) -> None:
    path = tmp_path / f"t.here.{hour(START_S)}.log"
    path.write_bytes(b"one\ntw")
    world = World(tmp_path)
    world.output.write(b"two\n")
    world.output.close()
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
    world.output.write(b"two\n")
    world.output.close()
    assert world.files() == {
        "done/t/t-000000.log": b"somebody else's",
        "done/t/t-000001.log": b"one\n",
        "done/t/t-000002.log": b"two\n",
    }


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"topics": ()}, "--topic or --topic-pattern"),
        ({"nsqd_tcp_addresses": ()}, "say where the messages are"),
        ({"gzip": True, "filename_format": "x"}, "needs a <REV>"),
        ({"rotate_size": 1, "filename_format": "x"}, "needs a <REV>"),
        ({"topic_pattern": "a"}, "needs a --lookupd-http-address"),
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
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        World(tmp_path, **changes)


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    world = World(tmp_path)
    world.output.write(b"whole\n")
    world.output.sync()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*/t\.here\."):
            world.output.write(b"x" * 5000)
        gone = World(tmp_path, gzip=True, filename_format="<TOPIC><REV>")
        gone.output.write(random.randbytes(5000))
        with pytest.raises(OSError, match=r"File too large: '.*/t-000000\.gz'"):
            gone.output.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert any(data.startswith(b"whole\n") for data in world.files().values())
