"""The outcome of a command: None where the connection just goes on."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from enum import Enum


class ConnectionUpgrade(ABC):
    """The change of a connection to TLS or compression, which IDENTIFY has agreed on."""

    @abstractmethod
    def begin(self, transport: asyncio.Transport, early: bytes) -> None:
        """Start, once the answer to IDENTIFY is written.

        Args:
            transport: of the connection until now.
            early: the bytes that came behind IDENTIFY.
        """


class Wait(Enum):
    """The command cannot be done yet: it is handled again later."""

    WAIT = "wait"


WAIT = Wait.WAIT
Outcome = ConnectionUpgrade | Wait | None
