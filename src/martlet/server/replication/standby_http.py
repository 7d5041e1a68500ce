"""HTTP at a replica that is not primary: it answers what is its own, and forwards the rest.

A request is forwarded over a connection between replicas, as the bytes of a client of NSQ's
protocol are: so it is as safe on its way, and goes no further where the primary has just changed.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web
from yarl import URL

from martlet.protocol.nsq.v2 import NSQD_VERSION
from martlet.server.clock import TimeSlice
from martlet.server.http.access import route_of
from martlet.server.http.process_api import HealthApi
from martlet.server.http.request import AnswerAgain, Endpoint, HttpError, Request, Routes
from martlet.server.http.response import respond_json
from martlet.server.observability import stats_text
from martlet.server.observability.metrics import process_metrics, ready_metric
from martlet.server.observability.prometheus import CONTENT_TYPE
from martlet.server.replication.splice import HOLD_S

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.tracing import Trace

    from martlet.server.observability.histogram import LoopLag
    from martlet.server.replication.link import ReplicaLink
    from martlet.server.replication.status import ReplicaStatus

_OF_CONNECTION = {
    *("authorization", "connection", "content-length", "expect", "host", "keep-alive"),
    *("proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"),
}
"""The headers that concern one connection alone; an operator's token was checked here."""
_RETRY_S = 0.05
_PIECE_BYTES = 1 << 16


class _NotTaken(Exception):
    """No primary took the request, and nothing was done."""


class _SpliceConnector(aiohttp.BaseConnector):
    """Connects to the primary, whatever the host of a URL.

    Args:
        connect: opens a connection to the primary for the request of the current task.
    """

    def __init__(self, connect: Callable[[], Awaitable[ReplicaLink]]) -> None:
        super().__init__(force_close=True, limit=0)
        self._connect_primary = connect

    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        try:
            link = await self._connect_primary()
        except OSError as error:
            raise _NotTaken(str(error)) from error
        protocol: ResponseHandler = self._factory()
        link.release(protocol)
        return protocol


class _AnyMethod(Mapping[str, Endpoint]):
    """One endpoint for each method."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __getitem__(self, method: str) -> Endpoint:
        return self._endpoint

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True


class StandbyRoutes(Mapping[str, Mapping[str, Endpoint]]):
    """The endpoints of a standby: its own, and for any other path the primary's.

    Args:
        of_node: returns those of the node that runs when a request comes.
    """

    def __init__(self, own: Routes, of_node: Callable[[], Routes], forward: Endpoint) -> None:
        self._own = own
        self._of_node = of_node
        self._others = _AnyMethod(forward)

    def __getitem__(self, path: str) -> Mapping[str, Endpoint]:
        endpoints = self._own.get(path)
        return endpoints if endpoints is not None else self._of_node().get(path, self._others)

    def __iter__(self) -> Iterator[str]:
        return chain(self._own, self._of_node())

    def __len__(self) -> int:
        return len(self._own) + len(self._of_node())


class Forwarder:
    """Forwards requests to the primary.

    Args:
        connect: opens a connection to the primary for a request, and returns it with the primary's
            epoch. Its argument says whether the client was checked to be an operator.
        is_primary: returns whether this replica has become it.
    """

    def __init__(
        self,
        connect: Callable[[bool], Awaitable[tuple[ReplicaLink, int]]],
        is_primary: Callable[[], bool],
        max_body_bytes: int,
    ) -> None:
        self._connect = connect
        self._is_primary = is_primary
        self._max_body_bytes = max_body_bytes
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """For requests of operators, and for others."""
        self._asking: dict[asyncio.Task[Any], int | None] = {}
        """The requests under way, each with the epoch of its primary once one is connected."""

    async def forward(self, request: Request) -> object:
        """Answer a request as the primary does.

        Raises:
            HttpError: there is none, or it went away before it answered.
            AnswerAgain: this replica has become it.
        """
        body = await request.hold(self._max_body_bytes)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + HOLD_S
        while True:
            if self._is_primary():
                raise AnswerAgain
            try:
                return await self._until_answered(request, self._ask(request, body))
            except _NotTaken as error:
                if loop.time() > deadline_s:
                    raise HttpError(503, "NO_PRIMARY", {"detail": str(error)}) from error
            except (aiohttp.ClientError, OSError) as error:
                detail = f"it may have been done: {error}"
                raise HttpError(502, "PRIMARY_UNREACHABLE", {"detail": detail}) from error
            # An election under way may end at any moment, and there is no event for it.
            await asyncio.sleep(_RETRY_S)

    async def _until_answered(
        self, request: Request, asking: Coroutine[object, object, web.StreamResponse]
    ) -> web.StreamResponse:
        """Wait for the answer. A later epoch ends the request. If the client of a receive
        disconnects, so does this request, and the primary gives its messages to others.

        Raises ClientError.
        """
        task = asyncio.create_task(asking)
        self._asking[task] = None
        task.add_done_callback(self._asking.pop)
        try:
            with request.when_gone(task.cancel) if _takes_messages(request) else nullcontext():
                return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise aiohttp.ClientError("another replica is primary now") from None
            task.cancel()
            raise

    def epoch_began(self, epoch: int) -> None:
        """End the requests to the primary of an earlier epoch, which may hang."""
        for task, epoch_of_primary in self._asking.items():
            if epoch_of_primary is not None and epoch_of_primary < epoch:
                task.cancel()

    async def _connect_current(self, *, is_operators: bool) -> ReplicaLink:
        """Connect to the primary for the request of the current task. Raises OSError."""
        task = asyncio.current_task()
        assert task is not None and task in self._asking, "aiohttp has connected in another task"
        link, self._asking[task] = await self._connect(is_operators)
        return link

    async def _ask(self, request: Request, body: bytes) -> web.StreamResponse:
        """Send a request to the primary, and pass its answer on. Raises _NotTaken, ClientError."""
        raw = request.raw
        session = self._sessions.get(request.is_operators)
        if session is None:
            connector = _SpliceConnector(
                partial(self._connect_current, is_operators=request.is_operators)
            )
            session = self._sessions[request.is_operators] = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
        headers = [
            (name, value)
            for name, value in raw.headers.items()
            if name.lower() not in _OF_CONNECTION
        ]
        headers.append(("X-Forwarded-For", request.remote_address.rpartition(":")[0]))
        async with session.request(
            request.method,
            URL(f"http://primary{request.target}", encoded=True),
            headers=headers,
            data=io.BytesIO(body) if raw.body_exists else None,
            allow_redirects=False,
            skip_auto_headers=("User-Agent", "Content-Type", "Accept", "Accept-Encoding"),
        ) as answer:
            return await _pass_on(answer, raw)

    async def close(self) -> None:
        """Release all resources."""
        for session in self._sessions.values():
            await session.close()


def _takes_messages(request: Request) -> bool:
    return route_of(request.path).endswith("/:channel/receive")


async def _pass_on(answer: aiohttp.ClientResponse, raw: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    for name, value in answer.headers.items():
        if name.lower() not in _OF_CONNECTION:
            response.headers.add(name, value)
    response.content_length = answer.content_length
    await response.prepare(raw)
    async for piece in answer.content.iter_chunked(_PIECE_BYTES):
        await response.write(piece)
    await response.write_eof()
    return response


def own_routes(
    status: Callable[[], ReplicaStatus], lag: LoopLag, started_at_s: int, forward: Endpoint
) -> Routes:
    """Return the endpoints that a standby answers itself.

    Its ``/stats`` has no topics, so that monitoring that adds up all replicas counts each topic
    once. With ``primary=true`` it has those of the primary, for a client to which this replica
    stands for its broker.

    Args:
        started_at_s: when the process started, in seconds since 1970.
    """

    async def ping(request: Request) -> object:
        return "OK"

    async def stats(request: Request) -> object:
        if request.query.get("primary") == "true":
            return await forward(request)
        head: dict[str, Any] = {"version": NSQD_VERSION, "health": "OK", "start_time": started_at_s}
        pace = TimeSlice()
        if request.query.get("format") == "json":
            tail = {"replication": status().report()}
            return respond_json(await stats_text.report_json(head, [], None, [], tail, pace))
        return await stats_text.report_text(head, [], None, [], time.time_ns(), pace)

    async def show_metrics(request: Request) -> object:
        node = status()
        text = node.metrics() + ready_metric(not node.obstacle) + process_metrics(lag)
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def show(request: Request) -> object:
        return await status().show(request)

    async def show_whether_primary(request: Request) -> object:
        return await status().show_whether_primary(request)

    return {
        "/ping": {"GET": ping},
        "/stats": {"GET": stats},
        "/metrics": {"GET": show_metrics},
        **HealthApi(lambda: status().obstacle).routes(),
        "/replica": {"GET": show},
        "/replica/primary": {"GET": show_whether_primary},
    }
