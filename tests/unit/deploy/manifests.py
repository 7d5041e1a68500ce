"""The commands of deploy/, and its manifests as kustomize builds and kubeconform judges them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from martlet.cli import start
from martlet.cli.servers import admin, broker, lookup
from martlet.options import BrokerOptions, LogOptions, LookupOptions
from martlet.options.admin import AdminOptions

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
KEDA = FOLDER / "keda" / "scaled-object.yaml"
TOOLS = os.environ.get("MARTLET_KUBERNETES") or None
SECRETS = ("base/operator-tokens", "components/replicas/replica-secret")
"""Files that an operator makes."""
Manifest = dict[str, Any]
_DEFINITIONS = "/api/_definitions.json#/$defs/"
"""Before the name of a definition, in the schema of a kind."""


COMMANDS: dict[str, tuple[str, type[LogOptions]]] = {
    "broker": (broker.DESCRIPTION, BrokerOptions),
    "lookup": (lookup.DESCRIPTION, LookupOptions),
    "admin": (admin.DESCRIPTION, AdminOptions),
}


def parsed(words: Sequence[str]) -> Any:
    """The options of a command with these arguments; any warning is an error."""
    name, *arguments = words
    description, kind = COMMANDS[name]
    values, warnings = start.arguments(name, description, kind).read(arguments)
    assert warnings == []
    return kind(**values)


class Overlay:
    """An overlay, built.

    Args:
        name: of its folder.
        text: what kustomize wrote.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.manifests: list[Manifest] = list(yaml.safe_load_all(text))

    def of(self, kind: str) -> dict[str, Manifest]:
        """Return the manifests of a kind, by name."""
        return {each["metadata"]["name"]: each for each in self.manifests if each["kind"] == kind}

    @cached_property
    def workloads(self) -> dict[str, Manifest]:
        """What makes pods, by name."""
        return self.of("StatefulSet") | self.of("Deployment")


def build(name: str, folder: Path) -> Overlay:
    """Build an overlay with secrets, which are files beside it."""
    assert TOOLS is not None
    copy = folder / "kubernetes"
    if not copy.exists():
        shutil.copytree(
            FOLDER, copy, ignore=shutil.ignore_patterns(*map(os.path.basename, SECRETS))
        )
        for number, secret in enumerate(SECRETS):
            (copy / secret).write_text(f"{number:032x}\n", encoding="utf-8")
    done = subprocess.run(
        [f"{TOOLS}/kustomize", "build", str(copy / "overlays" / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return Overlay(name, done.stdout)


def problems(text: str, folder: Path) -> list[str]:
    """Return what kubeconform has to say against manifests."""
    assert TOOLS is not None
    for each in yaml.safe_load_all(text):
        _write_schema(each["apiVersion"], each["kind"], folder)
    done = subprocess.run(
        [
            *(f"{TOOLS}/kubeconform", "-strict", "-output=json"),
            f"-schema-location={folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
        ],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    found = json.loads(done.stdout)["resources"]
    assert bool(found) == bool(done.returncode)
    return [f"{each['kind']} {each['name']}: {each['msg']}" for each in found]


def _write_schema(version: str, kind: str, folder: Path) -> None:
    """Write the schema of a kind into one file, with all that it refers to."""
    group, _, number = version.rpartition("/")
    suffix = "-".join(["", *([group.split(".")[0]] if group else []), number])
    path = folder / f"{kind.lower()}{suffix}.json"
    if path.exists():
        return
    if group == "keda.sh":
        schema = _closed(_keda_schema(number))
    else:
        schema = json.loads(Path(f"{TOOLS}/schemas/{path.name}").read_text(encoding="utf-8"))
        every = json.loads(Path(f"{TOOLS}/schemas/_definitions.json").read_text(encoding="utf-8"))
        needed: dict[str, Any] = {}
        ahead = list(_references(schema))
        while ahead:
            name = ahead.pop()
            if name not in needed:
                needed[name] = every["$defs"][name]
                ahead += _references(needed[name])
        schema["$defs"] = needed
    path.write_text(json.dumps(schema).replace(_DEFINITIONS, "#/$defs/"), encoding="utf-8")


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(name := schema.get("$ref"), str):
            yield name.rpartition("/")[2]
        for each in schema.values():
            yield from _references(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def _keda_schema(version: str) -> Any:
    text = Path(f"{TOOLS}/keda.sh_scaledobjects.yaml").read_text(encoding="utf-8")
    versions = yaml.safe_load(text)["spec"]["versions"]
    (found,) = [each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == version]
    found["properties"]["metadata"] = {"type": "object", "additionalProperties": True}
    return found


def _closed(schema: Any) -> Any:
    """Allow no properties but those that are listed, as kubeconform's -strict wants it."""
    if isinstance(schema, dict):
        if "properties" in schema and "additionalProperties" not in schema:
            schema["additionalProperties"] = False
        for each in schema.values():
            _closed(each)
    return schema
