"""Who did what: a line of JSON for each action, done or refused, and a notification of each.

The fields are those of nsqadmin's notifications, with the result: ``done``, ``refused`` or
``failed``, and why.

A stranger may cause refusals without end. So what was refused is kept apart from what was done or
failed, in memory and in a file of its own, ``FILE.refused``, and one entry stands for all of an
address, a reason and a minute.

Each file is rotated by size. Older files have a number behind the name; the highest is the oldest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from io import TextIOWrapper
from itertools import chain
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from martlet.console.guard import RefusalReason, User
from martlet.options.admin import AdminOptions
from martlet.private_files import private_opener

MAX_SHOWN = 1000
"""The newest entries, which the page shows."""
_MAX_NOTIFICATIONS = 1000
"""The maximum of notifications that wait; more are dropped, and logged."""
_TEXT_LENGTH = 500
_MINUTE_S = 60
_REFUSED = "refused"
_IS_REFUSAL = f'"result": "{_REFUSED}"'


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """An action."""

    action: str
    """What was done, such as ``empty_channel``."""
    topic: str = ""
    channel: str = ""
    node: str = ""
    """To what; empty where it does not apply."""
    timestamp: int
    """In seconds since 1970."""
    user: str = ""
    """Who did it; empty for an anonymous user."""
    remote_ip: str
    user_agent: str
    """The client's."""
    url: str
    via: str
    """The name of this machine."""
    result: str
    """``done``, ``refused`` or ``failed``."""
    detail: str = ""
    """Why, or what came of it."""
    reason: str = ""
    """Of what was refused, one of `RefusalReason`."""
    count: int = 1
    """How many requests it stands for. It is known while the process runs: a file has the first of
    them.
    """

    def notification(self) -> dict[str, Any]:
        """Return the JSON that nsqadmin posts."""
        fields = asdict(self)
        for name in ("result", "detail", "reason", "count"):
            del fields[name]
        empty = [name for name in ("channel", "node", "user") if not fields[name]]
        return {name: value for name, value in fields.items() if name not in empty}


class _AuditFile(RotatingFileHandler):
    """The file of entries, one a line.

    Raises OSError: the file cannot be opened.
    """

    def __init__(self, path: str, options: AdminOptions, log: logging.Logger) -> None:
        super().__init__(
            path,
            maxBytes=options.max_audit_bytes,
            backupCount=options.audit_backups,
            encoding="utf-8",
        )
        self._log = log
        for newest in self.files()[:1]:
            with newest.open("r+b") as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    if file.read() != b"\n":  # The process ended amid a line.
                        file.write(b"\n")

    def _open(self) -> TextIOWrapper:
        made = private_opener(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return os.fdopen(made, "a", encoding=self.encoding)

    def files(self) -> list[Path]:
        """Return the files that there are, the newest first."""
        older = (f"{self.baseFilename}.{number}" for number in range(1, self.backupCount + 1))
        return [path for path in map(Path, (self.baseFilename, *older)) if path.is_file()]

    def entries(self, count: int, *, are_refusals: bool) -> list[AuditEntry]:
        """Return the newest entries, the oldest of them first."""
        newest: list[str] = []
        for path in self.files():
            with path.open(encoding="utf-8", errors="replace") as lines:
                # Files of earlier versions have both kinds. In a text a quote has a backslash.
                lines_of_kind = (line for line in lines if (_IS_REFUSAL in line) is are_refusals)
                newest[:0] = deque(lines_of_kind, count - len(newest))
            if len(newest) == count:
                break
        return list(self._read(newest))

    def _read(self, lines: Iterable[str]) -> Iterator[AuditEntry]:
        for line in lines:
            try:
                yield AuditEntry(**json.loads(line))
            except (ValueError, TypeError):
                self._log.warning(
                    "AUDIT: %s has a line that is no entry: %.80r", self.baseFilename, line
                )

    def doRollover(self) -> None:
        """Begin another file; where that cannot be done, the entry goes into this one."""
        try:
            super().doRollover()
        except OSError as error:
            self._log.error("AUDIT: the file could not be rotated: %s", error)

    def handleError(self, record: logging.LogRecord) -> None:
        """Tell that an entry was not written."""
        self._log.error("AUDIT: the file could not be written: %s", sys.exception())


class _Entries:
    """Entries of one kind: the newest in memory, all in a file.

    Raises OSError: the file cannot be written; the text names the flag.
    """

    def __init__(
        self, path: str, options: AdminOptions, log: logging.Logger, *, are_refusals: bool
    ) -> None:
        self.newest: OrderedDict[object, AuditEntry] = OrderedDict()
        """By what each stands for, the oldest first."""
        self._log = log
        try:
            self._file = _AuditFile(path, options, log) if path else None
            if self._file is not None:
                for entry in self._file.entries(MAX_SHOWN, are_refusals=are_refusals):
                    self.newest[_key(entry)] = entry
        except OSError as error:
            raise OSError(f"--audit-file={path} cannot be written: {error.strerror}") from error

    def keep(self, entry: AuditEntry) -> None:
        """Keep an entry, or count it where one stands for it already."""
        key = _key(entry)
        first = self.newest.get(key)
        if first is not None:
            self.newest[key] = replace(first, count=first.count + 1)
            return
        self.newest[key] = entry
        if len(self.newest) > MAX_SHOWN:
            self.newest.popitem(last=False)
        line = json.dumps(asdict(entry))
        level = logging.INFO if entry.result == "done" else logging.WARNING
        self._log.log(level, "AUDIT: %s", line)
        if self._file is not None:
            self._file.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _key(entry: AuditEntry) -> object:
    """Return what an entry stands for: of refusals, all of an address, a reason and a minute.

    Behind a proxy users that it has checked share an address.
    """
    if entry.result != _REFUSED or not entry.reason:
        return object()
    return entry.user, entry.remote_ip, entry.reason, entry.timestamp // _MINUTE_S


class AuditLog:
    """Keeps entries, and posts them.

    Raises OSError: the file cannot be written; the text names the flag.
    """

    def __init__(self, options: AdminOptions, log: logging.Logger) -> None:
        self._log = log
        self._endpoint = options.notification_http_endpoint
        self._timeout_s = options.http_client_request_timeout_ns / 1e9
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MAX_NOTIFICATIONS)
        self._via = socket.gethostname()
        path = options.audit_file
        with ExitStack() as undo:
            self._actions = undo.enter_context(
                closing(_Entries(path, options, log, are_refusals=False))
            )
            path = path and f"{path}.{_REFUSED}"
            self._refusals = _Entries(path, options, log, are_refusals=True)
            undo.pop_all()

    @property
    def entries(self) -> list[AuditEntry]:
        """The newest actions and the newest refusals, the oldest first."""
        entries = chain(self._actions.newest.values(), self._refusals.newest.values())
        return sorted(entries, key=lambda entry: entry.timestamp)

    def close(self) -> None:
        """Close the files."""
        self._actions.close()
        self._refusals.close()

    def done(
        self, request: web.Request, user: User, action: str, detail: str = "", **where: str
    ) -> None:
        """Keep an action, and notify of it."""
        entry = self._entry(request, user, action, "done", detail, where)
        self._actions.keep(entry)
        if self._endpoint:
            try:
                self._waiting.put_nowait(entry.notification())
            except asyncio.QueueFull:
                self._log.error("AUDIT: a notification of %s was dropped: too many wait", action)

    def failed(self, request: web.Request, user: User, action: str, why: str, **where: str) -> None:
        """Keep an action that failed."""
        self._actions.keep(self._entry(request, user, action, "failed", why, where))

    def refused(self, request: web.Request, user: User, reason: RefusalReason, why: str) -> None:
        """Keep a request that was refused."""
        action = f"{request.method} {request.path}"[:_TEXT_LENGTH]
        entry = self._entry(request, user, action, _REFUSED, why, {})
        self._refusals.keep(replace(entry, reason=reason.value))

    def _entry(
        self,
        request: web.Request,
        user: User,
        action: str,
        result: str,
        detail: str,
        where: dict[str, str],
    ) -> AuditEntry:
        return AuditEntry(
            action=action,
            timestamp=int(time.time()),
            user=user.name,
            remote_ip=user.address,
            user_agent=request.headers.get("User-Agent", "")[:_TEXT_LENGTH],
            url=str(request.url)[:_TEXT_LENGTH],
            via=self._via,
            result=result,
            detail=detail[:_TEXT_LENGTH],
            topic=where.get("topic", ""),
            channel=where.get("channel", ""),
            node=where.get("node", ""),
        )

    async def notify(self) -> None:
        """Post notifications, until it is cancelled."""
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                entry = await self._waiting.get()
                try:
                    async with session.post(self._endpoint, json=entry) as answer:
                        answer.raise_for_status()
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    self._log.error("AUDIT: %s took no notification: %s", self._endpoint, error)
                finally:
                    self._waiting.task_done()
