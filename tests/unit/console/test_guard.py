"""What the admin page refuses, and keeps in its audit."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.admin_page import Page, page_of
from tests.answering import answering

from martlet.testing import Broker


async def post(page: Page, **headers: str) -> int:
    form = {"action": "pause_topic", "topic": "orders"}
    return (await page.ask("POST", "/act", form, **headers)).status


async def exchange(page: Page, head: str) -> tuple[int, bytes]:
    """Send a request, byte by byte as it stands. Returns the status and the answer."""
    host, _, port = page.server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]), answer


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
    page_of_one: Page, headers: dict[str, str], status: int
) -> None:
    assert await post(page_of_one, **headers) == status
    (entry,) = page_of_one.server._audit.entries
    assert entry.result == ("done" if status == 303 else "refused")


async def test_a_page_under_a_foreign_name_is_refused_to_read_too(one_broker: Broker) -> None:
    async with page_of([one_broker], allowed_hosts=("brokers.example",)) as page:
        for host, status in (("brokers.example:4171", 200), ("rebound.example", 403)):
            assert (await page.ask("GET", "/", Host=host)).status == status
        assert "--allowed-host=rebound.example" in page.server._audit.entries[-1].detail


async def test_the_audit_is_kept_in_a_file_and_posted(one_broker: Broker, tmp_path: Path) -> None:
    posted: list[Any] = []

    async def take(request: web.BaseRequest) -> web.StreamResponse:
        posted.append(await request.json())
        return web.Response()

    file = str(tmp_path / "audit.jsonl")
    async with answering(take) as address:
        endpoint = f"http://{address}/"
        async with page_of(
            [one_broker], audit_file=file, notification_http_endpoint=endpoint
        ) as page:
            assert await post(page, **{"X-Forwarded-User": "ann", "User-Agent": "test"}) == 303
            await page.server._audit._waiting.join()
    (line,) = Path(file).read_text().splitlines()
    kept = json.loads(line)
    assert (kept["action"], kept["topic"], kept["user"]) == ("pause_topic", "orders", "ann")
    assert kept["result"] == "done"
    (sent,) = posted
    assert sent == {name: kept[name] for name in sent}
    assert set(sent) == {
        *("action", "topic", "timestamp", "user", "remote_ip", "user_agent", "url", "via")
    }
    async with page_of([one_broker], audit_file=file) as page:
        assert "pause_topic" in await page.get("/audit")


async def test_a_wrong_password_is_in_the_audit_and_a_missing_one_is_not(
    one_broker: Broker, passwords: str
) -> None:
    async with page_of([one_broker], htpasswd_file=passwords) as page:
        for credentials, status in (("", 401), ("ann:guess", 401), ("ann:secret", 200)):
            word = base64.b64encode(credentials.encode()).decode()
            headers = {"Authorization": f"Basic {word}"} if credentials else {}
            assert (await page.ask("GET", "/counter", **headers)).status == status
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
    page_of_one: Page, method: str, path: str, name: str
) -> None:
    """A proxy may add its own to one of the client's, and it is not known which one counts."""
    own = "" if name == "Host" else "Host: localhost\r\n"
    twice = f"{name}: localhost\r\n{name}: viewer"
    status, _ = await exchange(page_of_one, f"{method} {path} HTTP/1.1\r\n{own}{twice}")
    assert status == 400
    if name != "Host":  # aiohttp itself refuses that.
        (entry,) = page_of_one.server._audit.entries
        assert (entry.result, entry.reason) == ("refused", "repeated header")
        assert "several headers" in entry.detail


async def test_a_header_of_users_by_another_name_counts_once_too(one_broker: Broker) -> None:
    async with page_of([one_broker], acl_http_header="X-User", admin_users=("ann",)) as page:
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
    passwords: str,
) -> None:
    async with page_of(["127.0.0.1:1"], htpasswd_file=passwords, base_path="/m") as page:
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
            answered, answer = await exchange(page, f"GET /m{path} HTTP/1.1\r\nHost: monitor")
            assert answered == status, (path, answer)
            assert b"<nav" not in answer
