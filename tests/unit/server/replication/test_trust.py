"""The handshake by which replicas prove that they know the same secret."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.interop.certificates import Certificates

from martlet.options import BrokerOptions
from martlet.server.replication.trust import (
    MAGIC,
    LinkTrust,
    NotTrusted,
    SecretHandshake,
    make_secret,
)

SECRET = b"the secret that all replicas share"


def ends(other: bytes = SECRET) -> tuple[SecretHandshake, SecretHandshake]:
    acceptor = SecretHandshake(SECRET, is_acceptor=True)
    return acceptor, SecretHandshake(other, is_acceptor=False)


@pytest.mark.parametrize("length", [1, 7, 1000])
def test_both_ends_prove_the_secret_in_pieces_of_any_length(length: int) -> None:
    acceptor, connector = ends()
    to_connector, to_acceptor = acceptor.begin(), connector.begin()
    while not (acceptor.is_done and connector.is_done):
        if to_connector:
            reply, rest = connector.feed(to_connector[:length])
            to_connector, to_acceptor = to_connector[length:], to_acceptor + reply
            assert not rest
        if to_acceptor:
            reply, rest = acceptor.feed(to_acceptor[:length])
            to_acceptor, to_connector = to_acceptor[length:], to_connector + reply
            assert not rest


def test_what_follows_the_handshake_is_given_back() -> None:
    acceptor, connector = ends()
    reply, _ = connector.feed(acceptor.begin())
    proof, rest = acceptor.feed(reply + b"a frame")
    assert rest == b"a frame"
    _, rest = connector.feed(proof + b"another")
    assert rest == b"another"


def test_another_secret_is_refused_by_the_acceptor() -> None:
    acceptor, connector = ends(b"another secret, as long as that")
    reply, _ = connector.feed(acceptor.begin())
    with pytest.raises(NotTrusted, match="another secret than --replica-secret-file"):
        acceptor.feed(reply)
    assert not acceptor.is_done


def test_an_acceptor_without_the_secret_is_refused() -> None:
    _, connector = ends()
    liar = SecretHandshake(b"another secret, as long as that", is_acceptor=True)
    connector.feed(liar.begin())
    with pytest.raises(NotTrusted):
        connector.feed(MAGIC + bytes(32))


def test_a_proof_is_good_for_one_connection_and_one_end() -> None:
    acceptor, connector = ends()
    reply, _ = connector.feed(acceptor.begin())
    acceptor.feed(reply)
    with pytest.raises(NotTrusted):  # Another connection has another nonce.
        SecretHandshake(SECRET, is_acceptor=True).feed(reply)
    _, again = ends()
    again.feed(acceptor.begin())
    with pytest.raises(NotTrusted):  # What a connector proves, an acceptor has not.
        again.feed(MAGIC + reply[-32:])


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"MTLR" + bytes(36), b"X"])
def test_what_is_no_handshake_is_refused_at_its_first_bytes(data: bytes) -> None:
    acceptor, _ = ends()
    with pytest.raises(NotTrusted, match="give --replica-secret-file at all replicas"):
        acceptor.feed(data)


def load(made: Certificates, host: str, authority: Path | None = None) -> LinkTrust:
    return LinkTrust.load(
        BrokerOptions(
            replica_name="a",
            replica_address=f"{host}:4153",
            metadata="etcd:127.0.0.1:2379",
            replica_tls_cert=str(made.certificate),
            replica_tls_key=str(made.key),
            replica_tls_ca_file=str(authority or made.authority),
        )
    )


def test_a_certificate_that_others_would_refuse_at_a_failover_is_refused_at_the_start(
    certificates: Certificates,
) -> None:
    assert load(certificates, "localhost").client_tls is not None
    assert load(certificates, "127.0.0.1").server_tls is not None
    for host in ("10.0.0.1", "broker-1.example"):
        with pytest.raises(OSError, match=f"It must name {host}, the host of --replica-address"):
            load(certificates, host)
    with pytest.raises(OSError, match="signed by --replica-tls-ca-file"):
        load(certificates, "localhost", certificates.stranger)


def test_a_secret_is_made_once_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    before = os.umask(0o022)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make_secret, [path] * 8))
    finally:
        os.umask(before)
    secret = path.read_bytes()
    make_secret(path)
    assert path.read_bytes() == secret
    assert len(secret.strip()) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
