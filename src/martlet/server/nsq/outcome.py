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
    """Why the next commands wait.

    WAIT: the command cannot run yet, and is handled again later. ANSWER: it has run, and is to be
    answered first.
    """

    WAIT = "wait"
    ANSWER = "answer"


WAIT = Wait.WAIT
ANSWER = Wait.ANSWER
Outcome = ConnectionUpgrade | Wait | None
