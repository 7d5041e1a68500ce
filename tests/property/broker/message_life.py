"""A broker and what it promised to store: its disk may be full, its process and power may fail."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random

from tests.unit.broker.core import Core

from martlet.broker.errors import WritesRefused
from martlet.broker.queue.queue_log import Receipt


class MessageLife(ABC):
    """A life by steps: a subclass has more of them, `check` and `drain`."""

    def __init__(self, seed: int, *, sync: bool) -> None:
        self.random = Random(seed)
        self.sync = sync
        self.core = Core()
        self.published: dict[bytes, Receipt] = {}
        self.promised: set[bytes] = set()
        self.count = 0
        self.crashed = False

    def live(self, steps: list[str]) -> None:
        for step in steps:
            getattr(self, step)()
            self.check()
        self.drain()

    def check(self) -> None:
        """Take in what is promised now."""
        log = self.core.broker.log
        for body, receipt in self.published.items():
            if receipt.position and (not self.sync or receipt.position <= log.durable_position):
                self.promised.add(body)

    @abstractmethod
    def drain(self) -> None: ...

    def body(self) -> bytes:
        self.count += 1
        return b"%d " % self.count + b"." * self.random.choice([0, 20, 200])

    def refused(self, call: Callable[[], object]) -> bool:
        """Do what may be refused while the disk is full, and only then."""
        try:
            call()
        except (WritesRefused, OSError):
            assert self.core.storage.capacity_bytes is not None
            return True
        return False

    def flush(self) -> None:
        self.core.flush()
        self.core.broker.transfers.settle()

    def checkpoint(self) -> None:
        self.refused(self.core.checkpoint)

    def journal(self) -> None:
        self.refused(self.core.broker.write_journal)

    def fill(self) -> None:
        self.core.storage.capacity_bytes = self.core.storage.used_bytes

    def make_room(self) -> None:
        self.core.storage.capacity_bytes = None
        self.core.broker.log.refresh_full()

    def lose_power(self) -> None:
        """Forget what may be lost with the power."""
        durable = self.core.broker.log.durable_position
        self.published = {b: r for b, r in self.published.items() if r.position <= durable}
