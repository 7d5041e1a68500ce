"""All HTTP endpoints of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.server.http.channel_api import ChannelApi
from martlet.server.http.debug_api import DebugApi
from martlet.server.http.health_api import HealthApi
from martlet.server.http.log_api import LogApi
from martlet.server.http.metrics_api import MetricsApi
from martlet.server.http.nsq_api import NsqApi
from martlet.server.http.rpc_api import CallApi

if TYPE_CHECKING:
    from collections.abc import Callable

    from martlet.broker.broker import BrokerCore
    from martlet.server.data_folder import DataFolder
    from martlet.server.group_commit import GroupCommit
    from martlet.server.http.nsq_api import LiveOptions
    from martlet.server.http.request import Routes
    from martlet.server.observability.metrics import BrokerMetrics
    from martlet.server.observability.stats import StatsSource
    from martlet.server.rpc.registry import CallRegistry


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
        **ChannelApi(broker, commits).routes(),
        **CallApi(calls).routes(),
        **MetricsApi(metrics).routes(),
        **HealthApi(lambda: _obstacle(broker)).routes(),
        **DebugApi().routes(),
    }


def _obstacle(broker: BrokerCore) -> str:
    """Return why a broker cannot take clients; empty if it can."""
    return "" if broker.health == "OK" else broker.health.removeprefix("NOK - ")
