"""The HTTP client of brokers and lookup daemons, and its flags."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self, TypeVar

import aiohttp

from martlet import unreachable
from martlet.http_answer import read_answer, read_json
from martlet.operator_tokens import token_headers
from martlet.options.checks import require_name
from martlet.options.flag import OptionError, option
from martlet.options.network import connect_timeout, operator_token_file, request_timeout
from martlet.options.options import LogOptions


@dataclass(frozen=True, kw_only=True)
class BrokerHttpOptions(LogOptions):
    """The brokers to ask, and the timeouts."""

    nsqd_http_addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> of a broker's HTTP; may be given several times",
        name="nsqd-http-address",
        section="brokers",
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> of a lookup daemon, which knows the brokers that have the topic; may be"
        " given several times",
        name="lookupd-http-address",
    )
    operator_token_file: str = operator_token_file()
    connect_timeout_ns: int = connect_timeout()
    request_timeout_ns: int = request_timeout()

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.nsqd_http_addresses) == bool(self.lookupd_http_addresses):
            raise OptionError(
                "say which brokers to ask, either with --nsqd-http-address or with"
                " --lookupd-http-address"
            )


@dataclass(frozen=True, kw_only=True)
class TopicOptions(BrokerHttpOptions):
    """The flag of the topic."""

    topic: str = option("", "the topic", section="topic")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topic:
            raise OptionError("the topic is missing: add its name, or --topic=NAME")
        require_name("topic", self.topic)


@dataclass(frozen=True, kw_only=True)
class ChannelOptions(BrokerHttpOptions):
    """The flags of the channel."""

    topic: str = option("", "the topic", section="channel")
    channel: str = option("", "the channel")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topic or not self.channel:
            raise OptionError(
                "the channel is missing: add the names of its topic and of the channel"
            )
        require_name("topic", self.topic)
        require_name("channel", self.channel)


_MAX_BYTES = 1 << 26
CALL_PATH = "/call/"
_NOT_NSQD = ("/channel/peek", "/channel/replay")
_TEXT_STATUSES = (200, 500)
"""An unhealthy broker answers the reason with status 500."""
_MISSING = {
    "TOPIC_NOT_FOUND": "there is no topic '{topic}'",
    "CHANNEL_NOT_FOUND": "there is no channel '{channel}' of topic '{topic}'",
}
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)
"""The errors of reading an unexpected answer."""


Fields = dict[str, Any]
NOT_FOUND = HTTPStatus.NOT_FOUND
A = TypeVar("A")


class NoHttpAnswer(OSError):
    """A broker or a lookup daemon refused or failed a request; the text names it and the reason.

    Attributes:
        why: the text without the address.
        status: the status of its answer; 0 if there was none.
    """

    def __init__(self, url: str, why: str, status: int = 0) -> None:
        super().__init__(f"{url}: {why}")
        self.why = why
        self.status = status


class NoConnection(NoHttpAnswer):
    """No server is reachable at an address."""

    def __init__(self, url: str, error: OSError, server: str) -> None:
        super().__init__(f"cannot connect to {url}", unreachable.reason(error, server))


class BrokerHttpClient:
    """Query the brokers that options name, inside ``async with``."""

    def __init__(self, options: BrokerHttpOptions) -> None:
        self._options = options

    async def __aenter__(self) -> Self:
        options = self._options
        self._token = token_headers(options.operator_token_file)
        timeout = aiohttp.ClientTimeout(
            total=options.request_timeout_ns / 1e9, connect=options.connect_timeout_ns / 1e9
        )
        self._session = aiohttp.ClientSession(timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def brokers(self, topic: str) -> list[str]:
        """Return the URLs of the brokers: named ones, or those that lookup daemons know to have a
        topic; without a topic, all that they know.

        Raises:
            NoHttpAnswer: no lookup daemon answered, or none knows a broker.
        """
        options = self._options
        if options.nsqd_http_addresses:
            return list(dict.fromkeys(map(_url, options.nsqd_http_addresses)))
        daemons = self.daemons()
        answers = await asyncio.gather(
            *(self._known(daemon, topic) for daemon in daemons), return_exceptions=True
        )
        found = dict.fromkeys(url for urls in answers if isinstance(urls, list) for url in urls)
        if found:
            return list(found)
        for error in answers:
            if isinstance(error, BaseException):
                raise error
        what = f"broker with topic {topic!r}" if topic else "broker"
        raise NoHttpAnswer(", ".join(daemons), f"no {what} is known there", NOT_FOUND)

    def daemons(self) -> list[str]:
        """Return the URLs of the named lookup daemons."""
        return list(dict.fromkeys(map(_url, self._options.lookupd_http_addresses)))

    async def each(
        self, urls: Sequence[str], ask: Callable[[str], Awaitable[A]]
    ) -> list[tuple[str, A | NoHttpAnswer]]:
        """Query servers concurrently; return each URL with its answer, or why there is none."""

        async def asked(url: str) -> tuple[str, A | NoHttpAnswer]:
            try:
                return url, await ask(url)
            except NoHttpAnswer as error:
                return url, error

        return list(await asyncio.gather(*map(asked, urls)))

    async def in_turn(
        self, topic: str, ask: Callable[[str], Awaitable[A]]
    ) -> AsyncIterator[tuple[str, A]]:
        """Query the brokers of a topic one after the other; yield each URL with its answer.

        Raises:
            NoHttpAnswer: no broker was found, or one did not answer. A broker without the requested
            object (404) is skipped, if another has it.
        """
        missing: NoHttpAnswer | None = None
        has_found = False
        for url in await self.brokers(topic):
            try:
                answer = await ask(url)
            except NoHttpAnswer as error:
                if error.status != NOT_FOUND:
                    raise
                missing = error
                continue
            has_found = True
            yield url, answer
        if missing is not None and not has_found:
            raise missing

    async def _known(self, daemon: str, topic: str) -> list[str]:
        try:
            path = "/lookup" if topic else "/nodes"
            known = await self.get(daemon, path, {"topic": topic} if topic else {})
            return [
                _url(f"{each['broadcast_address']}:{int(each['http_port'])}")
                for each in known.get("data", known)["producers"] or ()
            ]
        except NoHttpAnswer as error:
            if error.status == NOT_FOUND:
                return []
            raise
        except _UNREADABLE as error:
            raise NoHttpAnswer(daemon, f"no answer of a lookup daemon: {error!r}") from None

    async def get(self, url: str, path: str, arguments: Mapping[str, str]) -> Any:
        """Send a GET; return the answer's JSON. Raises NoHttpAnswer."""
        return await self._ask("GET", url, path, arguments)

    async def post(self, url: str, path: str, arguments: Mapping[str, str]) -> Any:
        """Send a POST; return the answer's JSON, if it has any. Raises NoHttpAnswer."""
        return await self._ask("POST", url, path, arguments)

    async def text(self, url: str, path: str) -> str:
        """Send a GET; return the answer's text, also of status 500. Raises NoHttpAnswer."""
        return str(await self._ask("GET", url, path, {}, as_text=True))

    async def call(self, url: str, name: str, fields: Mapping[str, Any]) -> Any:
        """Make a call; return the broker's answer. Raises NoHttpAnswer."""
        return await self._ask("POST", url, CALL_PATH + name, {}, fields)

    async def _ask(
        self,
        method: str,
        url: str,
        path: str,
        arguments: Mapping[str, str],
        fields: Mapping[str, Any] | None = None,
        *,
        as_text: bool = False,
    ) -> Any:
        headers = {} if url in self.daemons() else self._token
        try:
            async with self._session.request(
                method, url + path, params=arguments, json=fields, headers=headers
            ) as response:
                status = response.status
                if as_text and status in _TEXT_STATUSES:
                    return (await read_answer(response, _MAX_BYTES)).decode(errors="replace")
                # An action has an empty answer, as in nsqd.
                answer = None if response.content_length == 0 else await _json(response)
        except TimeoutError:
            raise NoHttpAnswer(url, "no answer in time") from None
        except aiohttp.ClientConnectorError as error:
            raise NoConnection(url, error.os_error, self._kind(url)) from None
        except aiohttp.ClientResponseError as error:
            if unreachable.is_tcp_port(error):
                raise NoHttpAnswer(url, unreachable.http_wanted(self._kind(url))) from None
            why = (error.message or str(error)).partition("\n")[0].rstrip(":")
            raise NoHttpAnswer(
                url, f"no answer over HTTP: {why}; is that its HTTP address?"
            ) from None
        except aiohttp.ClientError as error:
            raise NoHttpAnswer(url, str(error) or type(error).__name__) from None
        except ValueError as error:
            raise NoHttpAnswer(url, f"no answer of a broker: {error}") from None
        if status == 200:
            return answer
        message = answer.get("message") if isinstance(answer, dict) else None
        if message == "NOT_FOUND" and url in self.daemons():
            raise NoHttpAnswer(url, unreachable.not_that_server(unreachable.LOOKUP_DAEMON, path))
        if message == "NOT_FOUND":
            is_ours = path in _NOT_NSQD or path.startswith(CALL_PATH)
            hint = "nsqd has none; " if is_ours else ""
            raise NoHttpAnswer(url, f"it has no {path}: {hint}is that the right address?")
        if message in _MISSING:
            message = _MISSING[message].format_map(arguments)
        raise NoHttpAnswer(url, message or f"status {status}", status)

    def _kind(self, url: str) -> str:
        is_daemon = url in self.daemons()
        return unreachable.LOOKUP_DAEMON if is_daemon else unreachable.BROKER


async def _json(response: aiohttp.ClientResponse) -> Any:
    return await read_json(response, _MAX_BYTES)


def _url(address: str) -> str:
    return address.rstrip("/") if "://" in address else f"http://{address}"
