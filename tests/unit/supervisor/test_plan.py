"""Which servers `martlet up` runs, and where."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from martlet.cli import start
from martlet.cli.servers import admin, up
from martlet.cli.servers.broker import arguments
from martlet.options import OptionError
from martlet.options.admin import AdminOptions
from martlet.supervisor.options import UpOptions
from martlet.supervisor.plan import Planned, plan
from martlet.text import how_to_install


def values_of(server: Planned, of_admin: bool = False) -> dict[str, Any]:
    """The options that a server gets."""
    command = start.arguments("admin", admin.DESCRIPTION, AdminOptions) if of_admin else arguments()
    return command.read(server.arguments[1:])[0]


def test_brokers_are_a_hundred_ports_apart() -> None:
    planned = plan(UpOptions(workers=3, data_path="data"), ("--max-msg-size=4MiB",))
    assert [broker.tcp_address for broker in planned.brokers] == [
        *("127.0.0.1:4150", "127.0.0.1:4250", "127.0.0.1:4350")
    ]
    values = values_of(planned.brokers[2])
    assert values == {
        "tcp_address": "127.0.0.1:4350",
        "http_address": "127.0.0.1:4351",
        "https_address": "127.0.0.1:4352",
        "data_path": str(Path("data", "broker-2")),
        "broadcast_address": "127.0.0.1",
        "lookupd_tcp_addresses": ("127.0.0.1:4160",),
        "max_msg_size": 4 << 20,
    }
    assert planned.servers[0].name == "lookup"


def test_a_server_that_listens_everywhere_is_reached_by_the_hosts_name() -> None:
    options = UpOptions(tcp_address="0.0.0.0:4150", lookup_tcp_address=":4160")
    planned = plan(options, ())
    values = values_of(planned.brokers[0])
    assert values["broadcast_address"] == socket.gethostname()
    assert values["lookupd_tcp_addresses"] == ("127.0.0.1:4160",)


def test_brokers_get_other_lookup_daemons_if_none_is_started() -> None:
    options = UpOptions(lookup=False, lookup_tcp_address="h:4150")
    planned = plan(options, ("--lookupd-tcp-address=far:4160",))
    assert [server.name for server in planned.servers] == ["broker-0", "admin"]
    values = values_of(planned.brokers[0])
    assert values["lookupd_tcp_addresses"] == ("far:4160",)


def test_each_replica_has_a_folder_and_ports_of_its_own() -> None:
    planned = plan(UpOptions(workers=2, replicas=3, data_path="data"), ("--min-in-sync=1",))
    assert [broker.name for broker in planned.brokers] == [
        *("broker-0.a", "broker-0.b", "broker-0.c", "broker-1.a", "broker-1.b", "broker-1.c")
    ]
    assert [broker.folder.name for broker in planned.brokers[:3]] == [
        *("broker-0", "broker-0.b", "broker-0.c")
    ]
    assert len({server.tcp_address for server in planned.lookup + planned.brokers}) == 7
    values = values_of(planned.brokers[4])
    assert values == {
        "tcp_address": "127.0.0.1:4280",
        "http_address": "127.0.0.1:4281",
        "https_address": "127.0.0.1:4282",
        "data_path": str(Path("data", "broker-1.b")),
        "broadcast_address": "127.0.0.1",
        "lookupd_tcp_addresses": ("127.0.0.1:4160",),
        "replica_name": "b",
        "replica_address": "127.0.0.1:4283",
        "metadata": f"sqlite:{Path('data', 'replicas.db')}",
        "replica_set": "broker-1",
        "initial_replicas": "a=127.0.0.1:4253,b=127.0.0.1:4283,c=127.0.0.1:4313",
        "min_in_sync": 1,
    }


def test_no_two_ports_are_the_same_however_many_replicas_there_are() -> None:
    UpOptions(workers=20, replicas=9)


def test_any_free_ports_are_all_different_and_no_outgoing_connections_get_them() -> None:
    anywhere = dict.fromkeys(("tcp_address", "http_address", "https_address"), "127.0.0.1:0")
    brokers = plan(UpOptions(workers=4, **anywhere), ()).brokers  # type: ignore[arg-type]
    ports = {int(a.rpartition(":")[2]) for b in brokers for a in (b.tcp_address, b.http_address)}
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    assert (len(ports), min(ports) > int(outgoing.split()[1])) == (8, True)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"workers": 0}, "--workers is 0; it must be between 1 and 256"),
        ({"tcp_address": "4150"}, "--tcp-address=4150 must be <addr>:<port>"),
        ({"tcp_address": "h:65500", "workers": 2}, "--tcp-address of broker-1 would be port 65600"),
        (
            {"http_address": "h:4250", "workers": 2},
            "--http-address of broker-0 and --tcp-address of broker-1 are both port 4250",
        ),
        ({"lookup_tcp_address": "h:4151"}, "--lookup-tcp-address are both port 4151"),
        ({"max_restarts": -1}, "--max-restarts is -1; it must be at least 0"),
    ],
)
def test_wrong_options_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(OptionError) as refused:
        UpOptions(**settings)  # type: ignore[arg-type]
    assert complaint in str(refused.value)


def test_the_admin_page_asks_the_lookup_daemon_or_the_brokers() -> None:
    (page,) = plan(UpOptions(operator_token_file="tokens"), ()).admin
    assert (page.name, page.tcp_address, page.http_address) == ("admin", "", "127.0.0.1:4171")
    assert values_of(page, of_admin=True) == {
        "http_address": "127.0.0.1:4171",
        "lookupd_http_addresses": ("127.0.0.1:4161",),
        "operator_token_file": "tokens",
        "trusted_brokers": ("127.0.0.1:4151",),
    }
    options = UpOptions(lookup=False, workers=2, http_address=":4151", admin_http_address=":80")
    (page,) = plan(options, ()).admin
    assert values_of(page, of_admin=True) == {
        "http_address": ":80",
        "nsqd_http_addresses": ("127.0.0.1:4151", "127.0.0.1:4251"),
    }
    assert plan(UpOptions(admin=False, admin_http_address="h:4150"), ()).admin == ()


def test_the_admin_page_trusts_the_brokers_of_its_machine_and_no_others() -> None:
    options = UpOptions(workers=2, replicas=2, tcp_address="[::1]:4150", http_address="[::1]:4151")
    values = values_of(plan(options, ()).admin[0], of_admin=True)
    assert values["trusted_brokers"] == tuple(f"[::1]:{port}" for port in (4151, 4181, 4251, 4281))
    options = UpOptions(broadcast_address="mq1.example.org")
    values = values_of(plan(options, ()).admin[0], of_admin=True)
    assert values["trusted_brokers"] == ("mq1.example.org:4151",)


def test_without_jinja2_up_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(up, "find_spec", lambda name: None)
    planned = []

    def stop(options: UpOptions, _: object) -> None:
        planned.append(options.admin)
        raise OSError("no further")

    monkeypatch.setattr(up, "plan", stop)
    assert up.main([]) == 1
    assert planned == [False]
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "WARNING" in line]
    assert line.endswith(f"the admin page is not started: {how_to_install('admin')}")


@pytest.mark.parametrize(
    ("replicas", "added", "config", "expected"),
    [
        (1, [], "", None),
        (2, [], "", "data/replica-secret"),
        (2, ["--replica-secret-file=own"], "", None),
        (2, ["--replica-tls-cert=own"], "", None),
        (2, [], "replica_secret_file = 'own'", None),
        (2, [], "max_msg_size = 5", "data/replica-secret"),
    ],
)
def test_replicas_get_a_secret_unless_they_have_their_own(
    tmp_path: Path, replicas: int, added: list[str], config: str, expected: str | None
) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(config)
    options = UpOptions(
        replicas=replicas, data_path="data", broker_config=str(file) if config else ""
    )
    flags = up._replica_secret(options, added)
    assert flags == (expected and Path(expected))
