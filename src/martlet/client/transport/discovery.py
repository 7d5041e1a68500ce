"""Discovery: ask lookup daemons for the brokers of a topic, or for all.

Each daemon is polled at intervals with jitter, so that many clients do not poll at the same time.
When a connection is lost it is polled at once, and then at intervals that grow from half a second,
since a broker may soon be at another address. The polls do not wait for each other, so a slow,
silent or broken daemon delays nothing. A broker that any daemon names is used. It counts as gone
only when the last answers of all daemons are valid and none names it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from martlet import unreachable
from martlet.addresses import Address, lookup_address
from martlet.http_requests import load_aiohttp, read_json
from martlet.unreachable import Outage

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger("martlet.client")

JITTER = 0.3
"""The random part of the interval between two polls."""
MIN_PAUSE_S = 0.25
"""The minimum interval of polls, however often connections are lost."""
ANSWER_S = 5.0
MAX_ANSWER_BYTES = 1 << 22
MAX_BROKERS = 1000
"""The maximum number of brokers of one daemon; further ones are ignored."""
DEFAULT_PORT = 4161
_NO_SUCH_PATH = "NOT_FOUND"
"""The answer of any NSQ server to an unknown path."""
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""The errors of a daemon that does not answer, or answers something else."""

Found = Callable[[list[Address], bool], None]


class _Answer(NamedTuple):
    """The last answer of a daemon, and whether it was complete."""

    brokers: list[Address]
    is_sound: bool


class Discovery:
    """Discover the brokers of a topic.

    Args:
        addresses: the HTTP addresses of lookup daemons, as ``"host:port"`` or as URLs.
        on_found: called with the brokers, and whether these are all.
    """

    def __init__(
        self, topic: str | None, addresses: Sequence[str], poll_s: float, on_found: Found
    ) -> None:
        if poll_s <= 0:
            raise ValueError(f"lookup_poll_s={poll_s} must be above 0")
        urls = list(dict.fromkeys(_url(address) for address in addresses))
        if not urls:
            raise ValueError("no lookup daemon given: name one, as 127.0.0.1:4161")
        self._topic = topic
        self._poll_s = poll_s
        self._on_found = on_found
        self._poll_now = {url: asyncio.Event() for url in urls}
        self._outages = {url: _outage(url) for url in urls}
        self._answers: dict[str, _Answer] = {}
        self._has_logged_none = False
        self._has_found = asyncio.Event()

    def poll_now(self) -> None:
        """Poll at once, and again after pauses that double up to the interval."""
        for poll_now in self._poll_now.values():
            poll_now.set()

    async def first_found(self) -> None:
        """Wait until a broker is found, or each daemon was polled once."""
        await self._has_found.wait()

    async def watch(self) -> None:
        """Poll until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for url, poll_now in self._poll_now.items():
                    group.create_task(self._watch_one(url, poll_now), name=f"martlet lookup {url}")
        finally:
            self._has_found.set()

    async def _watch_one(self, url: str, poll_now: asyncio.Event) -> None:
        soon_s = inf
        while True:
            poll_now.clear()
            self._answers[url] = await self._ask(url)
            self._notify()
            await asyncio.sleep(MIN_PAUSE_S)
            pause_s = self._poll_s * (1 + JITTER * (random.random() - 1))
            try:
                async with asyncio.timeout(max(0.0, min(soon_s, pause_s) - MIN_PAUSE_S)):
                    await poll_now.wait()
                soon_s = 2 * MIN_PAUSE_S
            except TimeoutError:
                soon_s *= 2

    def _notify(self) -> None:
        answers = self._answers.values()
        brokers = dict.fromkeys(address for answer in answers for address in answer.brokers)
        is_complete = len(self._answers) == len(self._poll_now)
        is_sound = is_complete and all(answer.is_sound for answer in answers)
        if is_sound and not brokers and not self._has_logged_none:
            what = "broker" if self._topic is None else f"broker with topic {self._topic!r}"
            logger.warning(
                "%s: no %s is known there; polling again every %g s",
                ", ".join(self._poll_now),
                what,
                self._poll_s,
            )
        self._has_logged_none = is_sound and not brokers
        self._on_found(list(brokers), is_sound)
        if brokers or is_complete:
            self._has_found.set()

    async def _ask(self, url: str) -> _Answer:
        """Return the brokers that one daemon knows."""
        try:
            if self._topic is None:
                answer = await _get(f"{url}/nodes")
            else:
                answer = await _get(f"{url}/lookup", topic=self._topic)
            producers = list(answer.get("producers") or ())
        except _UNREADABLE as error:
            self._outages[url].failed(_reason(error))
            return _Answer([], False)
        self._outages[url].over()
        brokers: dict[Address, None] = {}
        for producer in producers[:MAX_BROKERS]:
            try:
                brokers[_address(producer)] = None
            except _UNREADABLE as error:
                logger.warning("the lookup daemon at %s names an unusable broker: %r", url, error)
        if len(producers) > MAX_BROKERS:
            logger.warning(
                "the lookup daemon at %s names %d brokers; only the first %d are used",
                url,
                len(producers),
                MAX_BROKERS,
            )
        return _Answer(list(brokers), len(brokers) == len(producers))


class KnownTopics:
    """Ask lookup daemons for all topics, and log once that a daemon does not answer.

    Args:
        connect_s: the time limit of connecting, if shorter than that of the answer.
    """

    def __init__(
        self, daemons: Sequence[str], *, connect_s: float | None = None, answer_s: float = ANSWER_S
    ) -> None:
        self._outages = {url: _outage(url) for url in map(_url, daemons)}
        self._connect_s = connect_s
        self._answer_s = answer_s

    async def poll(self) -> list[str]:
        """Return the topics of all daemons that answer, sorted."""
        answers = await asyncio.gather(*map(self._ask, self._outages))
        return sorted({name for names in answers for name in names})

    async def _ask(self, url: str) -> list[str]:
        try:
            answer = await _get(f"{url}/topics", connect_s=self._connect_s, answer_s=self._answer_s)
            names = [str(name) for name in answer.get("topics", ())]
        except _UNREADABLE as error:
            self._outages[url].failed(_reason(error))
            return []
        self._outages[url].over()
        return names


def _address(producer: dict[str, Any]) -> Address:
    """Read a broker's address from an answer. Raises one of `_UNREADABLE`."""
    return lookup_address(producer["broadcast_address"], producer["tcp_port"])


async def _get(
    url: str, *, connect_s: float | None = None, answer_s: float = ANSWER_S, **arguments: str
) -> dict[str, Any]:
    """Return the JSON of an answer; empty if nothing is found. Raises one of `_UNREADABLE`."""
    await load_aiohttp()
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=answer_s, connect=connect_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, params=arguments) as response,
        ):
            if response.status == 404:
                if await _has_no_such_path(response):
                    path = response.url.path
                    raise OSError(unreachable.not_that_server(unreachable.LOOKUP_DAEMON, path))
                return {}
            response.raise_for_status()
            answer: dict[str, Any] = await read_json(response, MAX_ANSWER_BYTES)
            # Older daemons wrap the answer.
            wrapped: dict[str, Any] = answer.get("data", answer)
            return wrapped
    except aiohttp.ClientConnectorError as error:
        raise OSError(unreachable.reason(error.os_error, unreachable.LOOKUP_DAEMON)) from error
    except aiohttp.ClientError as error:
        if unreachable.is_tcp_port(error):
            raise OSError(unreachable.http_wanted(unreachable.LOOKUP_DAEMON)) from error
        raise OSError(str(error) or type(error).__name__) from error


async def _has_no_such_path(response: aiohttp.ClientResponse) -> bool:
    """Return whether an answer 404 is not a lookup daemon's, which would name the unknown topic."""
    try:
        answer = await read_json(response, MAX_ANSWER_BYTES)
    except ValueError:
        return True
    return not isinstance(answer, dict) or answer.get("message") == _NO_SUCH_PATH


def _outage(url: str) -> Outage:
    daemon = f"the lookup daemon at {url}"
    return Outage(f"{daemon} does not answer", f"{daemon} answers")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _url(address: str) -> str:
    if not address.startswith(("http://", "https://")):
        with_port = address if ":" in address else f"{address}:{DEFAULT_PORT}"
        return f"http://{with_port}"
    return address.rstrip("/")
