"""Commands that run in the process of the tests."""

from __future__ import annotations

import pytest
from tests.interop.cli.tools import Said, Tool

from martlet.cli.main import main
from martlet.testing import BrokerProcess


@pytest.fixture
def tool(capfd: pytest.CaptureFixture[str]) -> Tool:
    """Runs a tool to its end, in this process: to start one takes longer than what it does."""

    def run(*arguments: str) -> Said:
        capfd.readouterr()
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Said(code, *capfd.readouterr())

    return run


@pytest.fixture
def at_broker(tool: Tool, broker: BrokerProcess) -> Tool:
    """Runs a tool that asks the broker of the module."""
    return lambda *arguments: tool(*arguments, f"--nsqd-http-address={broker.http_address}")
