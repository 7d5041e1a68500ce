"""The files of deploy/ say nothing that the commands, systemd or Compose would not understand."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.deploy.manifests import parsed

from martlet.options import BrokerOptions
from martlet.testing import Broker

HERE = Path(__file__).parents[3]
DEPLOY = HERE / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def command_of(service: dict[str, Any]) -> list[str]:
    """The command of a service, with the defaults of variables."""
    return [re.sub(r"\$\{\w+:-(.+)\}", r"\1", word) for word in service["command"]]


def entries(unit: Path) -> list[tuple[str, str]]:
    lines = unit.read_text(encoding="utf-8").splitlines()
    return [
        (name, value)
        for name, equals, value in (line.partition("=") for line in lines)
        if equals and not name.startswith("#")
    ]


@pytest.mark.parametrize("name", ["broker", "lookup"])
def test_a_wrong_config_file_is_not_tried_again(name: str, tmp_path: Path) -> None:
    """It ended with 1, and systemd started it every two seconds for ever."""
    (unit,) = (unit for unit in UNITS if name in unit.name)
    config = tmp_path / "config.toml"
    config.write_text('log_level = "loud"', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "martlet", name, f"--config={config}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"{config}: log_level" in done.stderr
    assert str(done.returncode) == dict(entries(unit))["RestartPreventExitStatus"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: str(unit.stem))
def test_a_unit_starts_a_command_of_ours(unit: Path) -> None:
    known = dict(entries(unit))
    program, *arguments = shlex.split(known["ExecStart"])
    assert program == "/opt/martlet/bin/martlet"
    here = [each.replace("/etc/martlet/", f"{DEPLOY}/") for each in arguments]
    options = parsed(here)
    assert here != arguments, "its config file is not read"
    if isinstance(options, BrokerOptions):
        assert options.data_path == f"/var/lib/{known['StateDirectory']}"
        assert len(options.lookupd_tcp_addresses) == 2


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8")
        text = text.replace("/opt/martlet/bin/martlet", sys.executable)
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )
    # It reports an unknown key, and ends well all the same.
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_compose_starts_commands_of_ours() -> None:
    outsides = []
    for name, service in SERVICES.items():
        options = parsed(command_of(service))
        assert options.broadcast_address == name, "others in the network do not find it"
        listens = {
            int(address.rpartition(":")[2])
            for address in (options.tcp_address, options.http_address)
        }
        published = [tuple(map(int, ports.split(":"))) for ports in service["ports"]]
        assert {inside for _, inside in published} == listens
        assert all(outside == inside for outside, inside in published)
        outsides += [outside for outside, _ in published]
        if isinstance(options, BrokerOptions):
            (volume,) = service["volumes"]
            assert volume == f"{name}:{options.data_path}"
            assert name in COMPOSE["volumes"]
            (address,) = options.lookupd_tcp_addresses
            assert address.partition(":")[0] in service["depends_on"]
            lookup_options = parsed(SERVICES["lookup"]["command"])
            assert address.rpartition(":")[2] == lookup_options.tcp_address.rpartition(":")[2]
    assert list(SERVICES) == ["lookup", "broker-1", "broker-2"]
    assert len(outsides) == len(set(outsides)) == 6, "no two services publish a port"


def test_compose_starts_replicas_of_one_set() -> None:
    compose = yaml.safe_load((DEPLOY / "compose-replicas.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert parsed(services["lookup"]["command"]).broadcast_address == "lookup"
    replicas = {name: each for name, each in services.items() if name.startswith("replica-")}
    found, published = {}, []
    for name, service in replicas.items():
        options = parsed(command_of(service))
        assert options.broadcast_address == name, "others in the network do not find it"
        found[options.replica_name] = options.replica_address
        assert options.initial_replicas == parsed(replicas["replica-a"]["command"]).initial_replicas
        listens = [options.tcp_address, options.http_address]
        ports = [address.rpartition(":")[2] for address in listens]
        assert service["ports"] == [f"{port}:{port}" for port in ports]
        published += ports
        assert f"127.0.0.1:{ports[1]}/health/live" in service["healthcheck"]["test"][-1]
        assert service["volumes"] == [f"{name}:{options.data_path}"]
        assert name in compose["volumes"]
        (secret,) = service["secrets"]
        assert options.replica_secret_file == f"/run/secrets/{secret}"
        assert secret in compose["secrets"]
        assert options.metadata.split(":")[1] in service["depends_on"]
    assert found == parsed(replicas["replica-a"]["command"]).initial_addresses
    assert len(found) == len(replicas) == 3
    assert len(set(published)) == 6


async def test_the_health_checks_ask_the_right_server() -> None:
    asks = ""
    async with Broker() as here:
        for service in SERVICES.values():
            kind, program, flag, code = service["healthcheck"]["test"]
            assert (kind, program, flag) == ("CMD", "/opt/martlet/bin/python", "-c")
            address = parsed([each for each in service["command"] if "$" not in each]).http_address
            asked = f"127.0.0.1:{address.rpartition(':')[2]}"
            assert f"{asked}/ping" in code
            asks = code.replace(asked, here.http_address)
        assert await ends(asks) == 0
    assert await ends(asks) == 1


async def ends(code: str) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code), stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


def test_the_image_is_made_of_existing_files() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.M)
    sources = [source for line in copied for source in line.split()]
    assert sources == ["pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src"]
    assert all((HERE / source).exists() for source in sources)
    let_in = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    assert set(re.findall(r"^!(.+)$", let_in, re.M)) == set(sources)
    (entrypoint,) = re.findall(r"^ENTRYPOINT (.+)$", dockerfile, re.M)
    assert yaml.safe_load(entrypoint) == ["/opt/martlet/bin/martlet"]
    (command,) = re.findall(r"^CMD (.+)$", dockerfile, re.M)
    assert parsed(yaml.safe_load(command)).data_path == "/data"
