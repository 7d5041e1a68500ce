"""The outcome of a command: None if the connection just continues."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from enum import Enum


class ConnectionUpgrade(ABC):
    """The switch of a connection to TLS or compression, as agreed by IDENTIFY."""

    @abstractmethod
    def begin(self, transport: asyncio.Transport, early: bytes) -> None:
        """Start, once the answer to IDENTIFY is written.

        Args:
            transport: the connection's old one.
            early: the bytes received after IDENTIFY.
        """


class Wait(Enum):
    """The command cannot run yet: it is handled again later."""

    WAIT = "wait"


WAIT = Wait.WAIT
Outcome = ConnectionUpgrade | Wait | None
