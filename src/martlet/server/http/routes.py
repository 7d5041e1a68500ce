"""All HTTP endpoints of a broker.

An endpoint that may change something answers once the flush mode's promise holds for all changes
until then, by `when_settled`, unless it is in `AT_ONCE` or `BY_RECEIPT`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from martlet.broker.broker import BrokerCore
from martlet.broker.errors import WritesRefused
from martlet.http_requests import SAFE_METHODS
from martlet.server.data_folder import DataFolder
from martlet.server.group_commit import GroupCommit
from martlet.server.http.channel_api import ChannelApi
from martlet.server.http.log_api import LogApi
from martlet.server.http.nsq_api import LiveOptions, NsqApi
from martlet.server.http.process_api import DebugApi, HealthApi, MetricsApi
from martlet.server.http.request import Endpoint, HttpError, PublishEndpoint, Request, Routes
from martlet.server.http.rpc_api import CallApi
from martlet.server.observability.metrics import BrokerMetrics
from martlet.server.observability.stats import StatsSource
from martlet.server.rpc.registry import CallRegistry

AT_ONCE = frozenset(
    {
        *("/config/:name", "/debug/freememory", "/debug/setblockrate"),  # of the process alone
        "/log/index",  # reads
        "/call/:name",  # as `rpc.registry` says
        "/v1/topics/:topic/messages",  # waits for its receipts, for no longer than a SEND
        "/v1/topics/:topic/channels/:channel/receive",  # waits before it subscribes
    }
)
BY_RECEIPT = frozenset({"/pub", "/mpub"})
"""These wait for the receipts of their messages, so only for changes of topics besides."""


def broker_routes(
    broker: BrokerCore,
    commits: GroupCommit,
    settings: LiveOptions,
    folder: DataFolder,
    calls: CallRegistry,
    stats: StatsSource,
    metrics: BrokerMetrics,
    replicas: Callable[[], list[str]],
) -> Routes:
    """Return the endpoints of a broker."""
    _ = calls.methods  # imported now, so that the first client does not wait for it
    return {
        **NsqApi(broker, commits, settings, stats).routes(),
        **LogApi(lambda: broker, folder, replicas).routes(),
        **ChannelApi(broker).routes(),
        **CallApi(calls).routes(),
        **MetricsApi(metrics).routes(),
        **HealthApi(lambda: _obstacle(broker)).routes(),
        **DebugApi().routes(),
    }


def _obstacle(broker: BrokerCore) -> str:
    """Return why a broker cannot take clients; empty if it can."""
    return "" if broker.health == "OK" else broker.health.removeprefix("NOK - ")


def when_settled(routes: Routes, commits: GroupCommit) -> Routes:
    """Return endpoints that answer a change once the flush mode's promise holds for it."""
    return {
        path: {
            method: endpoint
            if method in SAFE_METHODS or path in AT_ONCE
            else _settled(
                endpoint, commits.changes_settled if path in BY_RECEIPT else commits.all_settled
            )
            for method, endpoint in methods.items()
        }
        for path, methods in routes.items()
    }


def _settled(endpoint: Endpoint, settled: Callable[[], Awaitable[None]]) -> Endpoint:
    async def answer(request: Request) -> object:
        try:
            answer = await endpoint(request)
            await settled()
        except WritesRefused as error:
            raise HttpError(503, f"REFUSED {error}") from None
        return answer

    if isinstance(endpoint, PublishEndpoint):
        return PublishEndpoint(answer, endpoint.lone)
    return answer
