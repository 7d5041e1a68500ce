"""``martlet to-http``: send the messages of topics over HTTP.

After another status, no answer in time or no connection, the message is requeued for a time that
grows with its attempts, and the consumer backs off (see
`martlet.client.consumer.handling.backoff`).  A message may be sent twice, and none is lost.

Redirects are followed, except those that turn a POST into a GET without a body (301, 302 and 303):
the URL behind them would not get the message.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast
from urllib.parse import quote_plus

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from martlet import __version__, unreachable
from martlet.cli import tool
from martlet.cli.nsq_tools.hosts import HostPool, Timings, mode_option, status_option
from martlet.cli.nsq_tools.source import LimitedSourceOptions, TopicConsumers
from martlet.client import Message
from martlet.options.flag import OptionError, option
from martlet.options.network import connect_timeout, request_timeout
from martlet.unreachable import Outage

DEFAULT_CONTENT_TYPE = "application/octet-stream"


@dataclass(frozen=True, kw_only=True)
class ToHttpOptions(LimitedSourceOptions):
    """The options of ``martlet to-http``."""

    gives_up: ClassVar[bool] = True
    channel: str = option("nsq_to_http", "the channel")
    sample: float = option(1.0, "the fraction of messages to send, from 0 to 1")
    post_urls: tuple[str, ...] = option(
        (),
        "a URL to POST each message to; may be given several times",
        name="post",
        section="requests",
    )
    get_urls: tuple[str, ...] = option(
        (),
        "a URL to GET, with %s in place of the message; may be given several times",
        name="get",
    )
    mode: str = mode_option("URLs", multicast=True)
    publishers: int = option(100, "maximum concurrent requests", name="n", limits=(1, 100_000))
    content_type: str = option(DEFAULT_CONTENT_TYPE, "the Content-Type of a POST")
    headers: tuple[str, ...] = option(
        (), "NAME:VALUE of each request; may be given several times", name="header"
    )
    connect_timeout_ns: int = connect_timeout()
    request_timeout_ns: int = request_timeout(seconds=20)
    status_every: int = status_option("log request times every N requests; 0: never")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topics or not self.channel:
            raise OptionError("--topic and --channel are needed: name the messages to send")
        if self.post_urls and self.get_urls:
            raise OptionError("--post and --get exclude each other: give one")
        if not self.urls:
            raise OptionError("name the URL to send to, either with --post or with --get")
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise OptionError(f"{url!r} is no URL; write http://HOST/PATH or https://HOST/PATH")
        for url in self.get_urls:
            if url.count("%s") != 1:
                raise OptionError(f"--get={url} needs %s once, in place of the message")
        if not self.content_type:
            raise OptionError("--content-type needs a value")
        if self.content_type != DEFAULT_CONTENT_TYPE and not self.post_urls:
            raise OptionError("--content-type goes with --post: a GET has no body")
        if not 0 <= self.sample <= 1:
            raise OptionError(f"--sample={self.sample:g} must be from 0 to 1")
        _ = self.header_fields

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs to send to."""
        return tuple(dict.fromkeys(self.post_urls or self.get_urls))

    @property
    def header_fields(self) -> dict[str, str]:
        """The fields that ``--header`` sets. Raises OptionError."""
        fields = {}
        for header in self.headers:
            name, _, value = map(str.strip, header.partition(":"))
            if not name or not value or not name.isascii() or not header.isprintable():
                raise OptionError(f"--header={header!r} is none; write NAME:VALUE")
            fields[name] = value
        return fields


MAX_ANSWERS = 100
"""The maximum number of answers to one request, interim ones included: a slow server may send 102
every second.
"""


class BoundedAnswers(ResponseHandler):
    """A connection to an HTTP server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._answer_count = 0

    def set_response_params(self, **params: Any) -> None:
        """Begin a request: later input answers it."""
        self._answer_count = 0
        super().set_response_params(**params)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Count an answer whose head has arrived."""
        self._answer_count += 1
        if self._answer_count <= MAX_ANSWERS:
            super().feed_data(data, size)
        elif self._answer_count == MAX_ANSWERS + 1:
            self.abort()
            self.set_exception(
                aiohttp.ClientPayloadError(f"more than {MAX_ANSWERS} answers to one request")
            )


class BoundedConnector(aiohttp.TCPConnector):
    """Connect to HTTP servers and count their answers, with any number of connections."""

    def __init__(self) -> None:
        super().__init__(limit=0)
        factory = partial(BoundedAnswers, loop=self._loop)
        self._factory = cast("partial[ResponseHandler]", factory)


log = logging.getLogger(__name__)

_MAX_DRAINED_BYTES = 1 << 20
"""The maximum bytes of an answer read to keep the connection; after more it is closed."""
_DROPS_BODY = frozenset({301, 302, 303})
"""Redirects that turn a POST into a GET, as in browsers."""
_MAX_SHOWN = 200
"""The maximum number of characters of an error in a log line: it may quote an answer."""


class NotTaken(Exception):
    """A URL did not accept a message; the text names it and the reason."""


class _Unreachable(NotTaken):
    """There is no connection to a URL, which is no fault of the message."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{url}: {why}")
        self.url = url
        self.why = why


class _MessageDropped(Exception):
    """A redirect would drop the message; the text names it."""


async def _keep_the_message(
    request: aiohttp.ClientRequest, ask: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Make a request, the first or a redirected one. Raises _MessageDropped."""
    response = await ask(request)
    if request.method == "POST" and response.status in _DROPS_BODY:
        to = response.headers.get("Location", "")
        response.release()
        raise _MessageDropped(
            f"status {response.status} to {to!r:.{_MAX_SHOWN}}, which would get no message: name"
            " the final URL, or answer 307 or 308"
        )
    return response


class ToHttp(TopicConsumers):
    """Send the messages of topics."""

    def __init__(self, options: ToHttpOptions, dice: random.Random | None = None) -> None:
        super().__init__("to-http", options, options.channel)
        self._options = options
        self._dice = dice or random.Random()
        self._multicast = options.mode == "multicast"
        mode = "round-robin" if self._multicast else options.mode
        self._pool = HostPool(options.urls, mode, dice=self._dice)
        self._timings = Timings(options.status_every, options.urls)
        self._outages = {
            url: Outage(f"cannot connect to {url}", f"connected to {url}") for url in options.urls
        }
        self._headers = {"User-Agent": f"martlet/{__version__}"}
        if options.post_urls:
            self._headers["Content-Type"] = options.content_type
        self._headers |= options.header_fields

    async def run(self) -> None:
        """Send, as `follow_all`, over one session."""
        options = self._options
        timeout = aiohttp.ClientTimeout(
            total=options.request_timeout_ns / 1e9, connect=options.connect_timeout_ns / 1e9
        )
        async with aiohttp.ClientSession(
            timeout=timeout,
            connector=BoundedConnector(),
            headers=self._headers,
            middlewares=(_keep_the_message,),
            cookie_jar=aiohttp.DummyCookieJar(),  # kept cookies would grow each request
        ) as self._session:
            await self.follow_all(self._follow)

    async def _follow(self, topic: str) -> None:
        # A request has one message, and each is answered alone.
        async with self._consumers[topic] as source:
            await source.run(self._handle, concurrency=self._options.publishers)

    async def _handle(self, message: Message) -> None:
        """Send a message, or skip it by --sample."""
        if self._options.sample < 1 and self._dice.random() >= self._options.sample:
            return
        began_s = time.monotonic()
        try:
            if self._multicast:
                await self._send_to_all(message.body)
            else:
                await self._send_to_one(message.body)
        except NotTaken as error:
            delay_ms = self._delay_ms(message.attempts)
            level = logging.ERROR
            if isinstance(error, _Unreachable):
                self._outages[error.url].failed(error.why)
                level = logging.DEBUG
            log.log(level, "%s; attempt %d, again in %d ms", error, message.attempts, delay_ms)
            message.requeue(delay_ms, backoff=True)
        else:
            self._timings.note(time.monotonic() - began_s)

    async def _send_to_all(self, body: bytes) -> None:
        for url in self._options.urls:
            self._timings.note_host(url, await self._send(url, body))

    async def _send_to_one(self, body: bytes) -> None:
        url = self._pool.pick()
        try:
            seconds = await self._send(url, body)
        except NotTaken:
            self._pool.failed(url)
            raise
        self._pool.succeeded(url, seconds)
        self._timings.note_host(url, seconds)

    async def _send(self, url: str, body: bytes) -> float:
        """Send a message to a URL; return the seconds that it took. Raises NotTaken: the answer was
        not 2xx, or there was none.
        """
        began_s = time.monotonic()
        method, data = "POST", body or None
        if self._options.get_urls:
            method, data = "GET", None
        target = URL(url.replace("%s", quote_plus(body)) if data is None else url, encoded=True)
        try:
            async with self._session.request(method, target, data=data) as response:
                status = response.status
                await response.content.read(_MAX_DRAINED_BYTES)
        except _MessageDropped as error:
            raise NotTaken(f"{method} {url}: {error}") from None
        except TimeoutError:
            raise NotTaken(f"{method} {url}: no answer in time") from None
        except aiohttp.ServerDisconnectedError:
            raise NotTaken(f"{method} {url}: it hung up without a complete answer") from None
        except aiohttp.ClientConnectorError as error:
            raise _Unreachable(url, unreachable.reason(error.os_error, "server")) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise NotTaken(f"{method} {url}: {reason:.{_MAX_SHOWN}}") from None
        self._outages[url].over()
        if not 200 <= status < 300:
            raise NotTaken(f"{method} {url}: status {status}")
        return time.monotonic() - began_s


DESCRIPTION = (
    "Send each message of topics to a URL, and finish it when the answer was 2xx; else it is sent"
    " again, later each time. Takes the flags of nsq_to_http."
)


def main(argv: Sequence[str]) -> int:
    """Send messages; return the exit code of the process."""
    options = tool.options("to-http", DESCRIPTION, ToHttpOptions, argv)
    sender = tool.made(lambda: ToHttp(options))
    return tool.run(sender.run, sender.stop)
