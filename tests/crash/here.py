"""A broker in a thread of the test's process: started in milliseconds, and not to be killed."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

from martlet.cli.servers.broker import arguments
from martlet.options import BrokerOptions
from martlet.server.build import build_server


class BrokerHere(logging.Handler):
    """A whole broker with the flags of the command, in a loop and a thread of its own."""

    def __init__(self, data_dir: Path, *flags: str) -> None:
        super().__init__(logging.INFO)
        ports = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
        values, _ = arguments().read([*ports, f"--data-path={data_dir}", *flags])
        self._options = BrokerOptions(**values)
        self._lines: list[str] = []
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{record.levelname}: {record.getMessage()}\n")

    def log(self) -> str:
        """Return the log so far."""
        return "".join(self._lines)

    def start(self) -> None:
        """Start it, and wait until it listens. Raises what the start raises."""
        logger = logging.getLogger("martlet")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        ready = threading.Event()
        failed: list[BaseException] = []

        async def run() -> None:
            self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
            try:
                server = build_server(self._options)
                await server.start()
            except BaseException as error:
                failed.append(error)
                ready.set()
                return
            self.tcp_address, self.http_address = server.tcp_address, server.http_address
            ready.set()
            await self._stopping.wait()
            await server.stop()

        self._thread = threading.Thread(target=asyncio.run, args=(run(),))
        self._thread.start()
        ready.wait()
        if failed:
            self._thread.join()
            raise failed[0]

    def stop(self) -> int:
        """Stop it cleanly."""
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = None
        logging.getLogger("martlet").removeHandler(self)
        return 0

    def close(self) -> None:
        """Stop it if it runs."""
        if self._thread is not None:
            self.stop()
        super().close()
