"""Where the admin page listens."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from martlet.console.server import AdminServer
from martlet.options.admin import AdminOptions

HERE = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
ELSEWHERE = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("203.0.113.1", 0))
"""An address that no machine has, as that of IPv6 where it is switched off."""


def page_at(monkeypatch: pytest.MonkeyPatch, *infos: Any) -> AdminServer:
    """A page that listens at a name of several addresses."""

    async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        return list(infos)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    options = AdminOptions(
        nsqd_http_addresses=("127.0.0.1:1",), http_address="localhost:0", allow_anonymous_admin=True
    )
    return AdminServer(options, logging.getLogger("martlet"))


async def test_an_address_of_a_name_that_the_machine_does_not_have_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = page_at(monkeypatch, ELSEWHERE, HERE)
    await page.start()
    try:
        host, _, port = page.address.rpartition(":")
        assert host == "127.0.0.1"
        socket.create_connection((host, int(port))).close()
    finally:
        await page.stop()


async def test_a_name_whose_addresses_the_machine_does_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = page_at(monkeypatch, ELSEWHERE)
    with pytest.raises(OSError, match=r"listen \(localhost:0\) failed: Cannot assign requested"):
        await page.start()
