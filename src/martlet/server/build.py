"""Build a server: the parts of a broker, each made from those that it needs."""

from __future__ import annotations

import logging
import random
import resource
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from martlet.broker.recovery.restore import RestoredBroker, restore
from martlet.broker.retention.eviction import Eviction, HistoryReclaimer
from martlet.broker.retention.history import Retention, Watermarks
from martlet.layer.layer import SPACE_BYTES
from martlet.options import BrokerOptions
from martlet.protocol.nsq.v2 import ProtocolLimits
from martlet.replica.note import NAME as REPLICA_NOTE
from martlet.server.clock import Clock, DueTimer
from martlet.server.data_folder import DataFolder, open_folder, refusal
from martlet.server.disk_space import DiskSpace
from martlet.server.group_commit import GroupCommit
from martlet.server.http.v1.leases import Leases
from martlet.server.listeners import Listeners
from martlet.server.lookup_peer import LookupPeers, host_and_port
from martlet.server.nsq.authorizer import AuthServers
from martlet.server.nsq.calls import CallCommand
from martlet.server.nsq.clients import Clients
from martlet.server.nsq.commands import SessionCommands, command_handlers
from martlet.server.nsq.connection import RECEIVE_BYTES, ClientConnection, ConnectionContext
from martlet.server.nsq.publish import FlushTimeouts, LonePublish, PublishCommands
from martlet.server.nsq.subscription import AckCommands
from martlet.server.nsq.upgrade import UpgradeContext
from martlet.server.observability.event_log import EventLog
from martlet.server.observability.stats import StatsSource, log_report
from martlet.server.observability.statsd import expand_prefix
from martlet.server.rpc.begun_transactions import transaction_limits
from martlet.server.rpc.registry import CallRegistry, Methods
from martlet.server.server import Server
from martlet.server.tls import server_context
from martlet.text import MILLISECOND_NS, counted

if TYPE_CHECKING:
    import ssl

    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.topic.topic import Topic
    from martlet.server.http.request import Routes
    from martlet.server.http.v1.api import HttpApi
    from martlet.server.observability.replication import Replication

_IMPORTED_LATE = (
    "martlet.server.http.nsq_api",
    "martlet.server.http.routes",
    "martlet.server.http.v1.api",
    "martlet.server.observability.metrics",
    "martlet.server.rpc.methods",
    "numpy.ma",  # of numpy.unique
)
"""The modules that a broker imports only when it serves, so that it listens sooner."""


def import_all() -> None:
    """Import all that a broker imports only when it serves, as a standby does in advance."""
    for name in _IMPORTED_LATE:
        import_module(name)


def build_server(options: BrokerOptions, log: logging.Logger | None = None) -> Server:
    """Bind the addresses, open the data folder and read its log; `Server.start` does the rest.

    Call it where the event loop runs.

    Raises:
        OSError: an address, the folder or a certificate cannot be used; the text says why.
        OptionError: the address of a lookup daemon has no port.
    """
    for address in options.lookupd_tcp_addresses:
        host_and_port(address)  # Not checked with the options: at run time nsqd's API takes any.
    log = log or logging.getLogger("martlet")
    for warning in options.topology_warnings():
        log.warning("%s", warning)
    tls = server_context(options)
    allow_many_files()
    with ExitStack() as undo:
        # The addresses come first: a broker that cannot listen leaves no folder behind.
        listeners = Listeners(options, tls, log)
        undo.callback(listeners.close)
        folder = open_folder(Path(options.data_path or ".").absolute(), options, log)
        undo.callback(folder.close)
        _require_no_replica(folder)
        clock = Clock()
        broker = _restore(folder, clock, options, log)
        options = with_ports(options, listeners)
        server = assemble_server(options, tls, listeners, folder, broker, clock, log)
        undo.pop_all()
    return server


def with_ports(options: BrokerOptions, listeners: Listeners) -> BrokerOptions:
    """Return the options with the actual ports."""
    http_port = options.broadcast_http_port or max(0, listeners.http_port)
    return options.replace(
        broadcast_tcp_port=options.broadcast_tcp_port or max(0, listeners.tcp_port),
        broadcast_http_port=http_port,
        tls_required=options.tls_demanded,
        statsd_prefix=expand_prefix(options.statsd_prefix, options.broadcast_address, http_port),
    )


def allow_many_files() -> None:
    """Raise the limit of open files to the maximum: each connection is a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# the log


def _require_no_replica(folder: DataFolder) -> None:
    """Refuse the folder of a replica: alone it would write what no other replica has."""
    if folder.storage.read(REPLICA_NOTE) is not None:
        raise OSError(
            f"the data folder {folder.path} is that of a replica: start it with --replica-name and"
            f" --metadata; or, if its replica set is given up for good, delete {REPLICA_NOTE} in it"
        )


def _restore(
    folder: DataFolder, clock: Clock, options: BrokerOptions, log: logging.Logger
) -> BrokerCore:
    try:
        broker, restored = restore(
            folder.storage,
            clock,
            random.SystemRandom(),
            segment_bytes=options.segment_bytes,
            **broker_settings(options, log),
        )
    except OSError as error:
        raise refusal(folder.path, error) from error
    broker.log.refuse_percent = options.disk_refuse_percent
    log_recovery(folder.path, broker, restored, log)
    return broker


def broker_settings(options: BrokerOptions, log: logging.Logger) -> dict[str, Any]:
    """Return the fields of `BrokerSettings` that follow from the options."""
    return {
        "max_consumers": options.max_channel_consumers,
        "prefers_near": options.prefers_near,
        "max_topics": options.max_topics,
        "max_channels": options.max_channels_per_topic,
        "max_timeout_ns": options.max_msg_timeout_ns,
        "latency_window_ns": options.latency_window_ns,
        "retention": Retention.from_flags(options.retention_ns, options.retention_bytes),
        "keep_emptied_ns": options.keep_emptied_ns,
        "transactions": transaction_limits(options),
        "watermarks": Watermarks(options.disk_clean_percent, options.disk_force_percent),
        "max_delayed": options.max_delayed_messages,
        "max_ephemeral": options.mem_queue_size,
        "traces": options.trace,
        "on_lost": partial(_log_lost, log),
        "on_put_off": partial(_log_put_off, log),
    }


def log_recovery(
    path: Path, broker: BrokerCore, restored: RestoredBroker, log: logging.Logger
) -> None:
    """Log what a start has found."""
    report = restored.report
    for note in restored.notes:
        log.warning("LOG: %s", note)
    for damage in report.damaged:
        log.error("LOG: %s", damage)
    if report.cut is not None:
        cut = report.cut
        log.warning("LOG: cut a torn tail at position %d: %s", cut.start, cut.reason)
    log.info(
        "LOG: %s from %s, %s replayed, going on at position %d",
        counted(len(broker.topics), "topic"),
        path,
        counted(report.records, "record"),
        report.end_position,
    )


def _log_lost(
    log: logging.Logger, topic: str, channel: str, first: int, end: int, reason: str
) -> None:
    log.error(
        "LOG: topic %s, channel %s: messages %d to %d are lost: %s",
        topic, channel, first, end - 1, reason,
    )  # fmt: skip


def _log_put_off(log: logging.Logger, topic: str, channel: str, error: OSError) -> None:
    log.error(
        "LOG: topic %s, channel %s: delivery is tried again in a second: %s", topic, channel, error
    )


# the parts


def assemble_server(
    options: BrokerOptions,
    tls: ssl.SSLContext | None,
    listeners: Listeners,
    folder: DataFolder,
    broker: BrokerCore,
    clock: Clock,
    log: logging.Logger,
    *,
    replication: Replication | None = None,
) -> Server:
    """Make a server of its parts; the options have the actual ports."""
    answers_confirmed = replication is not None and replication.is_sync
    commits = GroupCommit(broker, options, log, answers_confirmed=answers_confirmed)
    events = EventLog(broker, log)
    ports = (listeners.tcp_port, listeners.http_port)
    lookups = LookupPeers(broker, options, *ports, folder)
    reclaimer = _reclaimer(options, broker, commits, events)
    _observe(broker, events, lookups)
    _limit_transfers(broker, commits, options)
    clients = Clients(options.max_connections, events, log)
    calls = CallRegistry(partial(_methods, options, folder, broker, commits, clients, log), commits)
    flush_timeouts = FlushTimeouts(commits)
    receive_buffer = bytearray(RECEIVE_BYTES)
    publishes = PublishCommands(
        broker, options, commits.answers_at_once, flush_timeouts, events, replication
    )
    context = ConnectionContext(
        broker=broker,
        options=options,
        limits=_limits(options),
        commits=commits,
        clients=clients,
        events=events,
        auth_servers=AuthServers(options) if options.auth_http_addresses else None,
        operators=listeners.operators,
        commands=command_handlers(
            SessionCommands(broker, options, _upgrades(tls, log), events, folder),
            publishes,
            AckCommands(options.max_req_timeout_ns, events),
            CallCommand(calls, log, commits.ticks.others_wait),
        ),
        lone=LonePublish(broker, commits, receive_buffer),
        receive_buffer=receive_buffer,
        receive_view=memoryview(receive_buffer),
        log=log,
    )
    report_log = partial(log_report, broker.log, folder, commits.flusher, options)
    levels = options.e2e_processing_latency_percentiles
    server = Server(
        options=options,
        broker=broker,
        folder=folder,
        listeners=listeners,
        commits=commits,
        timer=DueTimer(broker, clock, log),
        reclaimer=reclaimer,
        disk_space=DiskSpace(broker, commits.flusher, reclaimer, events),
        clients=clients,
        connect=partial(_connection, context),
        routes=lambda: _routes(server, replication),
        calls=calls,
        stats=StatsSource(broker, clients.connections, levels, report_log, folder, replication),
        lookups=lookups,
        flush_timeouts=flush_timeouts,
        auth_servers=context.auth_servers,
        leases=Leases(broker, commits, options),
        log=log,
    )
    return server


def _reclaimer(
    options: BrokerOptions, broker: BrokerCore, commits: GroupCommit, events: EventLog
) -> HistoryReclaimer:
    if options.drops_oldest:
        return Eviction(broker, commits.flusher.flush_now, events.evicted)
    return HistoryReclaimer(broker)


def _limit_transfers(broker: BrokerCore, commits: GroupCommit, options: BrokerOptions) -> None:
    broker.transfers.waits_for_flush = options.flush == "sync"
    broker.transfers.on_written = commits.flusher.flush


def _observe(broker: BrokerCore, events: EventLog, lookups: LookupPeers) -> None:
    """Log what happens to topics and transactions, and register it with lookup daemons."""

    def topic_changed(topic: Topic) -> None:
        events.topic_changed(topic)
        lookups.topic_changed(topic)

    def channel_changed(topic: Topic, channel: Channel) -> None:
        events.channel_changed(topic, channel)
        lookups.channel_changed(topic, channel)

    broker.on_topic = topic_changed
    broker.on_channel = channel_changed
    broker.on_grown = events.topic_grown
    broker.log.on_refused = events.write_refused
    broker.transfers.on_refused = events.transfer_refused
    broker.transactions.on_set_aside = events.set_aside
    broker.transactions.on_abandoned = events.abandoned


def _upgrades(tls: ssl.SSLContext | None, log: logging.Logger) -> UpgradeContext:
    return UpgradeContext(tls, memoryview(bytearray(SPACE_BYTES)), log)


def _limits(options: BrokerOptions) -> ProtocolLimits:
    return ProtocolLimits(
        options.max_rdy_count,
        options.max_msg_size,
        options.max_body_size,
        options.max_req_timeout_ns // MILLISECOND_NS,
    )


def _connection(
    context: ConnectionContext, remote_address: str = "", *, is_vouched_for: bool = False
) -> ClientConnection:
    kind = ClientConnection
    if context.log.isEnabledFor(logging.DEBUG):
        from martlet.server.nsq.traced import TracedConnection

        kind = TracedConnection
    return kind(context, remote_address, is_vouched_for=is_vouched_for)


def _methods(
    options: BrokerOptions,
    folder: DataFolder,
    broker: BrokerCore,
    commits: GroupCommit,
    clients: Clients,
    log: logging.Logger,
) -> Methods:
    from martlet.server.rpc.methods import broker_methods

    return broker_methods(broker, commits, options, folder, lambda: clients.is_stopping, log)


def _routes(server: Server, replication: Replication | None) -> Routes:
    from martlet.server.http.nsq_api import LiveOptions
    from martlet.server.http.routes import broker_routes, when_settled
    from martlet.server.observability.metrics import BrokerMetrics

    options, broker = server.options, server.broker
    settings = LiveOptions(options, server.lookups, server.tcp_port, server.http_port)
    metrics = BrokerMetrics(
        broker,
        options,
        server.folder,
        server.flusher,
        server.reclaimer,
        server.connections,
        server.listeners.lag,
        *([] if replication is None else [replication.metrics]),
    )
    routes = broker_routes(
        broker,
        server.commits,
        settings,
        server.folder,
        server.calls,
        server.stats,
        metrics,
        list if replication is None else replication.http_addresses,
    )
    own = {} if replication is None else replication.routes()
    routes = when_settled({**routes, **_http_api(server, replication).routes()}, server.commits)
    return {**routes, **own}  # The metadata store confirms changes of replicas.


def _http_api(server: Server, replication: Replication | None) -> HttpApi:
    from martlet.server.http.v1.api import HttpApi
    from martlet.server.http.v1.guard import HttpGuard
    from martlet.server.http.v1.messages import MessagePublisher

    broker, options = server.broker, server.options
    return HttpApi(
        broker,
        options,
        MessagePublisher(broker, server.commits, options, replication),
        server.leases,
        HttpGuard(server.auth_servers, server.log),
        server.commits,
    )
