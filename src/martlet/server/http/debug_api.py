"""The endpoints below ``/debug``, at nsqd's paths: where time and memory go, in Go's formats.

``go tool pprof http://HOST:4151/debug/pprof/profile`` and what else collects profiles of an nsqd
work here too.  What Go calls a goroutine is here a task of the event loop or a thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import html
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web

from martlet.server.http.request import HttpError, Request
from martlet.server.http.response import TEXT
from martlet.server.observability.pprof import CodeLocation, Profile, ValueType, as_lines
from martlet.server.observability.sampler import Sampler, awaited_stack, thread_stacks
from martlet.server.observability.stats import pauses

if TYPE_CHECKING:
    from martlet.server.http.server import Routes

_DEFAULT_S = 30
_MAX_S = 300
_HEAP_TYPES = (ValueType("inuse_objects", "count"), ValueType("inuse_space", "bytes"))
_KINDS = {
    "profile": "where processor time goes: ?seconds=30, at most 300",
    "goroutine": "where each task and thread is; ?debug=2 with their names",
    "heap": "what kinds of Python objects take memory",
    "threadcreate": "where each thread is",
    "block": "empty: Python does not tell where its threads wait for locks",
    "cmdline": "the command line of the broker",
}
_DECIMAL = re.compile(r"[+-]?[0-9]+")


class DebugApi:
    """nsqd's ``/debug`` endpoints over this process."""

    def __init__(self) -> None:
        self._profiling = False

    def routes(self) -> Routes:
        """The endpoint of each path and method."""
        endpoints: dict[str, Callable[[Request], Awaitable[object]]] = {
            "": self.index,
            "cmdline": self.command_line,
            "symbol": self.symbol,
            "profile": self.profile,
            "heap": self.heap,
            "goroutine": self.goroutine,
            "block": self.block,
            "threadcreate": self.threads,
        }
        routes = {f"/debug/pprof/{name}": {"GET": call} for name, call in endpoints.items()}
        routes["/debug/pprof/symbol"]["POST"] = self.symbol
        routes["/debug/setblockrate"] = {"PUT": self.set_block_rate}
        routes["/debug/freememory"] = {"POST": self.free_memory}
        return routes

    async def index(self, request: Request) -> object:
        """What there is."""
        rows = "".join(
            f"<tr><td><a href='{name}{'' if name in ('profile', 'cmdline') else '?debug=1'}'>"
            f"{name}</a></td><td>{html.escape(text)}</td></tr>\n"
            for name, text in _KINDS.items()
        )
        page = (
            "<html>\n<head><title>/debug/pprof/</title></head>\n<body>\n/debug/pprof/<br><br>\n"
            f"Types of profiles available:\n<table>\n{rows}</table>\n"
            "Without ?debug they are in the form of <code>go tool pprof</code>.\n</body>\n</html>\n"
        )
        headers = {"Content-Type": "text/html; charset=utf-8"}
        return web.Response(body=page.encode(), headers=headers)

    async def command_line(self, request: Request) -> object:
        """What the broker was started with, a zero byte between the arguments."""
        return _text("\0".join(sys.orig_argv))

    async def symbol(self, request: Request) -> object:
        """None: profiles name their functions themselves."""
        return _text("num_symbols: 0\n")

    async def profile(self, request: Request) -> object:
        """Where processor time goes in the next seconds."""
        seconds = _number(request, "seconds")
        seconds = seconds if seconds > 0 else _DEFAULT_S
        if seconds > _MAX_S:
            raise HttpError(400, f"seconds is {seconds}; at most {_MAX_S}\n", plain=True)
        if self._profiling:
            raise HttpError(
                500,
                "Could not enable CPU profiling: cpu profiling already in use\n",
                plain=True,
            )
        self._profiling = True
        sampler = Sampler()
        try:
            sampler.start()
            try:
                await asyncio.sleep(seconds)
            finally:
                found = sampler.stop()
        finally:
            self._profiling = False
        return _as_file("profile", await asyncio.to_thread(found.encode))

    async def goroutine(self, request: Request) -> object:
        """Where each task and thread is."""
        level = _number(request, "debug")
        tasks = {task.get_name(): awaited_stack(task.get_coro()) for task in asyncio.all_tasks()}
        threads = thread_stacks()
        if level > 1:
            named = {
                **{f"task {name}": stack for name, stack in tasks.items()},
                **{f"thread {name}": stack for name, stack in threads.items()},
            }
            return _text("\n".join(f"{name}:\n{as_lines(stack)}" for name, stack in named.items()))
        found = Profile((ValueType("goroutine", "count"),), time_ns=time.time_ns())
        for stack in (*tasks.values(), *threads.values()):
            found.add(stack, 1)
        return _respond("goroutine", found, level)

    async def threads(self, request: Request) -> object:
        """Where each thread is."""
        found = Profile((ValueType("threadcreate", "count"),), time_ns=time.time_ns())
        for stack in thread_stacks().values():
            found.add(stack, 1)
        return _respond("threadcreate", found, _number(request, "debug"))

    async def heap(self, request: Request) -> object:
        """What kinds of objects take memory."""
        found = await asyncio.to_thread(_count_objects)
        if not _number(request, "debug"):
            return _as_file("heap", await asyncio.to_thread(found.encode))
        memory = "".join(f"# {name} = {value}\n" for name, value in pauses.memory().items())
        return _text(f"{found.as_text('heap')}\n{memory}")

    async def block(self, request: Request) -> object:
        """Nothing: Python does not tell."""
        found = Profile((ValueType("contentions", "count"), ValueType("delay", "nanoseconds")))
        if not _number(request, "debug"):
            return _as_file("block", found.encode())
        return _text(f"--- contention:\n# {_KINDS['block']}\n")

    async def set_block_rate(self, request: Request) -> object:
        """Nothing to set."""
        rate = request.query.get("rate", "")
        if not _DECIMAL.fullmatch(rate):
            raise HttpError(400, f"invalid block rate : {rate!r} is not a number", plain=True)
        return _text("no effect: Python does not tell where its threads wait for locks\n")

    async def free_memory(self, request: Request) -> object:
        """Give back to the system what memory is not used."""
        # The collection stops the broker, in whichever thread it runs; the rest does not.
        gc.collect()
        await asyncio.to_thread(_trim)
        return _text("")


def _trim() -> None:
    with suppress(AttributeError):  # a C library without it gives memory back by itself
        ctypes.CDLL(None).malloc_trim(0)


def _count_objects() -> Profile:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
        counts[kind] += 1
        sizes[kind] += sys.getsizeof(thing, 0)
    found = Profile(_HEAP_TYPES, time_ns=time.time_ns())
    for kind, count in counts.items():
        found.add((CodeLocation(kind, "", 0),), count, sizes[kind])
    return found


def _number(request: Request, name: str) -> int:
    """A number in the query; 0 where there is none, as in Go."""
    text = request.query.get(name, "")
    return int(text[:18]) if _DECIMAL.fullmatch(text) else 0


def _respond(name: str, found: Profile, level: int) -> web.Response:
    return _text(found.as_text(name)) if level else _as_file(name, found.encode())


def _text(text: str) -> web.Response:
    return web.Response(body=text.encode(errors="replace"), headers={"Content-Type": TEXT})


def _as_file(name: str, data: bytes) -> web.Response:
    headers = {
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f'attachment; filename="{name}"',
    }
    return web.Response(body=data, headers=headers)
