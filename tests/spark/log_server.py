"""The HTTP endpoints that a reader of the log uses, on a hand-written data folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from tests.spark.folder import Folder

INDEX_ROWS_A_REPLY = (1 << 20) // 40


class LogServer(ThreadingHTTPServer):
    """Serves a folder on a free port.

    Attributes:
        data_path: answered as the broker's folder; another path keeps readers off the files.
        channels: the offsets to which channels were advanced, and of groups that follow.
        retains: whether those groups retain.
        requests: the paths asked for so far.
        failing: how many of the next requests are answered with 503.
        held: an event that requests wait for before they are answered, or None.
        epoch, is_standby, replicas: as the listing says.
    """

    daemon_threads = True

    def __init__(self, folder: Folder, data_path: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.data_path = str(folder.path) if data_path is None else data_path
        self.channels: dict[tuple[str, str], int] = {}
        self.retains: dict[tuple[str, str], bool] = {}
        self.requests: list[str] = []
        self.failing = 0
        self.held: threading.Event | None = None
        self.epoch = 1
        self.is_standby = False
        self.replicas: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving(server: LogServer) -> Iterator[LogServer]:
    """Answer until the block is left."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LogServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        self.server.requests.append(url.path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.held is not None:
            self.server.held.wait(60)
        if self.server.failing:
            self.server.failing -= 1
            self._answer(503, {"message": "NOT YET"})
            return
        topics = self.server.folder.topics
        if query.get("topic", next(iter(topics))) not in topics and self.command == "GET":
            self._answer(404, {"message": "TOPIC_NOT_FOUND"})
            return
        if "topic_id" in query and int(query["topic_id"]) != topics[query["topic"]]:
            self._answer(404, {"message": "TOPIC_MADE_ANEW"})
            return
        if self._is_behind(url.path, query):
            self._answer(503, {"message": "BEHIND"})
            return
        if self.server.is_standby and not url.path.startswith("/log/"):
            self._answer(404, {"message": "NOT_FOUND"})
            return
        {
            "/log/topics": self._topics,
            "/log/offset": self._offset,
            "/log/index": self._index,
            "/log/batches": self._batches,
            "/log/reach": self._reach,
            "/call/group.follow": self._follow,
            "/call/topic.describe": self._describe,
            "/channel/advance": self._advance,
        }[url.path](query)

    do_POST = do_GET

    def _is_behind(self, path: str, query: dict[str, str]) -> bool:
        """Whether a request wants what this replica does not have."""
        ends = self.server.folder.end_offsets
        if query.get("complete") != "true":
            return False
        if path == "/log/index" and self.command == "POST":
            places = json.loads(self.body)
            return any(end > ends.get((topic, queue), 0) for topic, queue, _, _, end in places)
        end = int(query["offset"]) + 1 if "offset" in query else int(query.get("end", 0))
        return end > ends.get((query["topic"], int(query["queue"])), 0)

    def _topics(self, query: dict[str, str]) -> None:
        folder = self.server.folder
        names = query["names"].split(",") if "names" in query else list(folder.topics)
        topics = [
            {
                "topic": name,
                "topic_id": number,
                "queues": [
                    {"queue": key[1], "start_offset": start, "end_offset": folder.end_offsets[key]}
                    for key, start in folder.start_offsets.items()
                    if key[0] == name
                ],
            }
            for name, number in folder.topics.items()
            if name in names
        ]
        answer = {
            "broker": folder.broker,
            "data_path": self.server.data_path,
            "epoch": self.server.epoch,
            "topics": topics,
        }
        if self.server.is_standby:
            answer["standby"] = True
        if self.server.replicas:
            answer["replicas"] = self.server.replicas
        self._answer(200, answer)

    def _rows(self, query: dict[str, str]) -> Any:
        return self.server.folder.index(query["topic"], int(query["queue"]))

    def _offset(self, query: dict[str, str]) -> None:
        rows = self._rows(query)
        later = rows[rows["stored_at_ns"] >= int(query["timestamp_ns"])]
        end = self.server.folder.end_offsets[query["topic"], int(query["queue"])]
        self._answer(200, {"offset": int(later["first_offset"][0]) if len(later) else end})

    def _index(self, query: dict[str, str]) -> None:
        if self.command == "GET":
            rows = self._touched(
                query["topic"], *map(int, itemgetter("queue", "start", "end")(query))
            )
            self._answer(200, rows.tobytes())
            return
        pieces = []
        left = INDEX_ROWS_A_REPLY
        for topic, queue, topic_id, start, end in json.loads(self.body):
            if self.server.folder.topics.get(topic) != topic_id:
                self._answer(404, {"message": "TOPIC_MADE_ANEW"})
                return
            rows = self._touched(topic, queue, start, end)[:left]
            left -= len(rows)
            pieces += [len(rows).to_bytes(8, "little"), rows.tobytes()]
        self._answer(200, b"".join(pieces))

    def _touched(self, topic: str, queue: int, start: int, end: int) -> Any:
        rows = self.server.folder.index(topic, queue)
        ends = rows["first_offset"] + rows["count"]
        return rows[(ends > start) & (rows["first_offset"] < end)][:INDEX_ROWS_A_REPLY]

    def _batches(self, query: dict[str, str]) -> None:
        rows = self._rows(query)
        offset = int(query["offset"])
        start_offset = self.server.folder.start_offsets[query["topic"], int(query["queue"])]
        if offset < start_offset:
            self._answer(410, {"message": "OFFSET_GONE", "start_offset": start_offset})
            return
        rest = rows[rows["first_offset"] + rows["count"] > offset]
        if not len(rest):
            self._answer(204, b"")
            return
        count = max(1, int(np.searchsorted(np.cumsum(rest["length"]), int(query["max_bytes"]))))
        records = [
            self.server.folder.record(int(row["position"]), int(row["length"]))
            for row in rest[:count]
        ]
        self._answer(200, b"".join(records))

    def _reach(self, query: dict[str, str]) -> None:
        rows = self._rows(query)
        start, end = int(query["start"]), int(query["end"])
        rows = rows[(rows["first_offset"] + rows["count"] > start) & (rows["first_offset"] < end)]
        sums = np.cumsum(rows["length"], dtype=np.int64)
        count = max(1, int(np.searchsorted(sums, int(query["max_bytes"]), "right")))
        last = rows[count - 1]
        offset = min(end, int(last["first_offset"] + last["count"]))
        self._answer(200, {"offset": offset, "bytes": int(sums[count - 1])})

    def _follow(self, query: dict[str, str]) -> None:
        request = json.loads(self.body)
        if self.server.folder.topics.get(request["topic"]) != request["topic_id"]:
            self._answer(404, {"message": "TOPIC_MADE_ANEW"})
            return
        key = request["topic"], request["group"]
        self.server.channels.setdefault(key, 0)
        for offset in request["offsets"].values():
            self.server.channels[key] = offset
        self.server.retains[key] = request["retain"]
        self._answer(200, {})

    def _describe(self, query: dict[str, str]) -> None:
        topic = json.loads(self.body)["topic"]
        channels = [name for of, name in self.server.channels if of == topic]
        self._answer(200, {"channels": channels, "channel_policies": {}})

    def _advance(self, query: dict[str, str]) -> None:
        self.server.channels[query["topic"], query["channel"]] = int(query["offset"])
        self._answer(200, b"")

    def _answer(self, status: int, content: Any) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
