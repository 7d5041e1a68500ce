"""Discovery: which brokers there are, or have a topic, as lookup daemons tell it.

The daemons are asked every so often, at a moment that is partly left to chance, so that many
clients do not ask all at once; and at once when a connection is lost.  What any of them tells
counts.  A broker is taken to have gone only when every daemon answered and none told of it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from martlet.client.address import Address
from martlet.http_answer import read_json

logger = logging.getLogger("martlet.client")

JITTER = 0.3
"""The part of the time between two looks that is left to chance."""
SHORTEST_PAUSE_S = 0.25
"""However often connections are lost, the daemons are not asked more often than so."""
ANSWER_S = 5.0
_LONGEST_ANSWER_BYTES = 1 << 24
DEFAULT_PORT = 4161
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError)
"""What a daemon that does not answer raises, or an answer of another shape."""


class Discovery:
    """Looks for the brokers of a topic.

    Args:
        topic: which; None for all brokers.
        addresses: of the HTTP doors of lookup daemons, as ``"host:port"`` or as URLs.
        poll_s: seconds between two looks.
        on_found: told what a look has found, and whether that is all there is.
    """

    def __init__(
        self,
        topic: str | None,
        addresses: Sequence[str],
        poll_s: float,
        on_found: Callable[[list[Address], bool], None],
    ) -> None:
        if poll_s <= 0:
            raise ValueError(f"lookup_poll_s={poll_s} must be above 0")
        self._urls = [_url(address) for address in addresses]
        if not self._urls:
            raise ValueError("no lookup daemon given: name one, as 127.0.0.1:4161")
        self._topic = topic
        self._poll_s = poll_s
        self._on_found = on_found
        self._wanted = asyncio.Event()

    def look_again(self) -> None:
        """Do not wait for the next look."""
        self._wanted.set()

    async def watch(self) -> None:
        """Look, again and again, until cancelled."""
        while True:
            await asyncio.sleep(SHORTEST_PAUSE_S)
            pause_s = self._poll_s * (1 + JITTER * (random.random() - 1))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, pause_s - SHORTEST_PAUSE_S)):
                    await self._wanted.wait()
            self._wanted.clear()
            await self.look()

    async def look(self) -> None:
        """Ask all daemons once, and tell what was found."""
        answers = await asyncio.gather(*(self._ask(url) for url in self._urls))
        found = dict.fromkeys(address for answer in answers for address in answer or ())
        self._on_found(list(found), None not in answers)

    async def _ask(self, url: str) -> list[Address] | None:
        """What one daemon knows; None where it does not answer as it should."""
        try:
            if self._topic is None:
                known = await _get(f"{url}/nodes")
            else:
                known = await _get(f"{url}/lookup", topic=self._topic)
            return [
                Address(str(each["broadcast_address"]), int(each["tcp_port"]))
                for each in known.get("producers", ())
            ]
        except _UNREADABLE as error:
            _warn(url, error)
            return None


async def known_topics(daemons: Sequence[str]) -> list[str]:
    """All topics that lookup daemons know, those that answer."""

    async def ask(url: str) -> list[str]:
        try:
            return [str(name) for name in (await _get(f"{url}/topics")).get("topics", ())]
        except _UNREADABLE as error:
            _warn(url, error)
            return []

    answers = await asyncio.gather(*(ask(_url(address)) for address in daemons))
    return sorted({name for names in answers for name in names})


async def _get(url: str, **arguments: str) -> dict[str, Any]:
    """The JSON of an answer; nothing for what is not found. Raises one of `_UNREADABLE`."""
    import aiohttp

    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as session,
            session.get(url, params=arguments) as response,
        ):
            if response.status == 404:
                return {}
            response.raise_for_status()
            known: dict[str, Any] = await read_json(response, _LONGEST_ANSWER_BYTES)
            # Older ones wrap what they know.
            wrapped: dict[str, Any] = known.get("data", known)
            return wrapped
    except aiohttp.ClientError as error:
        raise OSError(str(error) or type(error).__name__) from error


def _warn(url: str, error: Exception) -> None:
    reason = str(error) or type(error).__name__
    logger.warning("the lookup daemon at %s does not answer: %s", url, reason)


def _url(address: str) -> str:
    if not address.startswith(("http://", "https://")):
        with_port = address if ":" in address else f"{address}:{DEFAULT_PORT}"
        return f"http://{with_port}"
    return address.rstrip("/")
