"""Who did what: a line of JSON for each action, done or refused, and a notification of each.

The fields are those of nsqadmin's notifications, with the result: ``done``, ``refused`` or
``failed``, and why.

The file is rotated by size. Older files have a number behind the name; the highest is the oldest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from martlet.admin.users import User
from martlet.options.admin import AdminOptions
from martlet.private_files import private_opener

MAX_SHOWN = 1000
"""The newest entries, which the page shows."""
_MAX_NOTIFICATIONS = 1000
"""The maximum of notifications that wait; more are dropped, and logged."""
_TEXT_LENGTH = 500


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """An action.

    Attributes:
        action: what was done, such as ``empty_channel``.
        topic, channel, node: to what; empty where it does not apply.
        timestamp: in seconds since 1970.
        user: who did it; empty for an anonymous user.
        remote_ip, user_agent: the client's.
        url: of the request.
        via: the name of this machine.
        result: ``done``, ``refused`` or ``failed``.
        detail: why, or what came of it.
    """

    action: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    timestamp: int
    user: str = ""
    remote_ip: str
    user_agent: str
    url: str
    via: str
    result: str
    detail: str = ""

    def notification(self) -> dict[str, Any]:
        """Return the JSON that nsqadmin posts."""
        fields = asdict(self)
        del fields["result"], fields["detail"]
        empty = [name for name in ("channel", "node", "user") if not fields[name]]
        return {name: value for name, value in fields.items() if name not in empty}


class _AuditFile(RotatingFileHandler):
    """The file of entries, one a line.

    Args:
        options: its path, its maximum size, and the number of older files.
        log: told of what cannot be written.

    Raises OSError: the file cannot be opened.
    """

    def __init__(self, options: AdminOptions, log: logging.Logger) -> None:
        super().__init__(
            options.audit_file,
            maxBytes=options.max_audit_bytes,
            backupCount=options.audit_backups,
            encoding="utf-8",
        )
        self._log = log
        for path in self.files()[:1]:
            with path.open("r+b") as file:
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

    def lines(self, count: int) -> list[str]:
        """Return the newest lines, the oldest of them first."""
        found: list[str] = []
        for path in self.files():
            with path.open(encoding="utf-8", errors="replace") as lines:
                found[:0] = deque(lines, count - len(found))
            if len(found) == count:
                break
        return found

    def doRollover(self) -> None:
        """Begin another file; where that cannot be done, the entry goes into this one."""
        try:
            super().doRollover()
        except OSError as error:
            self._log.error("AUDIT: the file could not be rotated: %s", error)

    def handleError(self, record: logging.LogRecord) -> None:
        """Tell that an entry was not written."""
        self._log.error("AUDIT: the file could not be written: %s", sys.exception())


class AuditLog:
    """Keeps entries: the newest in memory, all in a file, and posts them.

    Args:
        options: the file and the endpoint.
        log: the destination of log lines.

    Raises OSError: the file cannot be written; the text names the flag.
    """

    def __init__(self, options: AdminOptions, log: logging.Logger) -> None:
        self.entries: deque[AuditEntry] = deque(maxlen=MAX_SHOWN)
        self._log = log
        self._endpoint = options.notification_http_endpoint
        self._timeout_s = options.http_client_request_timeout_ns / 1e9
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MAX_NOTIFICATIONS)
        self._via = socket.gethostname()
        self._file = None
        if options.audit_file:
            try:
                self._file = _AuditFile(options, log)
                self._read(self._file)
            except OSError as error:
                raise OSError(
                    f"--audit-file={options.audit_file} cannot be written: {error.strerror}"
                ) from error

    def _read(self, file: _AuditFile) -> None:
        """Show the newest entries of an earlier process."""
        for line in file.lines(MAX_SHOWN):
            try:
                self.entries.append(AuditEntry(**json.loads(line)))
            except (ValueError, TypeError):
                self._log.warning(
                    "AUDIT: %s has a line that is no entry: %.80r", file.baseFilename, line
                )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def done(
        self, request: web.Request, user: User, action: str, detail: str = "", **where: str
    ) -> None:
        """Keep an action, and notify of it."""
        entry = self._entry(request, user, action, "done", detail, where)
        self._keep(entry)
        if self._endpoint:
            try:
                self._waiting.put_nowait(entry.notification())
            except asyncio.QueueFull:
                self._log.error("AUDIT: a notification of %s was dropped: too many wait", action)

    def failed(self, request: web.Request, user: User, action: str, why: str, **where: str) -> None:
        """Keep an action that failed."""
        self._keep(self._entry(request, user, action, "failed", why, where))

    def refused(self, request: web.Request, user: User, why: str) -> None:
        """Keep a request that was refused."""
        action = f"{request.method} {request.path}"
        self._keep(self._entry(request, user, action[:_TEXT_LENGTH], "refused", why, {}))

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
            **where,
        )

    def _keep(self, entry: AuditEntry) -> None:
        self.entries.append(entry)
        line = json.dumps(asdict(entry))
        level = logging.INFO if entry.result == "done" else logging.WARNING
        self._log.log(level, "AUDIT: %s", line)
        if self._file is not None:
            self._file.handle(logging.makeLogRecord({"msg": line}))

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
