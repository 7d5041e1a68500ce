"""``martlet broker``: run a broker until SIGTERM or SIGINT.

Exit codes: 0 after a clean stop (SIGTERM or SIGINT), 2 when the command line or the config file
is wrong, 1 for everything else, with the reason as the last log line.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Sequence

from martlet.cli import start
from martlet.cli.main import not_collected
from martlet.cli.servers import service
from martlet.native import native
from martlet.options import BrokerOptions, OptionError
from martlet.options.command_line import ParsedArguments
from martlet.replica.note import BadNote, ReplicaFailed
from martlet.server.observability.log_stream import replace_standard_streams

log = logging.getLogger(start.ROOT)
_CA_FILE = "SSL_CERT_FILE"
"""Of OpenSSL: the file that a default TLS context reads."""

_COLLECT_AFTER = 50_000
"""The number of new objects between garbage collections: a broker makes few cycles, and most of its
objects are freed within the turn.
"""

DESCRIPTION = (
    "Run a broker that NSQ's clients use unchanged. Takes the flags and the config file of nsqd."
)


def arguments() -> ParsedArguments:
    """The command line of a broker."""
    return start.arguments("broker", DESCRIPTION, BrokerOptions)


def main(argv: Sequence[str]) -> int:
    """Run a broker with the given flags; return the exit code of the process."""
    options = start.options(arguments(), BrokerOptions, argv, _hello)
    replace_standard_streams()
    with asyncio.Runner(loop_factory=start.loop_factory()) as runner:
        return runner.run(_serve(options))


def _hello(options: BrokerOptions) -> list[str]:
    hot_path = "Python" if native is None else "compiled"
    return [start.version(), f"ID: {options.node_id}", f"hot path: {hot_path}"]


async def _serve(options: BrokerOptions) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        if stopping.is_set():
            log.warning("%s again: stopping at once; the log stays intact", number.name)
            os._exit(1)
        log.info("%s: stopping", number.name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await (_serve_replica if options.replica_name else _serve_alone)(options, stopping)
    except (OSError, OptionError, ReplicaFailed, BadNote) as error:
        log.critical("%s", error)
        return start.WRONG if isinstance(error, OptionError) else 1
    log.info("NSQ: bye")
    return 0


async def _serve_alone(options: BrokerOptions, stopping: asyncio.Event) -> None:
    with not_collected():
        from martlet.server.build import build_server

        server = build_server(options)
        if options.http_address or options.https_address:
            import_aiohttp()
        await server.start()
    _started()
    await stopping.wait()
    service.notify(service.STOPPING)
    await server.stop()


async def _serve_replica(options: BrokerOptions, stopping: asyncio.Event) -> None:
    import_aiohttp()
    from martlet.server.replication.process import ReplicaProcess

    process = ReplicaProcess(options)
    running = asyncio.create_task(process.run())
    useful = asyncio.create_task(process.useful())
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait([running, waiting, useful], return_when=asyncio.FIRST_COMPLETED)
    if useful.done():
        _started()
    useful.cancel()
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    service.notify(service.STOPPING)
    process.stop()
    await running


def import_aiohttp() -> None:
    """Import aiohttp, and have it read no CA certificates of the machine.

    It makes two default TLS contexts when it is imported, and each would read all certificates:
    together a fifth of a broker's start. A broker uses neither of them: where it connects by TLS,
    it has a context of its own, and elsewhere it follows no redirects.

    Not for a process of which a broker is only a part: it sets the environment meanwhile, and
    others may use these contexts.
    """
    before = os.environ.get(_CA_FILE)
    os.environ[_CA_FILE] = os.devnull
    try:
        import aiohttp  # noqa: F401
    finally:
        if before is None:
            del os.environ[_CA_FILE]
        else:
            os.environ[_CA_FILE] = before


def _started() -> None:
    # Objects of the start live as long as the process: exclude them from collections.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    service.notify(service.READY)
