"""Martlet and, where there is one, nsqd, started once for each choice of flags."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.interop.certificates import Certificates
from tests.interop.nsqd_process import NO_NSQD, NSQD, NsqdProcess

from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port


class Brokers:
    """Servers of one kind; who asks for the same flags gets the same one."""

    def __init__(self, kind: type[BrokerProcess]) -> None:
        self._kind = kind
        self._running: dict[tuple[str, ...], BrokerProcess] = {}
        self._stack = ExitStack()
        self.https: dict[BrokerProcess, str] = {}
        """Where each serves HTTPS."""

    def __call__(self, *flags: str) -> BrokerProcess:
        if flags not in self._running:
            https = f"127.0.0.1:{free_port()}"
            process = self._kind(None, *flags, f"--https-address={https}")
            self._running[flags] = self._stack.enter_context(process)
            self.https[process] = https
        return self._running[flags]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, Brokers]]:
    brokers = {"martlet": Brokers(BrokerProcess), "nsqd": Brokers(NsqdProcess)}
    yield brokers
    for each in brokers.values():
        each.close()


@pytest.fixture(params=["martlet", "nsqd"])
def start(request: pytest.FixtureRequest, kept: dict[str, Brokers]) -> Brokers:
    """Gives a server with the flags given; the topics of other tests may be there."""
    if request.param == "nsqd" and NSQD is None:
        pytest.skip(NO_NSQD)
    return kept[request.param]


@pytest.fixture
def start_martlet(kept: dict[str, Brokers]) -> Brokers:
    return kept["martlet"]


FORMS: list[dict[str, object]] = [
    {"tls_v1": tls, **compression}
    for tls in (False, True)
    for compression in ({}, {"snappy": True}, {"deflate": True})
]


@pytest.fixture(params=FORMS, ids=lambda form: "+".join(k for k in form if form[k]) or "plain")
def form(request: pytest.FixtureRequest) -> dict[str, object]:
    """What a client negotiates."""
    chosen: dict[str, object] = request.param
    return chosen


_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"t{next(_numbers)}"


def tls_of(certificates: Certificates) -> dict[str, Any]:
    """The options of a broker with TLS."""
    return {"tls_cert": str(certificates.certificate), "tls_key": str(certificates.key)}


def trusting(
    certificates: Certificates, shows: str = "", **limits: ssl.TLSVersion
) -> ssl.SSLContext:
    """A client's context, which shows the certificate of the "client" or of a "stranger"."""
    context = ssl.create_default_context(cafile=certificates.authority)
    if shows:
        key = getattr(certificates, f"{shows}_key")
        context.load_cert_chain(getattr(certificates, shows), key)
    for name, version in limits.items():
        setattr(context, name, version)
    return context
