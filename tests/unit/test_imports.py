"""Imports run downwards only, and the core does no I/O."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src"

LOWER = {"broker", "log"}
EDGES = {"console", "spark", "arrow", "reader", "client", "lookup", "server"}

# The packages that each package may import, beside itself and the ground modules.
MAY_IMPORT = {
    "cli": {"pipeline", "replica", "supervisor", "migration"} | EDGES | LOWER,
    "migration": {"server"} | LOWER,
    "testing": {"protocol"} | EDGES | LOWER,
    "console": {"client"} | LOWER,
    "pipeline": {"client", "reader", "spark"} | LOWER,
    "spark": {"client", "reader"} | LOWER,
    "arrow": {"reader"},
    "reader": {"client"} | LOWER,
    "client": {"layer", "protocol"},
    "supervisor": set(),
    # Its HTTP server and its listening sockets are those of the broker.
    "lookup": {"layer", "protocol", "server"} | LOWER,
    "server": {"layer", "protocol", "replica"} | LOWER,
    "replica": {"broker", "log"},
    "broker": {"log"},
    "layer": {"protocol"},
    "log": set(),
    "protocol": set(),
    # The packages native, options, properties and schema, and the modules beside the packages: all
    # may use them.
    "ground": set(),
}

# The packages of the broker that each may import; a module beside them is named like one.
_QUEUE = {"tracing", "queue"}
_CHANNEL = _QUEUE | {"groups", "channel"}
_TOPIC = _CHANNEL | {"journal", "topic"}
_CORE = _TOPIC | {"dead_letters", "delayed", "transactions", "retention", "idempotence"}
BROKER_MAY_IMPORT = {
    "tracing": set(),
    "journal": _QUEUE,
    "queue": _QUEUE,
    "groups": _QUEUE,
    "channel": _CHANNEL,
    "topic": _TOPIC,
    "idempotence": _TOPIC,
    "dead_letters": _TOPIC,
    "delayed": _TOPIC,
    "transactions": _TOPIC | {"delayed"},
    "retention": _TOPIC,
    "broker": _CORE,
    "recovery": _CORE | {"broker"},
    # Below all of them.
    "ground": set(),
}
BROKER_GROUND = {
    "context",
    "errors",
    "offset_ranges",
    "policy",
    "retry",
    "schedule",
}

MAX_CYCLE = 8
"""Maximum of files of one package that import each other, types counted; of two, none may."""
KNOWN_CYCLES: dict[str, int] = {}
"""Packages with other cycles and the file count of the largest: they may only shrink."""

# Modules that the sans-I/O packages must not import: sockets, files, clocks, randomness, tasks.
OUTSIDE = {
    "aiohttp",
    "asyncio",
    "concurrent",
    "fcntl",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "uvloop",
}
SANS_IO = {"broker", "protocol", "replica"}
# The type of a parameter may be named; the caller makes it, and opens files.
ALLOWED_TYPES = {"random.Random"}
BANNED_CALLS = {"Random", "open"}


class Import(NamedTuple):
    """One imported module, as `martlet.log.record`; of `from a import b` both `a` and `a.b`."""

    module: str
    line: int
    for_types: bool
    """Inside `if TYPE_CHECKING`, so not there when the program runs."""


def imports(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[Import]:
    """Yield each import anywhere in the module, with relative names made absolute."""
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in for_types)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            if node.level:
                base = base[: len(base) - node.level + is_package]
                base += node.module.split(".") if node.module else []
            else:
                base = (node.module or "").split(".")
            for alias in node.names:
                yield Import(".".join([*base, alias.name]), node.lineno, id(node) in for_types)


def package_of(module: str) -> str | None:
    """Return the package of a module or of a name in it; None outside Martlet."""
    root, _, rest = module.partition(".")
    if root == "pyspark_martlet":
        return "spark"
    if root != "martlet":
        return None
    package = rest.partition(".")[0]
    if package == "__main__":
        return "cli"
    if (
        package in {"native", "options", "properties", "schema"}
        or not (SOURCE / "martlet" / package).is_dir()
    ):
        return "ground"
    return package or "ground"


def broker_package_of(module: str) -> str | None:
    """Return the broker's package of a module or of a name in it."""
    _, _, rest = module.partition("martlet.broker.")
    package = rest.partition(".")[0]
    return "ground" if package in BROKER_GROUND or not package else package


def offences(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Return the breaches of the rules of its package by a module."""
    tree = ast.parse(source)
    package = package_of(module)
    assert package is not None
    if package not in MAY_IMPORT:
        return [f"{module}: the package {package} has no place in the order of test_imports.py"]
    found = []
    for imported in imports(tree, module, is_package=is_package):
        other = package_of(imported.module)
        if other not in MAY_IMPORT[package] | {package, "ground", None}:
            found.append(f"{module}:{imported.line}: {package} must not import {imported.module}")
        if package == other == "broker" and module != "martlet.broker":
            inner, wanted = broker_package_of(module), broker_package_of(imported.module)
            assert inner is not None
            if wanted not in BROKER_MAY_IMPORT[inner] | {inner, "ground"}:
                found.append(f"{module}:{imported.line}: {inner} is below {imported.module}")
        top = imported.module.partition(".")[0]
        named = imported.for_types or imported.module in ALLOWED_TYPES
        if package in SANS_IO and top in OUTSIDE and not named:
            found.append(f"{module}:{imported.line}: {package} is sans-I/O, and imports {top}")
    if package in SANS_IO:
        found += [
            f"{module}:{node.lineno}: {package} is sans-I/O, and calls {ast.unparse(node.func)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in BANNED_CALLS
        ]
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_every_module_keeps_to_the_order_of_the_packages() -> None:
    found = [
        offence
        for module, path in modules()
        for offence in offences(
            path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py"
        )
    ]
    assert not found, "\n".join(found)


def test_declared_operations_import_names_texts_and_msgspec_alone() -> None:
    """So any package can use them, and they load fast."""
    strange = []
    for module, path in modules():
        if module.startswith("martlet.schema"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for imported in imports(tree, module, is_package=path.name == "__init__.py"):
                top = imported.module.partition(".")[0]
                is_own = imported.module.startswith(
                    ("martlet.schema", "martlet.names", "martlet.text")
                )
                if not (is_own or top == "msgspec" or top in sys.stdlib_module_names):
                    strange.append(f"{module}:{imported.line}: {imported.module}")
    assert not strange, "\n".join(strange)


def import_graph() -> dict[str, set[str]]:
    """Map each module to the modules that it imports, types counted."""
    paths = dict(modules())
    graph: dict[str, set[str]] = {module: set() for module in paths}
    for module, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for imported in imports(tree, module, is_package=path.name == "__init__.py"):
            for name in (imported.module, imported.module.rpartition(".")[0]):
                if name in paths:
                    graph[module].add(name)
                    break
        graph[module].discard(module)
    return graph


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that all import each other, directly or not."""
    reached: dict[str, set[str]] = {}
    for module in graph:
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            fresh = graph[waiting.pop()] - seen
            seen |= fresh
            waiting += fresh
        reached[module] = seen
    found = {
        frozenset(other for other in seen if module in reached[other])
        for module, seen in reached.items()
        if module in seen
    }
    return [set(cycle) for cycle in found]


def large_cycles(
    graph: dict[str, set[str]], is_package: Callable[[str], bool]
) -> dict[str, set[str]]:
    """Map a package to its largest cycle that is too large or spans packages."""
    found: dict[str, set[str]] = {}
    for cycle in cycles(graph):
        packages = {m if is_package(m) else m.rpartition(".")[0] for m in cycle}
        if len(cycle) > MAX_CYCLE or len(packages) > 1:
            package = "+".join(sorted({package_of(module) or "" for module in cycle}))
            found[package] = max(found.get(package, set()), cycle, key=len)
    return found


def test_cycles_are_small_and_within_a_package() -> None:
    packages = {module for module, path in modules() if path.name == "__init__.py"}
    found = large_cycles(import_graph(), packages.__contains__)
    sizes = {package: len(cycle) for package, cycle in found.items()}
    assert sizes == KNOWN_CYCLES, {package: sorted(cycle) for package, cycle in found.items()}


def test_a_large_cycle_is_found() -> None:
    graph: dict[str, set[str]] = {
        "martlet.log.a": {"martlet.log.b"},
        "martlet.log.b": {"martlet.log.a"},
        "martlet.broker.x.a": {"martlet.broker.y.b", "martlet.log.a"},
        "martlet.broker.y.b": {"martlet.broker.x.c"},
        "martlet.broker.x.c": {"martlet.broker.x.a"},
    }
    in_broker = {name for name in graph if "broker" in name}
    assert large_cycles(graph, lambda module: False) == {"broker": in_broker}
    many = {f"martlet.log.m{n}": {f"martlet.log.m{(n + 1) % 9}"} for n in range(9)}
    assert large_cycles(many, lambda module: False) == {"log": set(many)}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("martlet.log.segment", "from martlet.broker import topic"),
        ("martlet.log.segment", "from martlet import broker"),
        ("martlet.log.segment", "import martlet.broker.topic.topic"),
        ("martlet.log.segment", "from ..broker.topic import Topic"),
        ("martlet.log.segment", "from .. import server"),
        ("martlet.broker.topic.topic", "def f():\n    from martlet.server import tcp"),
        (
            "martlet.broker.topic.topic",
            "if TYPE_CHECKING:\n    from martlet.protocol import nsq_v2",
        ),
        ("martlet.broker.queue.cursor", "from martlet.broker.channel.channel import Channel"),
        (
            "martlet.broker.topic.topic",
            "if TYPE_CHECKING:\n    from martlet.broker.broker import BrokerCore",
        ),
        ("martlet.broker.errors", "import martlet.broker.queue.cursor"),
        ("martlet.broker.topic.topic", "import time"),
        ("martlet.broker.topic.topic", "from os import path"),
        ("martlet.broker.topic.topic", "import random"),
        ("martlet.broker.topic.topic", "from random import randrange"),
        ("martlet.broker.topic.topic", "from random import Random\nrandom = Random()"),
        ("martlet.broker.topic.topic", "with open('a') as file: pass"),
        ("martlet.protocol.nsq.v2", "import asyncio.streams"),
        ("martlet.protocol.nsq.v2", "from martlet.log import record"),
        ("martlet.server.tcp", "from martlet.client import connection"),
        ("martlet.spark.source", "from martlet.protocol import nsq_v2"),
        ("martlet.client.group", "from martlet.testing import Broker"),
        ("martlet.migration.load", "from martlet.cli import main"),
        ("martlet.options", "from martlet.log import record"),
        ("martlet.spark.source", "from martlet.cli import main"),
        ("martlet.cli.tool", "import martlet.testing"),
        ("martlet.pipeline.job", "from martlet.cli import tool"),
        ("pyspark_martlet", "from martlet.server import tcp"),
    ],
)
def test_the_check_finds(module: str, source: str) -> None:
    assert len(offences(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("martlet.server.tcp", "import socket\nfrom martlet.broker.topic.topic import Topic"),
        (
            "martlet.broker.topic.topic",
            "from martlet.log import record\nfrom .topic_queue import SingleQueueTopic",
        ),
        ("martlet.broker.topic.topic", "if typing.TYPE_CHECKING:\n    import random"),
        ("martlet.broker.topic.topic", "from random import Random\ndef f(random: Random): pass"),
        ("martlet.broker.topic.topic", "from martlet.options import BrokerOptions"),
        ("martlet.protocol.nsq.v2", "import struct\nimport numpy as np"),
        ("martlet.log.segment", "import os, mmap\nfrom martlet import __version__"),
        ("martlet.cli.servers.up", "from martlet.server import tcp\nimport martlet.supervisor"),
        ("pyspark_martlet", "from martlet.spark.source import MartletDataSource"),
    ],
)
def test_the_check_lets_pass(module: str, source: str) -> None:
    assert offences(source, module) == []


@pytest.mark.parametrize(
    ("statement", "too_heavy"),
    [
        (
            "from martlet.client import Consumer, sync; sync.Consumer; import martlet.client.otel",
            {"pyspark", "pyarrow", "pandas", "aiohttp", "rich", "opentelemetry"}
            | {"martlet.client.admin", "msgspec"},
        ),
        ("import martlet.testing.pytest_plugin", {"pyspark", "pyarrow", "pandas", "aiohttp"}),
        (
            "import martlet.cli.servers.broker, martlet.server.build",
            {"pyspark", "pyarrow", "pandas", "aiohttp", "rich", "msgspec"},
        ),
        (
            "import martlet.cli.operations.topic",
            {"aiohttp", "numpy", "uvloop", "martlet.client.consumer", "martlet.client.producer"},
        ),
        ("import martlet.arrow", {"pyspark", "aiohttp", "asyncio", "rich", "msgspec"}),
        ("import martlet.client.hooks", {"martlet.client.consumer", "martlet.client.group"}),
        ("import martlet.cli.import_nsqd", {"pyspark", "pyarrow", "pandas", "aiohttp", "rich"}),
        (
            "from martlet.cli.main import main; assert main(['--version']) == 0",
            {"pyspark", "pyarrow", "pandas", "aiohttp", "rich", "numpy", "asyncio", "uvloop"}
            | {"msgspec"},
        ),
        (
            "from martlet.cli.main import main; assert main(['--help']) == 0",
            {"pyspark", "pyarrow", "pandas", "aiohttp", "rich", "numpy", "asyncio", "uvloop"}
            | {"msgspec"},
        ),
    ],
)
def test_frequent_starts_stay_light(statement: str, too_heavy: set[str]) -> None:
    program = f"{statement}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert too_heavy & set(done.stdout.split()) == set()
