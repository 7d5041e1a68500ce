"""A broker whose disk or replicas can be held: nothing is confirmed until `release`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from martlet.broker.broker import BrokerCore
from martlet.server import build
from martlet.server.group_commit import GroupCommit
from martlet.testing import Broker

HOUR_NS = 3600 * 10**9


class HeldBroker(ABC):
    """A running broker.

    Args:
        broker: runs.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.server = broker.server
        self.core: BrokerCore = broker.server.broker
        self.commits = broker.server.commits

    @property
    def has_waiting(self) -> bool:
        """Whether any answer waits."""
        commits = self.commits
        waiting = commits._waiting or commits._awaiting or commits.flusher._ended
        return bool(waiting or self.core.transfers)

    @abstractmethod
    def hold(self) -> None:
        """Confirm nothing from now on."""

    @abstractmethod
    def release(self) -> None:
        """Confirm everything, also from now on."""


class HeldDisk(HeldBroker):
    """With --flush=sync: a flush hangs."""

    def hold(self) -> None:
        self.commits.flusher.flushing = True

    def release(self) -> None:
        self.commits.flusher.flushing = False
        self.commits.flusher.flush()


class HeldReplicas(HeldBroker):
    """With replicas: no standby answers."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.core.await_confirmation(self.core.log.position)
        self.release()

    def hold(self) -> None:
        self.commits.on_log_moved = lambda: None

    def release(self) -> None:
        self.commits.on_log_moved = self._confirm
        self._confirm()

    def _confirm(self) -> None:
        self.core.confirm(self.core.log.position)
        self.commits.answer()


@asynccontextmanager
async def held_broker(
    kind: type[HeldBroker], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HeldBroker]:
    """Run a broker that can be held. It writes no cursors and makes no checkpoints by itself."""
    with monkeypatch.context() as patched:
        if kind is HeldReplicas:
            patched.setattr(build, "GroupCommit", partial(_confirmed, GroupCommit))
        flush = "async" if kind is HeldReplicas else "sync"
        broker = Broker(
            folder, flush=flush, journal_interval_ns=HOUR_NS, checkpoint_interval_ns=HOUR_NS
        )
        async with broker:
            held = kind(broker)
            yield held
            if isinstance(held, HeldReplicas):
                held.commits.on_log_moved = lambda: None  # The broker stops.


def _confirmed(
    kind: type[GroupCommit], *arguments: Any, answers_confirmed: bool = False
) -> GroupCommit:
    assert not answers_confirmed
    return kind(*arguments, answers_confirmed=True)
