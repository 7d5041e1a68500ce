"""Write the reference pages of docs/reference/generated from the code.

Usage: python -m docs.reference.generate

Flags come from the options' dataclasses, routes and calls from the handlers' tables, errors from
the places that raise them, metrics from the answer of a running broker, and the Python API from
signatures and docstrings.  `tests/docs/test_reference.py` fails if a page is out of date.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import io
import itertools
import json
import os
import pkgutil
import re
import textwrap
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from msgspec import NODEFAULT

from martlet import schema
from martlet.cli.main import COMMANDS, main
from martlet.client.admin.methods import DeclaredMethod
from martlet.options import BrokerOptions, Flag, LookupOptions, Options
from martlet.schema.access import CALLS
from martlet.schema.operation import Operation, OperationAnswer
from martlet.schema.read import answer_in, fields_of, help_of, must_be
from martlet.server.http.access import ROUTES
from martlet.server.nsq import publish
from martlet.server.replication.status import metrics_of
from martlet.server.rpc import registry
from martlet.testing import Broker

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "martlet"
PAGES = Path(__file__).parent / "generated"
_NOTE = "<!-- Written by docs/reference/generate.py: do not edit. -->\n"
PUBLIC = (
    "arrow",
    "client",
    "client.admin",
    "client.sync",
    "spark.java",
    "spark.lag",
    "testing",
    "pipeline.archive",
    "pipeline.audit",
    "pipeline.dead_letters",
    "pipeline.replay",
    "pipeline.report",
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _summary(doc: str | None) -> str:
    """The first paragraph of a docstring, as Markdown."""
    return _inline(inspect.cleandoc(doc or "").partition("\n\n")[0])


def _inline(text: str) -> str:
    return re.sub(r"``?([^`]+)``?", r"`\1`", text)


# ---------------------------------------------------------------- flags


def commands() -> str:
    """Each command with its help, as `--help` prints it on a terminal of 100 columns."""
    page = f"{_NOTE}\n# Commands and their flags\n\n"
    page += "`martlet COMMAND --help` prints the same. The flags of [brokers and lookup daemons]"
    page += "(flags.md) have a page of their own.\n"
    for name, command in COMMANDS.items():
        page += f"\n## martlet {name}\n\n{command.help[0].upper()}{command.help[1:]}.\n"
        if name in ("broker", "lookup") or command.is_in_checkout:
            continue
        text = _help(name)
        page += f"\n```text\n{text}```\n"
        for word in re.findall(r"^ {2,4}([a-z][a-z-]+) {2,}\S", text, re.MULTILINE):
            page += f"\n### martlet {name} {word}\n\n```text\n{_help(name, word)}```\n"
    return page


def _help(*words: str) -> str:
    os.environ["COLUMNS"] = "100"
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return output.getvalue()


def flags() -> str:
    """The flags of the servers, with their keys in a configuration file."""
    page = f"{_NOTE}\n# Flags of brokers and lookup daemons\n"
    kinds: tuple[tuple[str, type[Options]], ...] = (
        ("broker", BrokerOptions),
        ("lookup", LookupOptions),
    )
    for command, kind in kinds:
        page += f"\n## martlet {command}\n"
        rows = list(_general(command))
        sections = {"General": rows}
        for flag in kind.flags().values():
            if flag.section:
                rows = sections.setdefault(flag.section, [])
            text, _, computed = flag.help.removesuffix(")").partition(" (default: ")
            default = computed or _code(flag.format(kind.defaults()[flag.field]))
            text = text if computed else flag.help
            if flag.instead:
                text += f". Without effect here: {flag.instead}"
            rows.append(
                (
                    _code(f"--{flag.name}"),
                    _code(flag.config_key),
                    str(flag.kind),
                    default,
                    text,
                    _limits(flag),
                )
            )
        for section, entries in sections.items():
            head = ("Flag", "Key", "Type", "Default", "Meaning", "Limits")
            page += f"\n### {section[0].upper()}{section[1:]}\n\n{_table(head, entries)}"
    return page


def _general(command: str) -> Iterator[tuple[str, ...]]:
    """The flags that are no options."""
    general = _help(command).partition("general:\n")[2].partition("\n\n")[0]
    for flag, value, text in re.findall(r"(--[\w-]+)(?: (\S+))? {2,}(.+)", general):
        yield _code(flag), "", {"[BOOL]": "bool", "FILE": "string"}.get(value, ""), "", text, ""


def _limits(flag: Flag) -> str:
    least, greatest = flag.minimum, flag.maximum
    if least is None:
        return "" if greatest is None else f"at most {flag.format(greatest)}"
    if greatest is None:
        return f"at least {flag.format(least)}"
    return f"{flag.format(least)} to {flag.format(greatest)}"


# ---------------------------------------------------------------- handlers


def _classes(folder: str) -> Iterator[ast.ClassDef]:
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield node


def _handlers(folder: str, table: str) -> Iterator[tuple[str, str, Function]]:
    """The keys of the tables that methods of this name return: path or name, verb, handler."""
    for owner in _classes(folder):
        methods = {
            node.name: node
            for node in owner.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        if table not in methods:
            continue
        for node in ast.walk(methods[table]):
            if not isinstance(node, ast.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                    continue
                if isinstance(value, ast.Call) and value.args:
                    value = value.args[0]  # wrapped, as to translate its errors
                if isinstance(value, ast.Attribute) and value.attr in methods:
                    yield key.value, "POST", methods[value.attr]
                elif isinstance(value, ast.Dict):
                    for verb, handler in zip(value.keys, value.values, strict=True):
                        if isinstance(handler, ast.Call) and handler.args:
                            handler = handler.args[0]  # with a fast path beside it
                        if isinstance(handler, ast.Attribute) and isinstance(verb, ast.Constant):
                            yield key.value, str(verb.value), methods[handler.attr]


def routes() -> str:
    """The HTTP routes of a broker."""
    found = {
        (path, verb): _summary(ast.get_docstring(handler))
        for path, verb, handler in _handlers("server", "routes")
        if path.startswith("/")
    }
    rows = [
        (_code(f"{verb} {path}"), ROUTES[path].value, text)
        for (path, verb), text in sorted(found.items())
    ]
    page = f"{_NOTE}\n# HTTP routes\n\nThe routes of a broker's HTTP port. Those of nsqd answer as"
    page += " nsqd does. [Operators](../../operating/tls-auth.md#http-operators) are clients on the"
    page += " broker's machine, or with a token.\n\n"
    return page + _table(("Route", "For", "What it does"), rows)


def calls() -> str:
    """The RPC methods, with the fields that they read."""
    page = (
        f"{_NOTE}\n# Calls\n\nMartlet's own clients make them over a V2 connection; any HTTP client"
    )
    page += " can with `POST /call/METHOD` and the fields as a JSON object. [Over HTTP all are"
    page += " operators' calls](../../operating/calls.md); over the V2 connection those of"
    page += " other classes are for clients, too.\n\n"
    operations = declared_operations()
    rows = {}
    for name, _, handler in _handlers("server", "methods"):
        fields = dict.fromkeys(_fields_read(handler))
        text = _summary(ast.get_docstring(handler))
        rows[name] = (_code(name), CALLS[name].who, ", ".join(map(_code, fields)), text)
    for name, operation in operations.items():
        listed = ", ".join(map(_code, fields_of(operation.request)))
        link = f"[`{name}`](#{name.replace('.', '')})"
        rows[name] = (link, operation.access.who, listed, operation.summary)
    page += _table(
        ("Method", "For", "Fields", "What it does"), [rows[name] for name in sorted(rows)]
    )
    return page + "".join(described(operations[name]) for name in sorted(operations))


def declared_operations() -> dict[str, Operation[..., Any, Any]]:
    """The operations that modules of `martlet.schema` declare, by name."""
    modules = [
        importlib.import_module(f"martlet.schema.{module.name}")
        for module in pkgutil.iter_modules(schema.__path__)
    ]
    things = (thing for module in modules for thing in vars(module).values())
    return {thing.name: thing for thing in things if isinstance(thing, Operation)}


def described(operation: Operation[..., Any, Any]) -> str:
    """The section of an operation: the fields of its request and its answer."""
    texts = help_of(operation.request)
    rows = [
        (
            _code(name),
            must_be(field),
            "" if field.default in (None, "", NODEFAULT) else _code(json.dumps(field.default)),
            texts[name],
        )
        for name, field in fields_of(operation.request).items()
    ]
    page = f"\n## {operation.name}\n\n{operation.summary} For {operation.access.who}.\n\n"
    page += _table(("Field", "Value", "Default", "Meaning"), rows)
    return f"{page}\nThe answer has {_answered(operation.answer)}.\n"


def _answered(kind: type[OperationAnswer]) -> str:
    """The fields of an answer, with those of the answers in it."""
    texts = []
    for name, field in fields_of(kind).items():
        inner = answer_in(field)
        texts.append(_code(name) + (f" (in each {_answered(inner)})" if inner else ""))
    return ", ".join(texts)


def _fields_read(handler: Function) -> Iterator[str]:
    """The fields of a call that a handler reads, or a function to which it hands `arguments`."""
    for node in ast.walk(handler):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        owner = function.value if isinstance(function, ast.Attribute) else None
        if isinstance(owner, ast.Name) and owner.id == "arguments":
            if node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)
        elif any(isinstance(each, ast.Name) and each.id == "arguments" for each in node.args):
            name = _dotted(function).rpartition(".")[2]
            for helper in _functions_of_calls().get(name, ()):
                if helper is not handler:
                    yield from _fields_read(helper)


@cache
def _functions_of_calls() -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = defaultdict(list)
    for path in sorted((PACKAGE / "server").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[node.name].append(node)
    return found


# ---------------------------------------------------------------- errors


_CALLS = "Errors of calls"
_RAISED = {
    "ProtocolError": ("Errors of the V2 protocol", 0),
    "CallError": (_CALLS, 0),
    "Refusal": (_CALLS, 0),
    "_refuse": (_CALLS, 2),
    "HttpError": ("Errors of HTTP", 1),
    "_denied": ("Errors of HTTP", 1),
    "read": ("Errors of HTTP", 1),
}
"""The section of an error, and the position of its code among the arguments."""
_TABLES = ((_CALLS, registry.CODES), ("Further statuses of SEND", publish.CODES))
"""The codes that the broker's exceptions have in answers."""
_CODE = re.compile(r"[A-Z][A-Z0-9_…]{2,}")
_PUBLISHES = ("PUB", "MPUB", "DPUB")
_BUILT = {
    "E_…_FAILED in subscription": ("FIN", "REQ", "TOUCH"),
    "E_…_FAILED in publish": _PUBLISHES,
    "E_…_FAILED in client_io": _PUBLISHES,
    "E_BAD_… in decoder": ("TOPIC", "CHANNEL"),
    "INVALID_ARG_… in request": ("TOPIC", "CHANNEL"),
}
"""What a code that is built can have in place of `…`."""


@cache
def errors() -> str:
    """The error codes, with the texts that stand behind them."""
    titles = dict.fromkeys(title for title, _ in (*_RAISED.values(), *_TABLES))
    found: dict[str, dict[str, set[str]]] = {title: defaultdict(set) for title in titles}
    for title, code, text in _coded():
        found[title][code] |= {text} if re.search("[a-z]{2}", text) else set()
    page = f"{_NOTE}\n# Errors\n"
    for title, codes in found.items():
        rows = [
            (_code(code), "; ".join(map(_code, sorted(texts))))
            for code, texts in sorted(codes.items())
        ]
        page += f"\n## {title}\n\n{_table(('Code', 'Texts'), rows)}"
    return page + "\nSEND answers its status in JSON. A status can also be a code of a call.\n"


def _coded() -> Iterator[tuple[str, str, str]]:
    """The section, the code and a text of each error."""
    kinds: dict[str, tuple[str, str]] = {}
    for title, table in _TABLES:
        for kind, code in table.items():
            yield title, code, ""
            kinds.setdefault(kind.__name__, (title, code))
    for owner in _classes("broker"):
        for base in map(ast.unparse, owner.bases):
            if base in kinds:
                kinds.setdefault(owner.name, kinds[base])
    for path, function, node in _made():
        if isinstance(node, ast.Dict):
            entry = {_text(key): each for key, each in zip(node.keys, node.values, strict=True)}
            if isinstance(coded := entry.get("code"), ast.Constant):
                yield _CALLS, str(coded.value), _text(entry.get("text"))
            continue
        name = _dotted(node.func).rpartition(".")[2]
        if name in kinds and node.args:
            yield from ((*kinds[name], text) for text in _texts(node.args[0], function))
        if name in _RAISED:
            title, at = _RAISED[name]
            given = [_texts(argument, function) or [""] for argument in node.args[at : at + 2]]
            if name == "Refusal":  # Servers write a field between quotes.
                given = [
                    [re.sub(r"{(\w+)}|{…}", _field, text) for text in texts] for texts in given
                ]
            for first, *more in itertools.product(*given) if given else ():
                yield from ((title, *each) for each in _split(path, first, "".join(more)))


def _field(match: re.Match[str]) -> str:
    return f"'{match[1]}'" if match[1] else "…"


@cache
def _made() -> list[tuple[Path, Function, ast.Call | ast.Dict]]:
    """Each call, and each dictionary, of each function."""
    return [
        (path, function, node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call | ast.Dict)
    ]


def _dotted(node: ast.expr) -> str:
    """The name of what is called; the last part of it, where it is an attribute of a call."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _split(path: Path, first: str, more: str) -> Iterator[tuple[str, str]]:
    """The code and the text of an error."""
    code = _CODE.match(first)
    if code is None:
        return
    text = f"{first[code.end() :].lstrip(': ')} {more}".strip()
    if "…" not in code[0]:
        yield code[0], text
    elif code[0] == "MISSING_ARG_…" or "whole number" in text:
        for name in _query_arguments(required=code[0] == "MISSING_ARG_…"):
            yield code[0].replace("…", name.upper()), text
    else:
        for value in _BUILT[f"{code[0]} in {path.stem}"]:
            yield code[0].replace("…", value), re.sub("^… (?=.*failed)", f"{value} ", text)


@cache
def _query_arguments(*, required: bool) -> set[str]:
    """The arguments of queries that handlers require, or read as numbers."""
    found = {"topic", "channel"} if required else set()
    for _, _, node in _made():
        if not isinstance(node, ast.Call):
            continue
        name = _dotted(node.func)
        is_needed = name == "request.argument" or (name == "request.number" and not node.args[1:])
        if is_needed if required else name == "request.number":
            found.add(_text(node.args[0]))
    return found


def _texts(node: ast.expr, function: Function) -> list[str]:
    """The strings that an argument can be, as far as its function says."""
    if isinstance(node, ast.IfExp):
        return _texts(node.body, function) + _texts(node.orelse, function)
    if isinstance(node, ast.Name):
        return [
            text
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and _dotted(each.targets[0]) == node.id
            for text in _texts(each.value, function)
        ]
    return [_text(node)]


def _text(node: ast.expr | None) -> str:
    """A string with `…` for what is only known when it is raised."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        pieces = (each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
        return re.sub("…+", "…", "".join(map(str, pieces)))
    return ""


# ---------------------------------------------------------------- metrics


_PRIMARY = {
    "replica": "a",
    "replica_set": "martlet",
    "role": "primary",
    "epoch": 1,
    "end_position": 0,
    "confirmed_position": 0,
    "is_whole": True,
    "metadata_store": {"is_reachable": True, "silent_ms": 0},
    "replicas": {"b": {"lag_bytes": 0, "lag_ms": 0}},
}
"""What a primary with a standby reports."""


class ServedMetric(NamedTuple):
    """A metric that ``GET /metrics`` serves."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


@cache
def served_metrics() -> tuple[ServedMetric, ...]:
    """The metrics of a broker with a topic and a channel, and of a replica with a standby."""
    text = asyncio.run(_served_metrics()) + metrics_of(_PRIMARY)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    labels: dict[str, set[str]] = defaultdict(set)
    for name, inside in re.findall(r"^(\w+?)(?:_bucket|_sum|_count)?\{(.*)\}", text, re.MULTILINE):
        labels[name] |= set(re.findall(r'(\w+)="', inside)) - {"le"}
    return tuple(
        ServedMetric(name, kinds[name], tuple(sorted(labels[name])), helps.get(name, ""))
        for name in sorted(kinds)
    )


def metrics() -> str:
    """The metrics of brokers and replicas."""
    rows = [
        (_code(each.name), each.kind, ", ".join(each.labels), each.help)
        for each in served_metrics()
    ]
    page = f"{_NOTE}\n# Metrics\n\n`GET /metrics` serves them in Prometheus's format."
    page += " Those of replicas are there if the broker has replicas; a standby serves them, too,"
    page += " with `martlet_ready` and what its process has.\n\n"
    return page + _table(("Metric", "Type", "Labels", "Meaning"), rows)


async def _served_metrics() -> str:
    async with Broker() as broker, aiohttp.ClientSession(f"http://{broker.http_address}") as http:
        for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            async with http.post(path) as answer:
                answer.raise_for_status()
        async with http.get("/metrics") as answer:
            return await answer.text()


# ---------------------------------------------------------------- Python


def python(module: str) -> str:
    """The public names of a module, with signatures and docstrings."""
    face = importlib.import_module(f"martlet.{module}")
    page = f"{_NOTE}\n# martlet.{module}\n\n{_prose(face.__doc__)}\n"
    for name in sorted(_exported(face)):
        page += _entry(name, getattr(face, name))
    return page


def _exported(face: types.ModuleType) -> list[str]:
    own = [
        name
        for name, thing in vars(face).items()
        if getattr(thing, "__module__", "") == face.__name__ and not name.startswith("_")
    ]
    return list(getattr(face, "__all__", own))


def _entry(name: str, thing: object) -> str:
    if inspect.isclass(thing):
        text = _described(f"## {name}", _signature(name, thing), thing.__doc__) + _fields(thing)
        made = {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}
        made = {name: value for name, value in made.items() if isinstance(value, DeclaredMethod)}
        for member, value in sorted({**made, **vars(thing)}.items()):
            if not member.startswith("_"):
                text += _member(member, value)
        return text
    if callable(thing):
        return _described(f"## {name}", _signature(name, thing), inspect.getdoc(thing))
    if isinstance(thing, str | int | float):
        return _described(f"## {name}", f"{name} = {thing!r}", "")
    return _described(f"## {name}", f"{name}: {type(thing).__name__}", "")


def _fields(cls: type) -> str:
    """The fields of a class that have a text of their own under them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    rows = [
        f"- `{field.target.id}`: {_inline(' '.join(inspect.cleandoc(text.value.value).split()))}"
        for field, text in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and not field.target.id.startswith("_")
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    ]
    return "\n".join(["\n**Attributes**\n", *rows, ""]) if rows else ""


def _described(heading: str, code: str, doc: str | None) -> str:
    shown = f"```text\n{code}\n```\n\n" if code else ""
    return f"\n{heading}\n\n{shown}{_prose(doc)}\n"


def _member(name: str, value: object) -> str:
    if isinstance(value, property):
        return _described(f"### {name}", "", value.__doc__)
    if isinstance(value, DeclaredMethod):
        return _described(f"### {name}()", _signature(name, value), value.__doc__)
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    if not isinstance(function, types.FunctionType):
        return ""
    return _described(f"### {name}()", _signature(name, function), function.__doc__)


def _signature(name: str, thing: Callable[..., object]) -> str:
    if getattr(thing, "_is_protocol", False):
        return name
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    pieces, kinds = [], []
    for parameter in signature.parameters.values():
        kinds.append(parameter.kind)
        piece = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            piece = f"*{piece}"
        elif parameter.kind is parameter.VAR_KEYWORD:
            piece = f"**{piece}"
        if parameter.annotation is not parameter.empty:
            piece += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            piece += f" = {re.sub(r' at 0x[0-9a-f]+', '', repr(parameter.default))}"
        pieces.append(piece)
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        pieces.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = signature.return_annotation
    returns = "" if result in (inspect.Signature.empty, "None", None) else _annotation(result)
    arrow = f" -> {returns}" if returns else ""
    one_line = f"{name}({', '.join(pieces)}){arrow}"
    if len(one_line) <= 100:
        return one_line
    return "\n".join([f"{name}(", *(f"    {piece}," for piece in pieces), f"){arrow}"])


def _annotation(annotation: object) -> str:
    if isinstance(annotation, str):
        return annotation
    text = re.sub(r"\b(?:\w+\.)+(?=[A-Z])", "", inspect.formatannotation(annotation))
    return re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)


_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")


def _prose(doc: str | None) -> str:
    """A docstring as Markdown: its sections become lists, its literal blocks fenced ones."""
    lines: list[str] = []
    section = ""
    is_literal = False
    for line in inspect.cleandoc(doc or "").split("\n"):
        if is_literal and line and not line.startswith("    "):
            lines = [*_without_blank_end(lines), "```", ""]
            is_literal = False
        if is_literal:
            if line or lines[-1] != "```text":
                lines.append(line.removeprefix("    "))
        elif _SECTION.fullmatch(line):
            section = line.removesuffix(":")
            lines += [f"**{section}**", ""]
        elif line.startswith("    ") and section:
            entry = line[4:]
            name, colon, text = entry.partition(": ")
            if section not in ("Returns", "Yields") and not entry.startswith(" ") and colon:
                lines.append(f"- `{name}`: {_inline(text)}")
            else:
                indent = "" if section in ("Returns", "Yields") else "  "
                lines.append(f"{indent}{_inline(entry.strip())}")
        else:
            section = section if not line else ""
            is_literal = line.endswith("::")
            lines.append(_inline(line.removesuffix(":") if line != "::" else ""))
            if is_literal:
                lines += ["", "```text"]
    if is_literal:
        lines = [*_without_blank_end(lines), "```"]
    return "\n".join(lines).replace("\n\n\n", "\n\n") if lines else ""


def _without_blank_end(lines: list[str]) -> list[str]:
    while not lines[-1]:
        lines = lines[:-1]
    return lines


# ---------------------------------------------------------------- pages


def pages() -> dict[str, Callable[[], str]]:
    """The names of the pages, and what makes each."""
    found: dict[str, Callable[[], str]] = {
        "commands.md": commands,
        "flags.md": flags,
        "http.md": routes,
        "calls.md": calls,
        "errors.md": errors,
        "metrics.md": metrics,
    }
    for module in PUBLIC:
        found[f"martlet.{module}.md"] = lambda module=module: python(module)  # type: ignore[misc]
    return found


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for name, page in pages().items():
        (PAGES / name).write_text(page(), encoding="utf-8")
