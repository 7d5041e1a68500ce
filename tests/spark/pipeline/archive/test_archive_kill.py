"""The archive with its processes killed by turns, or cancelled, wherever it writes: each message
once, and never a reader misled.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyarrow import fs
from tests.spark.kills import BATCH, LONG_S, Feed, Started, finished

from martlet.pipeline.archive.delta_table import delta_location
from martlet.pipeline.archive.store import Store
from martlet.testing import BrokerProcess

pytestmark = [
    pytest.mark.spark,
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
]
VICTIMS = ("driver", "java", "worker", "broker", "term", "interrupt")
BUCKET = "bucket"


class Archive:
    """An archive that is written, as its readers see it."""

    def __init__(self, location: str, kind: str) -> None:
        self.location = location
        self.is_delta = kind == "delta"
        self._flags = (f"--out={location}", f"--format={kind}")

    def command(self, broker: BrokerProcess, *more: str) -> list[str]:
        """The command that writes it."""
        return [
            *(sys.executable, "-m", "martlet", "pipeline", "archive", "--master=local[2]"),
            *(f"--addresses={broker.http_address}", "--topic=t", *self._flags),
            *("--interval=0s", "--compact-files=8", *more),
        ]

    def rows(self) -> pa.Table:
        """The offsets and bodies that a reader sees now, in order; no message twice."""
        columns = ["offset", "value"]
        if self.is_delta:
            uri, storage = delta_location(self.location)
            table = DeltaTable(uri, storage_options=storage).to_pyarrow_table(columns=columns)
        else:
            store = Store.at(self.location)
            files = ds.dataset(
                store.root, filesystem=store.system, partitioning="hive", format="parquet"
            )
            table = files.to_table(columns=columns)
        offsets = table["offset"].to_pylist()
        assert len(set(offsets)) == len(offsets), "a reader sees messages twice"
        return table.sort_by("offset")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a folder in an object store, which outlives all that is killed."""
    from moto.server import ThreadedMotoServer

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    query = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    try:
        url = f"s3://{BUCKET}?allow_bucket_creation=true&{query}"
        fs.FileSystem.from_uri(url)[0].create_dir(BUCKET)
        yield f"s3://{BUCKET}/out?{query}"
    finally:
        server.stop()


@pytest.fixture(params=["parquet", "delta", "parquet on s3", "delta on s3"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    kind, _, place = request.param.partition(" on ")
    location = request.getfixturevalue("bucket") if place else str(tmp_path / "out")
    return Archive(location, kind)


def test_each_message_is_archived_once_whatever_is_killed_or_cancelled(
    archive: Archive, tmp_path: Path
) -> None:
    chance = random.Random(6)
    seen: set[int] = set()
    with BrokerProcess(tmp_path / "data", start_timeout_s=LONG_S) as broker:
        with Feed([broker.http_address], "t") as feed:
            for victim in VICTIMS:
                command = archive.command(broker, f"--max-offsets={3 * BATCH}")
                with Started(command, tmp_path) as started:
                    if victim == "broker":
                        started.await_moment(chance)
                        broker.kill()
                        broker.restart()
                        started.committed()
                    else:
                        started.strike(victim, chance)
                before, seen = seen, set(archive.rows()["offset"].to_pylist())
                assert before < seen, victim
        for printed in ("archived", "nothing new to archive"):
            assert printed in finished(archive.command(broker, "--once"))
    rows = archive.rows()
    count = len(rows)
    assert 0 < feed.count <= count
    assert rows["offset"].to_pylist() == list(range(count))
    assert set(rows["value"].to_pylist()) == {b"%d" % number for number in range(feed.count)}
    if archive.is_delta:
        return
    assert not Store.at(archive.location).files("_martlet/staged", recursive=True)
    if "://" not in archive.location:
        files = f"read_parquet('{archive.location}/**/*.parquet', hive_partitioning = true)"
        counted = duckdb.sql(f"SELECT count(*), count(DISTINCT value) FROM {files}")
        assert counted is not None
        assert counted.fetchall() == [(count, feed.count)]
