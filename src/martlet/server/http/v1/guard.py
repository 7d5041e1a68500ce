"""AUTH over HTTP: with ``--auth-http-address`` a client sends its secret in a header.

The auth server answers as for NSQ's protocol, from the secret, the client's address and its
certificate; its answer is valid for its ``ttl``, for requests with the same three.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from martlet.protocol.nsq.authorization import Authorizations
from martlet.server.clock import elapsed_ns
from martlet.server.http.request import HttpError, Request
from martlet.server.nsq.authorizer import AuthServers, AuthServerSilent
from martlet.text import SECOND_NS

HEADER = "X-Martlet-Auth"
MAX_ANSWERS = 1000
"""The maximum number of answers that are kept."""
_Credentials = tuple[str, str, str | None]
"""A client's secret, address and certificate's name."""


class HttpGuard:
    """Checks what clients of the HTTP API may do.

    Args:
        servers: the auth servers; None if every client may do everything.
    """

    def __init__(self, servers: AuthServers | None, log: logging.Logger) -> None:
        self._servers = servers
        self._log = log
        self._answers: OrderedDict[_Credentials, tuple[Authorizations, int]] = OrderedDict()
        """Answers, and when each ends."""

    async def may_publish(self, request: Request, topic: str) -> None:
        """Check that a client may publish to a topic. Raises HttpError: 401 or 403: it may not."""
        granted = await self._authorizations(request)
        if granted is not None and not granted.may_publish(topic):
            raise _unauthorized(f"publish to topic {topic!r}")

    async def may_consume(self, request: Request, topic: str, channel: str) -> None:
        """Check that a client may receive from a channel. Raises HttpError, as `may_publish`."""
        granted = await self._authorizations(request)
        if granted is not None and not granted.may_consume(topic, channel):
            raise _unauthorized(f"receive from channel {channel!r} of topic {topic!r}")

    async def _authorizations(self, request: Request) -> Authorizations | None:
        """Return what a client may do; None if everything. Raises HttpError."""
        if self._servers is None:
            return None
        secrets = request.headers(HEADER)
        if len(secrets) != 1 or not secrets[0]:
            raise HttpError(
                401,
                "AUTH_REQUIRED: the broker has --auth-http-address: send your secret as the header"
                f" {HEADER}",
            )
        return await self._cached_or_asked(self._servers, request, secrets[0])

    async def _cached_or_asked(
        self, servers: AuthServers, request: Request, secret: str
    ) -> Authorizations:
        credentials = secret, request.client_host, request.common_name
        cached = self._answers.get(credentials)
        if cached is not None and elapsed_ns() <= cached[1]:
            return cached[0]
        began_ns = elapsed_ns()
        try:
            answer = await servers.ask(credentials[1], credentials[2], secret.encode())
        except AuthServerSilent as error:
            self._log.warning("HTTP: [%s] AUTH failed %s", request.remote_address, error)
            raise HttpError(
                403,
                "AUTH_FAILED: the auth server refuses the secret, or did not answer: see the"
                " broker's log",
            ) from None
        self._answers[credentials] = answer, began_ns + answer.ttl_s * SECOND_NS
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return answer


def _unauthorized(what: str) -> HttpError:
    return HttpError(403, f"UNAUTHORIZED: the auth server does not allow to {what}")
