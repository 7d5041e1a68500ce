"""Access to the routes of a broker's HTTP: `ROUTES` says which are open, and to whom.

nsqd's routes, and those for monitoring, answer everyone, but refuse changes by pages of other sites
in a browser, which sends headers that no client of NSQ does. Martlet's own routes read messages or
change what operators decide: they answer operators alone. Those below ``/v1``, which publish and
receive, are for all clients that AUTH allows; those routes check it themselves.

An operator has a token of ``--operator-token-file``, or a certificate that ``--tls-root-ca-file``
verifies with ``--tls-client-auth-policy=require-verify``; or, without a token file, connects from
this machine. The last two would make a browser of this machine an operator. A page of a stranger
can use that browser (see `martlet.http_requests`), so they do not hold for requests of such a page.

A standby decides about the clients that it has, and vouches to the primary for those that it
forwards: the primary sees the address of the standby alone.

Over TCP the same decide who may make the calls of operators (see `martlet.schema.access`), but for
tokens, which NSQ's protocol does not carry. Where there is AUTH, nobody is an operator there.
"""

from __future__ import annotations

import hmac
import logging
import os
import stat
from enum import Enum
from typing import TYPE_CHECKING

from martlet.http_requests import SAFE_METHODS, SCHEME, read_tokens
from martlet.http_requests import TOKEN_FLAG as FLAG
from martlet.http_requests import TOKEN_VARIABLE as VARIABLE
from martlet.text import counted

if TYPE_CHECKING:
    from martlet.options import BrokerOptions
    from martlet.server.http.request import HttpError, Request

OLD_TLS = frozenset({"SSLv3", "TLSv1", "TLSv1.1"})
"""Versions too weak for operators; ``--tls-min-version`` may allow them to others, as in nsqd."""
_MAX_SHOWN = 100
"""The characters of a host that an error shows."""
V1 = "/v1/topics/"


class Access(Enum):
    """The clients that may use a route."""

    EVERYONE = "everyone"
    """But for changes by pages of other sites in a browser."""
    CLIENTS = "clients"
    """Everyone, as far as AUTH allows, but for pages of other sites in a browser."""
    OPERATORS = "operators"


ROUTES: dict[str, Access] = {
    **dict.fromkeys(
        (
            # nsqd's
            *("/ping", "/info", "/stats", "/pub", "/mpub", "/config/:name"),
            *("/topic/create", "/topic/delete", "/topic/empty", "/topic/pause", "/topic/unpause"),
            *("/channel/create", "/channel/delete", "/channel/empty"),
            *("/channel/pause", "/channel/unpause"),
            # for monitoring and load balancers
            *("/metrics", "/health/live", "/health/ready", "/replica/primary"),
            "/v1/openapi.json",
        ),
        Access.EVERYONE,
    ),
    **dict.fromkeys(
        (
            "/v1/topics/:topic/messages",
            *(
                f"/v1/topics/:topic/channels/:channel/{verb}"
                for verb in ("receive", "finish", "requeue", "touch", "reject")
            ),
        ),
        Access.CLIENTS,
    ),
    **dict.fromkeys(
        (
            *("/call/:name", "/channel/peek", "/channel/replay", "/channel/advance"),
            *("/log/topics", "/log/offset", "/log/index", "/log/reach", "/log/batches"),
            *("/log/segments", "/log/segment", "/log/checkpoint"),
            *("/replica", "/debug/setblockrate", "/debug/freememory"),
        ),
        Access.OPERATORS,
    ),
}
"""Every route of a broker, and of a standby."""


def access_to(path: str) -> Access:
    """Return who may use the route of a path; one that is not known is for operators."""
    path = route_of(path)
    access = ROUTES.get(path) or ROUTES.get(f"{path.rpartition('/')[0]}/:name")
    return access or Access.OPERATORS


class Operators:
    """The operators of a broker.

    Args:
        tokens: those of its file; none without one.
        has_certificates: whether each verified certificate of a client is an operator's.
    """

    def __init__(self, tokens: tuple[str, ...] = (), *, has_certificates: bool = False) -> None:
        self._tokens = [token.encode() for token in tokens]
        self._has_certificates = has_certificates

    @classmethod
    def load(cls, options: BrokerOptions, log: logging.Logger) -> Operators:
        """Read the tokens that the options name, and log who operators are. Raises OSError: the
        file cannot be used; the text names it.
        """
        path = options.operator_token_file
        tokens = read_tokens(path) if path else ()
        by_certificate = options.tls_client_auth_policy == "require-verify" and bool(
            options.tls_root_ca_file
        )
        if tokens and os.stat(path).st_mode & stat.S_IROTH:
            log.warning("HTTP: all users of this machine can read --%s=%s: chmod o-r", FLAG, path)
        if not options.http_address and not options.tls_cert:
            return cls(tokens, has_certificates=by_certificate)
        who = (
            f"clients with {counted(len(tokens), 'token')} of --{FLAG}={path}"
            if tokens
            else f"clients on this machine, as there is no --{FLAG}"
        )
        certificates = ", and clients with a certificate of --tls-root-ca-file"
        log.info(
            "HTTP: the routes that nsqd does not have answer %s%s",
            who,
            certificates if by_certificate else "",
        )
        return cls(tokens, has_certificates=by_certificate)

    def include(
        self, *, is_local: bool, has_certificate: bool = False, tls_version: str = ""
    ) -> bool:
        """Return whether a client is an operator by its connection alone, over HTTP or TCP.

        Args:
            is_local: whether it is on this machine.
            has_certificate: whether it has shown one that the authority verifies.
            tls_version: such as ``TLSv1.3``; empty without TLS.
        """
        if tls_version in OLD_TLS:
            return False
        is_certified = self._has_certificates and has_certificate
        return is_certified or (is_local and not self._tokens)

    def check(self, request: Request) -> bool:
        """Check that a client may use a route.

        Returns whether the route is for operators, and the client so is one.

        Raises HttpError: 401 or 403: it may not; the text says what to do.
        """
        access = access_to(request.path)
        if access is Access.EVERYONE:
            refuse_foreign_change(request)
            return False
        if access is Access.CLIENTS:
            _refuse_foreign_page(request)
            return False
        self.require(request)
        return True

    def require(self, request: Request) -> None:
        """Check that a client is an operator. Raises HttpError, as `check`."""
        if request.is_vouched_for:
            return
        if request.tls_version in OLD_TLS:
            raise _denied(
                403,
                f"TLS_TOO_OLD: {request.path} is for operators, who connect by TLS 1.2 or later,"
                f" and not by {request.tls_version}",
            )
        is_own = request.is_vouched_for is None
        if is_own and self.include(
            is_local=request.is_local, has_certificate=request.has_certificate
        ):
            if not request.is_of_foreign_page:
                return
            if not self._tokens:
                raise _foreign_page(request)
        if not self._tokens:
            raise _denied(
                403,
                f"OPERATORS_ONLY: {request.path} answers only clients on the broker's machine, as"
                f" the broker has no --{FLAG}: start it with one, and give the same file to the"
                f" client: --{FLAG} of commands and jobs, operatorTokenFile of Spark's source, or"
                f" the environment variable {VARIABLE}",
            )
        headers = request.headers("Authorization")
        if not headers:
            raise _denied(
                401,
                f"OPERATOR_TOKEN_MISSING: {request.path} is for operators: send a token of the"
                f" broker's --{FLAG} as 'Authorization: {SCHEME}TOKEN'; commands and jobs take"
                f" --{FLAG}, Spark's source operatorTokenFile, and all of them the environment"
                f" variable {VARIABLE}",
            )
        if len(headers) > 1 or not self._has(headers[0]):
            raise _denied(
                401,
                f"OPERATOR_TOKEN_WRONG: the token sent to {request.path} is not in the broker's"
                f" --{FLAG}, which is read when the broker starts",
            )

    def _has(self, header: str) -> bool:
        scheme, token = header[: len(SCHEME)], header[len(SCHEME) :].strip().encode()
        # All are compared, each in constant time: how long it takes tells nothing about a token.
        matches = [hmac.compare_digest(token, stored) for stored in self._tokens]
        return scheme.lower() == SCHEME.lower() and any(matches)


def refuse_foreign_change(request: Request) -> None:
    """Refuse a page of another site in a browser that would change something. Raises HttpError."""
    if request.method not in SAFE_METHODS and request.is_of_browser:
        _refuse_foreign_page(request)


def _refuse_foreign_page(request: Request) -> None:
    """Refuse a page of another site in a browser, which could take messages of this machine's
    broker. Raises HttpError.

    The replica that a client reaches decides. A program on another machine may name the broker by
    any name, as a load balancer's; a page in a browser only by the broker's own or an allowed one.
    """
    is_foreign = request.is_of_other_site or (
        (request.is_local or request.is_of_browser) and request.is_of_foreign_page
    )
    if request.is_vouched_for is None and is_foreign:
        raise _foreign_page(request)


def _foreign_page(request: Request) -> HttpError:
    way_out = (
        "sends neither Origin nor Sec-Fetch-Site"
        if request.is_of_other_site
        else f"names the broker by its address, not as {request.host[:_MAX_SHOWN]!r}, and for pages"
        " that are served under that name there is --allowed-host"
    )
    return _denied(
        403,
        f"FOREIGN_PAGE: {request.path} does not answer pages of other sites in a browser: a program"
        f" {way_out}",
    )


def _denied(status: int, message: str) -> HttpError:
    # Imported here: aiohttp takes longer to import than a broker takes to listen.
    from martlet.server.http.request import HttpError

    headers = {"WWW-Authenticate": SCHEME.strip()} if status == 401 else {}
    return HttpError(status, message, headers=headers)


def route_of(path: str) -> str:
    """Return the route below `V1` of a decoded path, as ``/v1/topics/:topic``; else the path."""
    if not path.startswith(V1):
        return path
    segments = path.split("/")
    if segments[3]:
        segments[3] = ":topic"
    if len(segments) > 5 and segments[4] == "channels" and segments[5]:
        segments[5] = ":channel"
    return "/".join(segments)


def names_in(path: str) -> list[str]:
    """Return the topic and, if there is one, the channel in a path below `V1`."""
    segments = path.split("/")
    return [segments[3], *segments[5:6]] if len(segments) > 6 else [segments[3]]
