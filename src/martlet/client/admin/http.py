"""The HTTP client of brokers and lookup daemons."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from martlet import unreachable
from martlet.addresses import Address, lookup_address
from martlet.client.admin.answers import AnswerPage, Answers, Position
from martlet.client.admin.decode import UNREADABLE, Fields
from martlet.client.admin.errors import AdminError, AdminNotFound, AdminUnreachable, refusal
from martlet.client.admin.settings import AdminSettings
from martlet.client.errors import Closed
from martlet.client.transport.identity import Identity
from martlet.http_requests import (
    ADMIN_AGENT,
    SCHEME,
    TRUSTED_FLAG,
    TrustedBrokers,
    load_aiohttp,
    read_body,
    read_json,
)

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
MAX_ANSWER_BYTES = 1 << 26
WITHHELD = (
    "no operator's token is sent to this broker, as a lookup daemon alone names it: to trust it,"
    f" start with --{TRUSTED_FLAG}=HOST (in Python: trusted_brokers=[HOST] of Admin)"
)
"""Why a broker gets no token, and the way out."""
CALL_PATH = "/call/"
_FIELDS_HEADER = "X-Martlet-Fields"
"""Has the fields of an answer whose body is bytes."""
_MAX_SHOWN = 200
_OPERATORS = ("/channel/peek", "/channel/replay", "/replica")
"""The routes for operators that nsqd does not have, beside calls."""
_MAX_TARGETS = 1000
_TEXT_STATUSES = (200, 500)
"""An unhealthy broker answers the reason with status 500."""
_MISSING = {
    "TOPIC_NOT_FOUND": "there is no topic '{topic}'",
    "CHANNEL_NOT_FOUND": "there is no channel '{channel}' of topic '{topic}'",
}


def _unchanged(answer: Any) -> Any:
    return answer


class AdminHttp:
    """Query brokers and lookup daemons, inside ``async with``."""

    def __init__(
        self, brokers: Sequence[str], daemons: Sequence[str], settings: AdminSettings
    ) -> None:
        self._tls = Identity(tls=settings.tls).tls_settings
        scheme = "http" if self._tls is None else "https"
        self._brokers = list(dict.fromkeys(_url(address, scheme) for address in brokers))
        self.daemons = list(dict.fromkeys(_url(address, scheme) for address in daemons))
        self._settings = settings
        self._named = frozenset(self._brokers)
        self._trusted = TrustedBrokers(settings.trusted_brokers)
        self._given = {*self._brokers, *self.daemons}
        self._targets: dict[str, str] = {}
        """By URL, the HTTPS URL of a server that refuses plain HTTP; itself where it does not."""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        await load_aiohttp()
        import aiohttp

        settings = self._settings
        timeout = aiohttp.ClientTimeout(
            total=settings.request_timeout_s, connect=settings.connect_timeout_s
        )
        headers = {"User-Agent": ADMIN_AGENT}
        self._session = aiohttp.ClientSession(timeout=timeout, headers=headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def named_brokers(self) -> Sequence[str]:
        """The URLs of the brokers; empty where lookup daemons are asked for them."""
        return self._brokers

    def ask_daemons(self, daemons: Sequence[str]) -> None:
        """Ask these lookup daemons for brokers, from now on. Raises ValueError: one is no address.

        Args:
            daemons: their HTTP addresses.
        """
        scheme = "http" if self._tls is None else "https"
        self.daemons[:] = dict.fromkeys(_url(address, scheme) for address in daemons)
        self._brokers.clear()
        self._named = frozenset()
        self._given |= {*self.daemons}

    def at(self, *brokers: str) -> AdminHttp:
        """Return one that asks some brokers alone, over the same connections."""
        one = object.__new__(type(self))
        one.__dict__.update(self.__dict__)
        one._brokers, one.daemons = list(brokers), []
        return one

    async def brokers(self, topic: str = "") -> list[str]:
        """Return the URLs of the brokers: named ones, or those that lookup daemons know to have a
        topic; without a topic, all that they know.

        Raises AdminError: no lookup daemon answered. AdminNotFound: none knows a broker.
        """
        if self._brokers:
            return self._brokers
        answers = await self._gather(self.daemons, lambda daemon: self._known(daemon, topic))
        urls = dict.fromkeys(answers.joined())
        if urls:
            return list(urls)
        for error in answers.errors.values():
            raise error
        what = f"broker with topic {topic!r}" if topic else "broker"
        raise refusal(", ".join(self.daemons), f"no {what} is known there", 404)

    async def _known(self, daemon: str, topic: str) -> list[str]:
        try:
            path = "/lookup" if topic else "/nodes"
            answer: Any = await self.get(daemon, path, {"topic": topic} if topic else {})
            return [
                url_of_broker(producer["broadcast_address"], producer["http_port"])
                for producer in answer.get("data", answer)["producers"] or ()
            ]
        except AdminNotFound:
            return []
        except UNREADABLE as error:
            raise AdminError(daemon, f"no answer of a lookup daemon: {error!r}") from None

    # several servers

    async def each(self, urls: Sequence[str], ask: Callable[[str], Awaitable[T]]) -> Answers[T]:
        """Query servers concurrently; return the answer or the error of each. Raises AdminError: no
        server answered: of the first failure, with all in `AdminError.errors`.
        """
        answers = await self._gather(urls, ask)
        if answers.errors and not answers.values:
            first = next(iter([*answers.failures.values(), *answers.errors.values()]))
            raise first.replace(errors=answers.errors)
        return answers

    async def _gather(self, urls: Sequence[str], ask: Callable[[str], Awaitable[T]]) -> Answers[T]:
        values: dict[str, T] = {}
        errors: dict[str, AdminError] = {}

        async def settled(url: str) -> T | AdminError:
            try:
                return await ask(url)
            except AdminError as error:
                return error

        for url, answer in zip(urls, await asyncio.gather(*map(settled, urls)), strict=True):
            if isinstance(answer, AdminError):
                errors[url] = answer
            else:
                values[url] = answer
        return Answers(values, errors)

    async def call_each(
        self,
        name: str,
        fields: Mapping[str, Any],
        convert: Callable[[Any], T] = _unchanged,
        *,
        timeout_s: float = 0,
    ) -> Answers[T]:
        """Make a call at all brokers, or those with the topic in its fields. Raises as `each`."""
        urls = await self.brokers(fields.get("topic", ""))
        return await self.each(
            urls, lambda url: self.call(url, name, fields, convert, timeout_s=timeout_s)
        )

    async def pages(
        self,
        topic: str,
        at: Callable[[str, Fields], AsyncIterator[AnswerPage[T]]],
        start: Position | None = None,
    ) -> AsyncIterator[AnswerPage[T]]:
        """Yield the pages of one broker after the other.

        Args:
            start: where to continue: only its broker is read.

        Raises:
            AdminError: no broker was found, or one did not answer. A broker that lacks what is read
            is skipped, if another has it.
        """
        missing: AdminNotFound | None = None
        has_found = False
        urls = await self.brokers(topic)
        if start is not None:
            # Another server must not get the token.
            if start.broker not in urls:
                raise AdminNotFound(start.broker, "it is none of the brokers that are asked")
            urls = [start.broker]
        for url in urls:
            try:
                async for page in at(url, start.place if start is not None else {}):
                    has_found = True
                    yield page
            except AdminNotFound as error:
                missing = error
        if missing is not None and not has_found:
            raise missing

    async def collected(
        self, topic: str, at: Callable[[str, Fields], AsyncIterator[AnswerPage[T]]]
    ) -> Answers[tuple[T, ...]]:
        """Return the items of all pages of each broker. Raises as `each`."""

        async def collect(url: str) -> tuple[T, ...]:
            return tuple([item async for page in at(url, {}) for item in page.items])

        return await self.each(await self.brokers(topic), collect)

    # one server

    async def get(
        self,
        url: str,
        path: str,
        arguments: Mapping[str, str],
        convert: Callable[[Any], T] = _unchanged,
    ) -> T:
        """Send a GET; return the answer's JSON, converted. Raises AdminError."""
        answer = await self._ask("GET", url, path, arguments)
        return _converted(url, path, convert, answer)

    async def post(
        self,
        url: str,
        path: str,
        arguments: Mapping[str, str],
        convert: Callable[[Any], T] = _unchanged,
    ) -> T:
        """Send a POST; return the answer's JSON, if it has any, converted. Raises AdminError."""
        answer = await self._ask("POST", url, path, arguments)
        return _converted(url, path, convert, answer)

    async def text(self, url: str, path: str) -> str:
        """Send a GET; return the answer's text, also of status 500. Raises AdminError."""
        return str(await self._ask("GET", url, path, {}, as_text=True))

    async def call(
        self,
        url: str,
        name: str,
        fields: Mapping[str, Any],
        convert: Callable[[Any], T] = _unchanged,
        *,
        timeout_s: float = 0,
    ) -> T:
        """Make a call; return the broker's answer, converted. Raises AdminError."""
        path = CALL_PATH + name
        answer = await self._ask("POST", url, path, {}, fields, timeout_s=timeout_s)
        return _converted(url, path, convert, answer)

    async def call_with_bytes(
        self, url: str, name: str, fields: Mapping[str, Any], *, timeout_s: float = 0
    ) -> tuple[Mapping[str, Any], bytes]:
        """Make a call that is answered with fields and bytes; return both. Raises AdminError."""
        answer = await self._ask("POST", url, CALL_PATH + name, {}, fields, timeout_s=timeout_s)
        if isinstance(answer, tuple):
            return answer
        return _converted(url, CALL_PATH + name, dict, answer), b""

    async def publish(
        self,
        url: str,
        arguments: Mapping[str, str],
        body: bytes,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Publish a message, with its properties as headers. Raises AdminError."""
        answer = await self._ask(
            "POST", url, "/pub", arguments, body, headers=headers, as_text=True
        )
        if answer != "OK":
            raise AdminError(url, str(answer) or "an empty answer")

    async def _ask(
        self,
        method: str,
        url: str,
        path: str,
        arguments: Mapping[str, str],
        body: Mapping[str, Any] | bytes | None = None,
        *,
        headers: Iterable[tuple[str, str]] = (),
        as_text: bool = False,
        timeout_s: float = 0,
    ) -> Any:
        if url not in self._given:
            self._check_known(url)
        withheld = self.withholds_token(url)
        wants_token = _is_for_operators(path) and not withheld
        while True:
            target = self._targets.get(url, url)
            # With TLS, not in clear text before the server is known to want no HTTPS.
            is_settled = self._tls is None or url in self._targets or url.startswith("https:")
            has_token = wants_token and is_settled
            try:
                status, answer = await self._exchange(
                    method,
                    target,
                    path,
                    arguments,
                    body,
                    headers=[*(self._token_header() if has_token else ()), *headers],
                    as_text=as_text,
                    timeout_s=timeout_s,
                )
            except AdminUnreachable:
                self._targets.pop(url, None)  # It may have become another server.
                raise
            is_plain = target.startswith("http:")
            if status == 403 and is_plain and (port := _https_port(answer)):
                self._settle(url, _with_https_port(url, port))
            elif status in (401, 403) and wants_token and not has_token:
                self._settle(url, url)
            else:
                break
        if status == 200 or (as_text and status in _TEXT_STATUSES):
            return answer
        error = self._refusal(url, path, arguments, status, answer)
        if status in (401, 403) and _is_for_operators(path) and withheld:
            raise error.replace(why=f"{error.why}; {WITHHELD}")
        raise error

    async def _exchange(
        self,
        method: str,
        url: str,
        path: str,
        arguments: Mapping[str, str],
        body: Mapping[str, Any] | bytes | None,
        *,
        headers: Iterable[tuple[str, str]],
        as_text: bool,
        timeout_s: float,
    ) -> tuple[int, Any]:
        """Send one request; return the status and the answer. Raises AdminError."""
        import aiohttp

        if self._session is None:
            raise Closed("use 'async with Admin(...)'")
        try:
            async with self._session.request(
                method,
                url + path,
                params=arguments,
                **({"data": body} if isinstance(body, bytes) else {"json": body}),
                headers=headers,
                # Another server must not get the token, nor a request that this one thinks up.
                allow_redirects=False,
                **self._connection(url, timeout_s),
            ) as response:
                status = response.status
                if 300 <= status < 400:
                    location = response.headers.get("Location", "")[:_MAX_SHOWN]
                    raise AdminError(
                        url, f"it redirects to {location!r}: give the broker's address"
                    )
                if as_text and status in _TEXT_STATUSES:
                    text = await read_body(response, MAX_ANSWER_BYTES)
                    return status, text.decode(errors="replace")
                # An action has an empty answer, as in nsqd.
                if described := response.headers.get(_FIELDS_HEADER):
                    data = await read_body(response, MAX_ANSWER_BYTES)
                    return status, (json.loads(described), data)
                empty = response.content_length == 0
                return status, None if empty else await read_json(response, MAX_ANSWER_BYTES)
        except TimeoutError:
            raise AdminError(url, "no answer in time") from None
        except aiohttp.ClientError as error:
            raise self._failure(url, error) from None
        except (ValueError, RecursionError) as error:
            raise AdminError(url, f"no answer of a broker: {error}") from None

    def withholds_token(self, url: str) -> bool:
        """Return whether a broker gets no token, as only lookup daemons name it, untrusted."""
        if self._settings.operator_token is None or url in self._named:
            return False
        try:
            return not self._trusted.has(_address_of(url))
        except ValueError:
            return True

    def _settle(self, url: str, target: str) -> None:
        """Keep where a server is asked."""
        if len(self._targets) >= _MAX_TARGETS:
            self._targets.clear()
        self._targets[url] = target

    def _token_header(self) -> list[tuple[str, str]]:
        token = self._settings.operator_token
        return [("Authorization", SCHEME + token)] if token is not None else []

    def _check_known(self, url: str) -> None:
        """Raise AdminError where a lookup daemon names a broker by what is no address of one."""
        try:
            _address_of(url)
        except ValueError:
            why = "it is not asked: a lookup daemon names it so, which is no host with an HTTP port"
            raise AdminError(url, why) from None

    def _connection(self, url: str, timeout_s: float) -> dict[str, Any]:
        """Return the arguments for TLS, and for a request that may take longer. Raises OSError."""
        import aiohttp

        settings = self._settings
        arguments: dict[str, Any] = {}
        if self._tls is not None and url.startswith("https:"):
            arguments["ssl"] = self._tls.ssl_context()
            arguments["server_hostname"] = self._tls.server_name
        if timeout_s:
            arguments["timeout"] = aiohttp.ClientTimeout(
                total=max(timeout_s, settings.request_timeout_s), connect=settings.connect_timeout_s
            )
        return arguments

    def _failure(self, url: str, error: Exception) -> AdminError:
        """Return the error of a request without an answer over HTTP."""
        import aiohttp

        server = unreachable.LOOKUP_DAEMON if url in self.daemons else unreachable.BROKER
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return AdminUnreachable(url, str(error.certificate_error))
        if isinstance(error, aiohttp.ClientConnectorError):
            return AdminUnreachable(url, unreachable.reason(error.os_error, server))
        if isinstance(error, aiohttp.ClientResponseError):
            if unreachable.is_tcp_port(error):
                return AdminError(url, unreachable.http_wanted(server))
            why = (error.message or str(error)).partition("\n")[0].rstrip(":")
            return AdminError(url, f"no answer over HTTP: {why}; is that its HTTP address?")
        return AdminError(url, str(error) or type(error).__name__)

    def _refusal(
        self, url: str, path: str, arguments: Mapping[str, str], status: int, answer: Any
    ) -> AdminError:
        """Return the error of an answer with another status than 200."""
        fields = answer if isinstance(answer, dict) else {}
        message = str(fields.get("message") or "")
        if message == "NOT_FOUND" and url in self.daemons:
            return AdminError(url, unreachable.not_that_server(unreachable.LOOKUP_DAEMON, path))
        if message == "NOT_FOUND":
            is_ours = _is_for_operators(path)
            hint = "nsqd has none; " if is_ours else ""
            return AdminError(url, f"it has no {path}: {hint}is that the right address?")
        if message in _MISSING:
            message = _MISSING[message].format_map(arguments)
        code = str(fields.get("code") or "")
        return refusal(url, message or f"status {status}", status, code)


def url_of_broker(host: object, port: object) -> str:
    """Return the URL of a broker that a lookup daemon names. An invalid address is returned in
    quotes, which no URL has, so that requests to it are refused.
    """
    try:
        return f"http://{lookup_address(host, port)}"
    except ValueError:
        return f"{host!r}:{port!r}"[:_MAX_SHOWN]


def _address_of(url: str) -> Address:
    """Return the address in the URL of a broker. Raises ValueError: it is none."""
    address = Address.parse(url.partition("://")[2])
    return lookup_address(*address)


def _is_for_operators(path: str) -> bool:
    return path in _OPERATORS or path.startswith(CALL_PATH)


def _https_port(answer: Any) -> int:
    """Return the port that a server which takes TLS alone names in its answer; 0 for none."""
    port = answer.get("https_port") if isinstance(answer, dict) else None
    return port if type(port) is int and 0 < port < 65536 else 0


def _with_https_port(url: str, port: int) -> str:
    return f"https://{url.partition('://')[2].rpartition(':')[0]}:{port}"


def plain_first(address: str) -> str:
    """Return the URL of a server that is asked over HTTP, and over HTTPS where it wants that."""
    return _url(address, "http")


def _url(address: str, scheme: str) -> str:
    """Return the URL of a server. Raises ValueError: the address is empty."""
    url = address.rstrip("/") if "://" in address else f"{scheme}://{address.strip()}"
    if not url.partition("://")[2]:
        raise ValueError(f"{address!r} is no address: it must be like 127.0.0.1:4151")
    return url


def _converted(url: str, path: str, convert: Callable[[Any], T], answer: Any) -> T:
    try:
        return convert(answer)
    except UNREADABLE as error:
        raise AdminError(url, f"an unintelligible answer to {path}: {error!r}") from None
