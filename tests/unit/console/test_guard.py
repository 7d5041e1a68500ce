"""What the admin page refuses, and keeps in its audit."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from aiohttp import web
from tests.admin_page import Page, broker_of, page_of
from tests.answering import answering


async def post(page: Page, **headers: str) -> int:
    form = {"action": "pause_topic", "topic": "orders"}
    async with page.session.post(
        f"{page.url}/act", data=form, headers=headers, allow_redirects=False
    ) as answer:
        return answer.status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 303),
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost"}, 303),
        ({"Host": "[::1]:4171"}, 303),
        ({"Sec-Fetch-Site": "same-origin", "Host": "evil.example:4171"}, 403),
    ],
)
async def test_forms_of_other_sites_and_hosts_are_refused(
    headers: dict[str, str], status: int
) -> None:
    async with broker_of(1) as broker, page_of([broker.http_address]) as page:
        assert await post(page, **headers) == status
        entries = list(page.server._audit.entries)
        assert [entry.result for entry in entries] == ["done" if status == 303 else "refused"]


async def test_a_page_under_a_foreign_name_is_refused_to_read_too() -> None:
    async with broker_of(1) as broker:
        options: dict[str, Any] = {"allowed_hosts": ("brokers.example",)}
        async with page_of([broker.http_address], **options) as page:
            for host, status in (("brokers.example:4171", 200), ("rebound.example", 403)):
                async with page.session.get(page.url + "/", headers={"Host": host}) as answer:
                    assert answer.status == status
            assert "--allowed-host=rebound.example" in page.server._audit.entries[-1].detail


async def test_every_answer_has_a_strict_policy() -> None:
    async with broker_of(1) as broker, page_of([broker.http_address]) as page:
        for path in ("/", "/nope", "/static/admin.css", "/ping"):
            async with page.session.get(page.url + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_audit_is_kept_in_a_file_and_posted(tmp_path: Path) -> None:
    posted: list[Any] = []

    async def take(request: web.BaseRequest) -> web.StreamResponse:
        posted.append(await request.json())
        return web.Response()

    async with answering(take) as address:
        file = tmp_path / "audit.jsonl"
        options: dict[str, Any] = {
            "audit_file": str(file),
            "notification_http_endpoint": f"http://{address}/",
        }
        async with broker_of(1) as broker, page_of([broker.http_address], **options) as page:
            assert await post(page, **{"X-Forwarded-User": "ann", "User-Agent": "test"}) == 303
            await page.server._audit._waiting.join()
        (line,) = file.read_text().splitlines()
        kept = json.loads(line)
        assert (kept["action"], kept["topic"], kept["user"], kept["result"]) == (
            *("pause_topic", "orders", "ann"),
            "done",
        )
        (sent,) = posted
        assert sent == {name: kept[name] for name in sent}
        assert set(sent) == {
            *("action", "topic", "timestamp", "user", "remote_ip", "user_agent", "url", "via")
        }
        async with broker_of(1) as broker, page_of([broker.http_address], **options) as page:
            assert "pause_topic" in await page.get("/audit")


async def test_an_audit_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"--audit-file=/.*/missing/audit cannot be written"):
        async with page_of(["127.0.0.1:1"], audit_file=str(tmp_path / "missing" / "audit")):
            raise AssertionError


async def test_a_wrong_password_is_in_the_audit_and_a_missing_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "htpasswd"
    file.write_text(f"ann:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    async with (
        broker_of(1) as broker,
        page_of([broker.http_address], htpasswd_file=str(file)) as page,
    ):
        for credentials, status in (("", 401), ("ann:guess", 401), ("ann:secret", 200)):
            word = base64.b64encode(credentials.encode()).decode()
            headers = {"Authorization": f"Basic {word}"} if credentials else {}
            async with page.session.get(f"{page.url}/counter", headers=headers) as answer:
                assert answer.status == status
        (entry,) = page.server._audit.entries
        assert (entry.result, entry.user) == ("refused", "")
        assert entry.detail == "a wrong password of 'ann'"


@pytest.mark.parametrize(
    "name",
    [
        *("X-Forwarded-User", "x-forwarded-user", "X-Forwarded-For", "Forwarded", "Authorization"),
        *("Host", "Origin", "Sec-Fetch-Site"),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("POST", "/act"), ("GET", "/api/topics")]
)
async def test_a_header_that_identifies_is_refused_if_it_comes_twice(
    method: str, path: str, name: str
) -> None:
    """A proxy may add its own to one of the client's, and it is not known which one counts."""
    async with broker_of(1) as broker, page_of([broker.http_address]) as page:
        host, _, port = page.server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        own = "" if name == "Host" else "Host: localhost\r\n"
        twice = f"{name}: localhost\r\n{name}: viewer\r\n"
        writer.write(f"{method} {path} HTTP/1.1\r\n{own}{twice}Connection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await writer.wait_closed()
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), answer
        if name != "Host":  # aiohttp itself refuses that.
            (entry,) = page.server._audit.entries
            assert (entry.result, entry.reason) == ("refused", "repeated header")
            assert "several headers" in entry.detail


async def test_a_header_of_users_by_another_name_counts_once_too() -> None:
    options: dict[str, Any] = {"acl_http_header": "X-User", "admin_users": ("ann",)}
    async with broker_of(1) as broker, page_of([broker.http_address], **options) as page:
        form = {"action": "pause_topic", "topic": "orders"}
        for headers, status in (
            ([("X-User", "ann"), ("X-User", "bob")], 400),
            ([("X-User", "bob"), ("X-User", "ann")], 400),
            ([("X-User", "ann"), ("X-Forwarded-User", "a"), ("X-Forwarded-User", "b")], 303),
        ):
            async with page.session.post(
                f"{page.url}/act", data=form, headers=headers, allow_redirects=False
            ) as answer:
                assert answer.status == status


async def test_monitors_and_browsers_need_no_password_for_what_tells_nothing(
    tmp_path: Path,
) -> None:
    file = tmp_path / "htpasswd"
    file.write_bytes(b"ann:" + bcrypt.hashpw(b"secret", bcrypt.gensalt(4)) + b"\n")
    async with page_of(["127.0.0.1:1"], htpasswd_file=str(file), base_path="/m") as page:
        for path, status in {
            "/ping": 200,
            "/static/admin.css": 200,
            "/static/none.css": 404,
            "/": 401,
            "/audit": 401,
            "/static": 401,
            "/ping/": 401,
            "/static/../audit": 404,
            "/static/%2e%2e/audit": 404,
        }.items():
            address, url = page.server.address.rpartition(":"), f"/m{path}"
            reader, writer = await asyncio.open_connection(address[0], int(address[2]))
            writer.write(
                f"GET {url} HTTP/1.1\r\nHost: monitor\r\nConnection: close\r\n\r\n".encode()
            )
            answer = await reader.read()
            writer.close()
            assert int(answer.split()[1]) == status, (path, answer)
            assert b"<nav" not in answer
