"""Memory of an idle channel."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.unit.broker.core import SECOND_NS, Client

from martlet.broker.recovery.restore import restore
from martlet.broker.retention.checkpoint import begin_checkpoint, end_checkpoint
from martlet.log.storage import DiskStorage
from martlet.testing import SimulatedClock


@pytest.mark.parametrize("way", ["whole batches", "one by one", "emptied"])
def test_idle_channels_hold_no_segment_that_has_gone(tmp_path: Path, way: str) -> None:
    """Otherwise its space on the disk is taken for as long as the channel is idle."""
    storage = DiskStorage(tmp_path, spares=9)
    broker, _ = restore(storage, SimulatedClock(), Random(1), segment_bytes=1 << 16)
    for number in range(4):
        topic = broker.topic(f"t{number}")
        client = Client(topic.channel("c"), SECOND_NS).ready(10 if way == "whole batches" else 1)
        topic.stage([bytes(20_000)] * 2)
        broker.commit()
        if way == "emptied":
            topic.channel("c").empty()
        while client.consumer.in_flight_count:
            client.finish(len(client.got) - 1) if way == "one by one" else client.finish()
    job = begin_checkpoint(broker)
    job.flush.run()
    job.save()
    end_checkpoint(broker, job)
    gone = len(job.free)
    assert gone >= 3
    assert len(list((tmp_path / "log").glob("*.spare"))) >= gone, "they can be used again"
    with open("/proc/self/maps", encoding="ascii") as maps:
        assert not [line for line in maps if str(tmp_path) in line and "(deleted)" in line]
    storage.close()
