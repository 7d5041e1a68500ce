"""Other brokers, where they are installed: what was published is consumed."""

from __future__ import annotations

import pytest

from bench.peers.daemons import KINDS, Daemon, Kind, Missing
from bench.peers.load import PeerConsuming, PeerPublishing, create


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.name}, {kind.sync}")
@pytest.mark.timeout(180)
def test_all_that_was_published_is_consumed(kind: Kind) -> None:
    try:
        daemon = Daemon(kind).__enter__()
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        create("127.0.0.1", daemon.port, kind.protocol, "q")
        publishing = PeerPublishing(topic="q", seconds=0.1, protocol=kind.protocol, batch=50)
        sent = publishing.run("127.0.0.1", daemon.port, lambda: None).messages
        consuming = PeerConsuming(topic="q", seconds=20.0, protocol=kind.protocol, prefetch=100)
        assert consuming.run("127.0.0.1", daemon.port, lambda: None).messages == sent
        assert daemon.version()[:1].isdigit()
    finally:
        daemon.__exit__()


def test_a_missing_program_is_named() -> None:
    with pytest.raises(Missing, match=r"there is no no-such-broker \(package: none\)"):
        Daemon(Kind("x", "redis", False, "no-such-broker", (), "none"))
