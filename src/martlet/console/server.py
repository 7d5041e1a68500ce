"""The process of the admin page: its routes, and its start and end."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import mimetypes
import socket
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import ETag, web

from martlet.addresses import shown_name
from martlet.client import InvalidName, Tls
from martlet.client.admin import Admin, AdminError, AdminNotFound
from martlet.client.admin.http import plain_first
from martlet.console import actions, overview
from martlet.console.audit import AuditLog
from martlet.console.collector import Collector
from martlet.console.guard import STRANGER, Guard, Handler, Users, set_headers, user_of
from martlet.console.inputs import ActionRefused
from martlet.console.nsqadmin import api
from martlet.console.pages import ACTIONS, PAGES
from martlet.console.site import SITE, PageNotFound, Site
from martlet.http_connection import GONE_STATUS, HttpConnection, body_timer, is_gone
from martlet.http_requests import read_tokens
from martlet.log.open_files import Acceptor
from martlet.options.admin import AdminOptions

STATIC = Path(__file__).parent / "static"
_MAX_FORM_BYTES = 2 << 20
_STOP_S = 2.0
_BACKLOG = 128
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_PAGES = {
    "/": overview.overview,
    "/topics": overview.topics,
    "/topics/{topic}": overview.topic,
    "/topics/{topic}/{channel}": overview.channel,
    "/nodes": overview.nodes,
    "/nodes/{node}": overview.node,
    "/lookup": overview.lookup,
    "/counter": overview.counter,
    "/audit": overview.audit,
    "/audit/export": overview.export_audit,
    "/data": overview.data,
    "/data/{topic}": overview.data,
    "/data/{topic}/{channel}": overview.data,
    "/confirm": actions.confirm,
}


class AdminServer:
    """The admin page.

    Raises OSError: a file of the options cannot be read; the text names the flag.
    """

    def __init__(self, options: AdminOptions, log: logging.Logger) -> None:
        self.options = options
        self.log = log
        self._users = Users(options)
        self._audit = AuditLog(options, log)
        self._exit = AsyncExitStack()
        self.address = ""
        """Where it listens, as ``host:port``."""

    async def start(self) -> None:
        """Listen, and begin to ask brokers. Raises OSError."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        options, stack = self.options, self._exit
        admin = await stack.enter_async_context(_admin(options))
        collector = Collector(
            lambda limit_s: admin.nodes.stats(time_limit_s=limit_s),
            options.poll_interval_ns / 1e9,
            self.log,
            options.http_client_request_timeout_ns / 1e9,
        )
        self.site = site = Site(options, admin, collector, self._audit, self.log)
        runner = web.AppRunner(
            self._app(site), access_log=None, shutdown_timeout=_STOP_S, handler_cancellation=True
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        host, _, port = options.http_address.rpartition(":")
        try:
            self.address = await self._listen(runner, host.strip("[]") or None, int(port), stack)
        except OSError as error:
            why = error.strerror
            if error.errno == errno.EADDRINUSE:
                why = (
                    "another process listens there: stop it, or give another port with"
                    " --http-address"
                )
            raise OSError(f"listen ({options.http_address}) failed: {why}") from error
        tasks = [asyncio.create_task(collector.run())]
        if options.notification_http_endpoint:
            tasks.append(asyncio.create_task(self._audit.notify()))
        for task in tasks:
            stack.push_async_callback(_cancel, task)
        self.log.info("ADMIN: the page is at http://%s%s/", self.address, options.prefix)
        if not options.is_loopback and not _knows_users(options):
            self.log.warning(
                "ADMIN: %s is open to a network, and the page knows no users: it is read-only and"
                " hides bodies; see --htpasswd-file, --acl-http-header with --admin-user, and"
                " --allow-anonymous-admin",
                options.http_address,
            )

    @staticmethod
    async def _listen(
        runner: web.AppRunner, host: str | None, port: int, stack: AsyncExitStack
    ) -> str:
        """Listen as `aiohttp.web.TCPSite` does, with connections that have time limits, and that
        leave descriptors for the page's own to brokers. Returns where.
        """
        loop = asyncio.get_running_loop()
        server = runner.server
        assert server is not None

        def connection() -> HttpConnection:
            return HttpConnection(server, loop=loop, **server._kwargs)

        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses: list[str] = []
        missing: OSError | None = None
        for family, address in dict.fromkeys((family, address_) for family, *_, address_ in infos):
            try:
                sock = socket.create_server(address, family=family, backlog=_BACKLOG)
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                missing = error  # Such as [::1], as which localhost is known, without IPv6.
                continue
            stack.callback(sock.close)
            addresses.append(shown_name(sock.getsockname()))
            stack.callback(Acceptor(connection, sock, f"HTTP {addresses[-1]}").close)
        if missing is not None and not addresses:
            raise missing
        return addresses[0]

    async def stop(self) -> None:
        """Stop listening, and end all requests."""
        await self._exit.aclose()
        self._audit.close()

    def _app(self, site: Site) -> web.Application:
        guard = Guard(self.options, self._users, self._audit.refused)

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await guard.refuse_strangers(request, handler)
            except ConnectionError:
                if not is_gone(request):
                    raise
                return web.Response(status=GONE_STATUS)  # A tab was closed.
            except (web.HTTPForbidden, web.HTTPBadRequest) as error:
                if not _is_api(request, self.options):
                    raise
                code = error.reason.upper().replace(" ", "_")
                return api.failure(error.status, f"{code}: {(error.text or '').strip()}")

        app = web.Application(
            middlewares=[guarded, _show_problems], client_max_size=_MAX_FORM_BYTES
        )
        app[SITE] = site
        app[actions.ACTIONS] = ACTIONS
        app.on_response_prepare.append(set_headers)
        app.on_shutdown.append(site.end_streams)
        prefix = self.options.prefix
        for path, handler in [*_PAGES.items(), *PAGES.items()]:
            app.router.add_get(prefix + path, handler)
        for method, path, handler in api.routes():
            app.router.add_route(method, prefix + path, handler)
        app.router.add_post(f"{prefix}/act", actions.act)
        app.router.add_get(f"{prefix}/ping", _ping)
        app.router.add_get(f"{prefix}/static/{{name:.+}}", _static(STATIC))
        return app


def _knows_users(options: AdminOptions) -> bool:
    return bool(options.htpasswd_file or options.admin_users or options.allow_anonymous_admin)


def _is_api(request: web.Request, options: AdminOptions) -> bool:
    return request.path.startswith((f"{options.prefix}/api/", f"{options.prefix}/config/"))


def _static(folder: Path) -> Handler:
    """Read all files of a folder, as a browser that leaves early must leave no file open; return
    what answers ``{name}`` with one of them.
    """
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    tags = {name: hashlib.sha256(data).hexdigest()[:16] for name, data in files.items()}

    async def answer(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in files:
            raise web.HTTPNotFound
        # A browser asks each time, and gets the file only where it has changed.
        headers = {"Cache-Control": "no-cache"}
        tags_sent = request.if_none_match or ()
        if any(tag.value == tags[name] for tag in tags_sent):
            response = web.Response(status=304, headers=headers)
        else:
            kind = mimetypes.guess_type(name)[0] or "text/plain"
            response = web.Response(body=files[name], content_type=kind, headers=headers)
        response.etag = ETag(tags[name])
        return response

    return answer


async def _ping(_: web.Request) -> web.Response:
    return web.Response(text="OK")


@web.middleware
async def _show_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Show what goes wrong as a page."""
    site = request.app[SITE]
    try:
        if request.can_read_body and not actions.is_multipart(request):
            async with body_timer(request):
                await request.read()  # It is kept for the handler.
        return await handler(request)
    except PageNotFound as error:
        status, title, text = 404, "Not found", str(error)
    except (ActionRefused, InvalidName) as error:
        status, title, text = 400, "Refused", str(error)
    except AdminError as error:
        status, title, text = 502, "No broker did it", str(error)
        if isinstance(error, AdminNotFound) and request.method == "GET":
            status, title = 404, "Not found"
    except web.RequestPayloadError as error:
        status, title, text = 400, "Refused", f"the body of the request cannot be read: {error}"
        if _is_api(request, site.options):
            return api.failure(status, text)
    except web.HTTPError as error:
        if user_of(request) is STRANGER:
            raise
        if _is_api(request, site.options):
            return api.failure(error.status)
        status, title, text = error.status, error.reason, error.text or error.reason
    return site.page(
        request, "problem.html", {"title": title, "text": text, "back": ""}, status=status
    )


def _admin(options: AdminOptions) -> Admin:
    tls: Tls | ssl.SSLContext | bool = False
    wants_tls = options.http_client_tls_root_ca_file or options.http_client_tls_cert
    if wants_tls or options.http_client_tls_insecure_skip_verify:
        tls = Tls(
            ca_file=options.http_client_tls_root_ca_file or None,
            cert_file=options.http_client_tls_cert or None,
            key_file=options.http_client_tls_key or None,
            verify=not options.http_client_tls_insecure_skip_verify,
        )
    path = options.operator_token_file
    return Admin(
        [plain_first(address) for address in options.nsqd_http_addresses],
        lookupd_http_addresses=[plain_first(address) for address in options.lookupd_http_addresses],
        connect_timeout_s=options.http_client_connect_timeout_ns / 1e9,
        request_timeout_s=options.http_client_request_timeout_ns / 1e9,
        operator_token=read_tokens(path)[0] if path else None,
        trusted_brokers=options.trusted_brokers,
        tls=tls,
    )


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
