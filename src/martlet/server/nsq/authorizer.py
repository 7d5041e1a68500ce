"""AUTH: an auth server returns over HTTP what a client may do, as with nsqd.

A command that needs the answer waits for it: `Authorizer` returns that, the connection leaves the
command in its buffer, stops reading, and handles the same command again when the answer has come.
So the commands behind it keep their order, and no other connection waits.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from martlet.http_requests import load_aiohttp, read_body
from martlet.options import BrokerOptions
from martlet.protocol.nsq.authorization import Authorizations, BadAnswer, read_answer
from martlet.protocol.nsq.v2 import ProtocolError, quoted
from martlet.server.clock import elapsed_ns
from martlet.text import SECOND_NS

if TYPE_CHECKING:
    import aiohttp

MAX_ANSWER_BYTES = 1 << 20
"""The maximum size of an auth server's answer."""
_ACCEPT = {"Accept": "application/vnd.nsq; version=1.0"}


class AuthServerSilent(Exception):
    """No auth server answered; the text has the reason of each."""


class AuthServers:
    """Ask the auth servers, one after the other until one answers."""

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, remote_ip: str, common_name: str | None, secret: bytes) -> Authorizations:
        """Ask for a client's permissions.

        Args:
            remote_ip: of the client, empty for a Unix socket.
            common_name: of its certificate, empty if it has none; None without TLS.

        Raises:
            AuthServerSilent: no auth server answers.
        """
        await load_aiohttp()
        import aiohttp

        question: dict[str, str | bytes] = {
            "common_name": common_name or "",
            "remote_ip": remote_ip,
            "secret": secret,
            "tls": "false" if common_name is None else "true",
        }
        addresses = self._options.auth_http_addresses
        start = random.randrange(len(addresses))
        reasons = []
        for address in addresses[start:] + addresses[:start]:
            try:
                return read_answer(await self._ask_one(address, question))
            except (BadAnswer, OSError, ValueError, aiohttp.ClientError) as error:
                why = str(error) or type(error).__name__
                reasons.append(f"failed to auth against {address} - {why}")
        raise AuthServerSilent("; ".join(reasons))

    async def _ask_one(self, address: str, question: dict[str, str | bytes]) -> bytes:
        url = address if "://" in address else f"http://{address}/auth"
        status, body = await self._request(url, question)
        if status == 403 and urlsplit(url).scheme != "https":
            status, body = await self._request(_over_https(url, body), question)
        if status != 200:
            raise BadAnswer(f"got response {status} {quoted(body[:200])}")
        return body

    async def _request(self, url: str, question: dict[str, str | bytes]) -> tuple[int, bytes]:
        from yarl import URL

        session = self._opened()
        if self._options.auth_http_request_method == "post":
            texts = {
                name: [value.decode("utf-8", "replace") if isinstance(value, bytes) else value]
                for name, value in question.items()
            }
            request = session.post(
                URL(url, encoded=True),
                data=json.dumps(texts, ensure_ascii=False).encode(),
                headers={"Content-Type": "application/json"},
            )
        else:
            url = f"{url}{'&' if '?' in url else '?'}{urlencode(question)}"
            request = session.get(URL(url, encoded=True))
        async with request as response:
            return response.status, await read_body(response, MAX_ANSWER_BYTES)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            options = self._options
            self._session = aiohttp.ClientSession(
                headers=_ACCEPT,
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(force_close=True, limit=0, ssl=_tls(options)),
                timeout=aiohttp.ClientTimeout(
                    total=options.http_client_request_timeout_ns / SECOND_NS,
                    sock_connect=options.http_client_connect_timeout_ns / SECOND_NS,
                ),
            )
        return self._session

    async def close(self) -> None:
        """Close open connections."""
        if self._session is not None:
            await self._session.close()


def _tls(options: BrokerOptions) -> ssl.SSLContext:
    """Return the TLS context for https addresses, which verifies their certificates."""
    return ssl.create_default_context(cafile=options.tls_root_ca_file or None)


def _over_https(url: str, body: bytes) -> str:
    """Return the https address that a server names in its answer 403, in nsqd's form."""
    try:
        port = json.loads(body)["https_port"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise BadAnswer(f"got response 403 {quoted(body[:200])}") from None
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return parts._replace(scheme="https", netloc=f"{host}:{port}").geturl()


class Authorizer:
    """The permissions of one client.

    Args:
        common_name: returns that of its certificate, None without TLS.
        go_on: called when the answer for a waiting command has come.
        log: takes failures, since the client must learn nothing about the auth servers.
    """

    def __init__(
        self,
        servers: AuthServers,
        remote_address: str,
        common_name: Callable[[], str | None],
        go_on: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self._servers = servers
        self._remote_address = remote_address
        self._common_name = common_name
        self._go_on = go_on
        self._log = log
        self._secret = b""
        self._asking: asyncio.Task[None] | None = None
        self._answered = False
        self._failed = False
        self._expires_ns = 0
        self.authorizations: Authorizations | None = None
        """The last answer of an auth server."""

    @property
    def authed(self) -> bool:
        """Return whether anything is allowed at all."""
        return self.authorizations is not None and bool(self.authorizations.rules)

    def authenticate(self, secret: bytes) -> bytes | None:
        """Return the answer to AUTH; None if the command must wait. Raises ProtocolError."""
        if not self._answered:
            if self.authed:
                raise ProtocolError("E_INVALID", "AUTH already set")
            self._secret = secret
        if not self._has_answer():
            return None
        authorizations = self.authorizations
        if authorizations is None or not authorizations.rules:
            raise ProtocolError("E_UNAUTHORIZED", "AUTH no authorizations found")
        return authorizations.answer()

    def may_publish(self, verb: str, topic: str) -> bool:
        """Return whether a command may publish to a topic now; False if it must wait. Raises
        ProtocolError: it is not allowed; so do the others.
        """
        authorizations = self._current(verb)
        if authorizations is not None and not authorizations.may_publish(topic):
            raise _refused(verb, topic, "")
        return authorizations is not None

    def may_consume(self, topic: str, channel: str) -> bool:
        """Return whether the client may subscribe to a channel now."""
        authorizations = self._current("SUB")
        if authorizations is not None and not authorizations.may_consume(topic, channel):
            raise _refused("SUB", topic, channel)
        return authorizations is not None

    def may_read(self, topic: str) -> bool:
        """Return whether the client may subscribe to some channel of a topic now."""
        authorizations = self._current("SUB")
        if authorizations is not None and not authorizations.may_read(topic):
            text = f"AUTH failed for SUB on any channel of {quoted(topic.encode())}"
            raise ProtocolError("E_UNAUTHORIZED", text)
        return authorizations is not None

    def _current(self, verb: str) -> Authorizations | None:
        """Return what is valid now; None while an auth server is asked. Raises ProtocolError."""
        if self.authorizations is None or (not self.authorizations.rules and not self._answered):
            raise ProtocolError("E_AUTH_FIRST", f"AUTH required before {verb}")
        expired = elapsed_ns() > self._expires_ns
        if (expired or self._answered) and not self._has_answer():
            return None
        return self.authorizations

    def _has_answer(self) -> bool:
        """Return whether an answer has come for this command; if not, ask. Raises ProtocolError."""
        if not self._answered:
            if self._asking is None:
                self._asking = asyncio.get_running_loop().create_task(self._query())
            return False
        self._answered = False
        failed, self._failed = self._failed, False
        if failed:
            raise ProtocolError("E_AUTH_FAILED", "AUTH failed")
        return True

    async def _query(self) -> None:
        try:
            host = self._remote_address.rpartition(":")[0].strip("[]")
            remote_ip = "" if host == "unknown" else host
            asked_ns = elapsed_ns()
            authorizations = await self._servers.ask(remote_ip, self._common_name(), self._secret)
            self.authorizations = authorizations
            self._expires_ns = asked_ns + authorizations.ttl_s * SECOND_NS
        except AuthServerSilent as error:
            self._failed = True
            self._log.warning("PROTOCOL(V2): [%s] AUTH failed %s", self._remote_address, error)
        except Exception:
            self._failed = True
            self._log.exception("PROTOCOL(V2): [%s] AUTH failed", self._remote_address)
        finally:
            self._asking = None
        self._answered = True
        self._go_on()

    def close(self) -> None:
        """Stop asking, as the client has disconnected."""
        if self._asking is not None:
            self._asking.cancel()


def _refused(verb: str, topic: str, channel: str) -> ProtocolError:
    names = f"{quoted(topic.encode())} {quoted(channel.encode())}"
    return ProtocolError("E_UNAUTHORIZED", f"AUTH failed for {verb} on {names}")
