"""The manifests for Kubernetes: valid, and they name what is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.deploy.manifests import (
    COMMANDS,
    FOLDER,
    KEDA,
    OVERLAYS,
    TOOLS,
    Manifest,
    Overlay,
    build,
    parsed,
    problems,
)

import martlet
from martlet.options import BrokerOptions, LookupOptions
from martlet.server.http.access import ROUTES

pytestmark = pytest.mark.skipif(
    TOOLS is None, reason="MARTLET_KUBERNETES names no folder of kustomize and kubeconform"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kubernetes")


@pytest.fixture(scope="module", params=OVERLAYS)
def overlay(request: pytest.FixtureRequest, folder: Path) -> Overlay:
    return build(request.param, folder)


def container(workload: Manifest) -> Manifest:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def options(workload: Manifest, number: int) -> Any:
    """The options of the command in a workload's pod of that number; any warning is an error."""
    values = {
        "POD_NAME": f"{workload['metadata']['name']}-{number}",
        "NAMESPACE": workload["metadata"]["namespace"],
    }
    known = {each["name"] for each in container(workload).get("env", [])}
    words = (
        re.sub(r"\$\((\w+)\)", lambda found: values[found[1]] if found[1] in known else "?", each)
        for each in container(workload)["args"]
    )
    file = f"--config={FOLDER / 'base' / 'broker.toml'}"
    return parsed([file if each.startswith("--config=") else each for each in words])


def pods(overlay: Overlay) -> Iterator[tuple[str, Any]]:
    """Each pod's name in the cluster and its options."""
    for name, workload in overlay.workloads.items():
        for number in range(workload["spec"]["replicas"]):
            service = workload["spec"].get("serviceName")
            at = f"{name}-{number}.{service}.martlet.svc.cluster.local" if service else name
            yield at, options(workload, number)


def test_there_is_an_overlay_of_each_kind() -> None:
    assert OVERLAYS == ["brokers", "replicas", "single"]


def test_kubernetes_would_take_it(overlay: Overlay, tmp_path: Path) -> None:
    assert problems(overlay.text, tmp_path) == []


def test_keda_would_take_its_object(tmp_path: Path) -> None:
    assert problems(KEDA.read_text(encoding="utf-8"), tmp_path) == []


def test_a_mistake_is_found(overlay: Overlay, tmp_path: Path) -> None:
    wrong = overlay.text.replace("readinessProbe", "readynessProbe", 1)
    assert "readynessProbe" in problems(wrong, tmp_path)[0]
    wrong = KEDA.read_text(encoding="utf-8").replace("maxReplicaCount", "maxReplicas")
    assert "maxReplicas" in problems(wrong, tmp_path)[0]


def test_brokers_and_lookup_daemons_find_each_other(overlay: Overlay) -> None:
    known = dict(pods(overlay))
    counts = {"single": [1, 0, 0], "brokers": [3, 2, 1], "replicas": [3, 2, 1]}[overlay.name]
    kinds = [type(each) for each in known.values()]
    assert [kinds.count(kind) for _, kind in COMMANDS.values()] == counts
    lookups = [each for each, found in known.items() if isinstance(found, LookupOptions)]
    short = [each.removesuffix(".martlet.svc.cluster.local") for each in lookups]
    for name, found in known.items():
        if isinstance(found, BrokerOptions):
            assert found.broadcast_address == name
            assert list(found.lookupd_tcp_addresses) == [f"{each}:4160" for each in short]
            assert found.data_path == "/data"
        elif isinstance(found, LookupOptions):
            assert found.broadcast_address == name
        else:
            assert list(found.lookupd_http_addresses) == [f"{each}:4161" for each in short]


def test_replicas_find_each_other(folder: Path) -> None:
    overlay = build("replicas", folder)
    replicas = {name: each for name, each in pods(overlay) if isinstance(each, BrokerOptions)}
    assert [each.replica_name for each in replicas.values()] == [f"martlet-{n}" for n in range(3)]
    expected = {each.replica_name: f"{at}:4153" for at, each in replicas.items()}
    for each in replicas.values():
        assert each.initial_addresses == expected
        assert each.replica_address == expected[each.replica_name]
        assert each.metadata.startswith("etcd:")
    spec = overlay.workloads["martlet"]["spec"]
    assert spec["podManagementPolicy"] == "Parallel", "one replica alone never gets ready"


def test_ports_and_probes_are_those_of_the_servers(overlay: Overlay) -> None:
    listens = {
        "broker": lambda found: [found.tcp_address, found.http_address],
        "lookup": lambda found: [found.tcp_address, found.http_address],
        "admin": lambda found: [found.http_address],
    }
    for workload in overlay.workloads.values():
        here = container(workload)
        found = options(workload, 0)
        addresses = listens[here["args"][0]](found)
        if isinstance(found, BrokerOptions) and found.replica_name:
            addresses.append(found.replica_address)
        ports = {each["name"]: each["containerPort"] for each in here["ports"]}
        assert sorted(ports.values()) == sorted(int(each.rpartition(":")[2]) for each in addresses)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in here:
                get = here[probe]["httpGet"]
                assert get["port"] == "http"
                assert get["path"] in ROUTES
        if isinstance(found, BrokerOptions):
            assert here["livenessProbe"]["httpGet"]["path"] == "/health/live"
            assert here["readinessProbe"]["httpGet"]["path"] == "/health/ready"


def test_services_and_budgets_select_pods(overlay: Overlay) -> None:
    labels = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for name, each in overlay.workloads.items()
    }
    for service in overlay.of("Service").values():
        (name,) = [each for each, has in labels.items() if service["spec"]["selector"] == has]
        ports = {each["name"] for each in container(overlay.workloads[name])["ports"]}
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports
    budgets = overlay.of("PodDisruptionBudget")
    assert budgets.keys() == overlay.of("StatefulSet").keys()
    for name, each in budgets.items():
        assert each["spec"]["selector"]["matchLabels"] == labels[name]
    for name, each in overlay.of("StatefulSet").items():
        assert each["spec"]["serviceName"] in overlay.of("Service"), name


def test_pods_may_do_little_and_mount_what_there_is(overlay: Overlay) -> None:
    for workload in overlay.workloads.values():
        pod, here = workload["spec"]["template"]["spec"], container(workload)
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 10001, "the image's user"
        assert not pod["automountServiceAccountToken"]
        assert here["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert here["image"] == f"martlet:{martlet.__version__.rpartition('.')[0]}"
        assert {"requests", "limits"} == here["resources"].keys()
        volumes = {each["name"]: each for each in pod.get("volumes", [])}
        claims = {
            each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])
        }
        mounts = {each["mountPath"]: each["name"] for each in here.get("volumeMounts", [])}
        assert set(mounts.values()) == volumes.keys() | claims
        for each in volumes.values():
            if "secret" in each:
                assert each["secret"]["secretName"] in overlay.of("Secret")
            else:
                assert each["configMap"]["name"] in overlay.of("ConfigMap")
        found = options(workload, 0)
        files = [
            getattr(found, name, "") for name in ("operator_token_file", "replica_secret_file")
        ]
        for file in filter(None, files):
            path, _, key = file.rpartition("/")
            secret = overlay.of("Secret")[volumes[mounts[path]]["secret"]["secretName"]]
            assert key in secret["data"]


def test_prometheus_finds_the_brokers(overlay: Overlay) -> None:
    file = FOLDER.parent / "prometheus" / "prometheus-kubernetes.yaml"
    (job,) = yaml.safe_load(file.read_text(encoding="utf-8"))["scrape_configs"]
    keep = job["relabel_configs"][0]
    assert keep["source_labels"] == [
        "__meta_kubernetes_pod_label_app_kubernetes_io_name",
        "__meta_kubernetes_pod_container_port_name",
    ]
    found = [
        each["containerPort"]
        for workload in overlay.workloads.values()
        for each in container(workload)["ports"]
        if f"{workload['metadata']['labels']['app.kubernetes.io/name']};{each['name']}"
        == keep["regex"]
    ]
    assert found == [4151]


def test_keda_asks_the_lookup_daemons(folder: Path) -> None:
    scaled = yaml.safe_load(KEDA.read_text(encoding="utf-8"))
    (trigger,) = scaled["spec"]["triggers"]
    addresses = trigger["metadata"]["nsqLookupdHTTPAddresses"].split(",")
    known = dict(pods(build("brokers", folder)))
    assert addresses == [
        f"{name}:4161" for name, found in known.items() if isinstance(found, LookupOptions)
    ]
