"""A broker inside the running event loop, for tests of what uses one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from martlet.server.server import Server

LOOPBACK = "127.0.0.1:0"
"""Any free port of this machine alone."""


class Broker:
    """A complete broker on free ports of the loopback interface.

    ::

        async with Broker() as broker:
            async with Producer(broker.tcp_address) as producer:
                await producer.publish("orders", b"one")

    Without a data folder it has one of its own, which goes with it. It keeps history however full
    the machine's disk is, unless ``disk_force_percent`` is given.

    Attributes:
        options: what the broker is started with.
    """

    def __init__(self, data_dir: str | Path | None = None, **options: Any) -> None:
        """Take the settings; the broker starts with ``async with``.

        Args:
            data_dir: where to keep the data.
            options: fields of ``martlet.options.BrokerOptions``, such as ``msg_timeout_ns``.

        Raises:
            OptionError: an option is out of its limits.
            TypeError: there is no such option.
        """
        from martlet.options import BrokerOptions

        ports = dict.fromkeys(("tcp_address", "http_address", "https_address"), LOOPBACK)
        self.options = BrokerOptions(**{**ports, "disk_force_percent": 0, **options})
        self._data_dir = data_dir
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None
        self._server: Server | None = None

    async def __aenter__(self) -> Broker:
        from martlet.server.build import build_server

        if self._data_dir is None:
            self._own_folder = tempfile.TemporaryDirectory(prefix="martlet-")
            self._data_dir = self._own_folder.name
        self.options = self.options.replace(data_path=str(self._data_dir))
        try:
            self.data_path.mkdir(parents=True, exist_ok=True)
            self._server = build_server(self.options)
            await self._server.start()
        except BaseException:
            self._remove_folder()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        try:
            await self.server.stop()
        finally:
            self._remove_folder()

    @property
    def server(self) -> Server:
        """The server itself, for tests that look inside.

        Raises:
            RuntimeError: the broker is not running.
        """
        if self._server is None:
            raise RuntimeError("the broker is not running: use 'async with Broker()'")
        return self._server

    @property
    def data_path(self) -> Path:
        """The data folder."""
        return Path(self.options.data_path)

    @property
    def tcp_address(self) -> str:
        """Where NSQ clients connect, as ``host:port``."""
        return f"127.0.0.1:{self.server.tcp_port}"

    @property
    def http_address(self) -> str:
        """Where HTTP is served, as ``host:port``."""
        return f"127.0.0.1:{self.server.http_port}"

    def _remove_folder(self) -> None:
        if self._own_folder is not None:
            self._own_folder.cleanup()
