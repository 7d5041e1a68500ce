"""Requests that no browser sends: each is refused with a reason; none is a fault of the page."""

from __future__ import annotations

import pytest
from tests.admin_page import Page

FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=a"
FIELD = b'--a\r\nContent-Disposition: form-data; name="action"\r\n%b\r\nx\r\n--a--\r\n'
DEEP = b"[" * 100_000


async def ask(page: Page, method: str, path: str, body: bytes = b"", **headers: str) -> str:
    """Return the status and the text of an answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await page.ask(method, path, body, **named)
    return f"{answer.status} {answer.text}"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (f"{FORM}; charset=unknown", b"action=x"),
        (FORM, b"%ff=%ff&action=\xff"),
        ("multipart/form-data", b"no boundary"),
        (PARTS, b"no part"),
        (PARTS, b"--a\r\nContent-Disposition: form-data; name=a\r\n\r\nno end"),
        (PARTS, b"--a\r\nContent-Disposition: form-data\r\n\r\nno name\r\n--a--\r\n"),
        (PARTS, FIELD % b"Content-Transfer-Encoding: unknown\r\n"),
        (PARTS, FIELD % b"Content-Type: text/plain; charset=unknown\r\n"),
    ],
)
async def test_a_form_that_cannot_be_read_is_refused(
    page_of_one: Page, kind: str, body: bytes
) -> None:
    answer = await ask(page_of_one, "POST", "/act", body, Content_Type=kind)
    assert answer.startswith("400 ")
    assert "the form cannot be read: " in answer


@pytest.mark.parametrize("path", ["/act", "/api/topics"])
async def test_a_body_that_is_compressed_wrongly_is_refused(page_of_one: Page, path: str) -> None:
    answer = await ask(page_of_one, "POST", path, b"xx", Content_Type=FORM, Content_Encoding="gzip")
    assert answer.startswith("400 ")
    assert "the body of the request cannot be read: " in answer


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("POST", "/api/topics", "the body is no JSON: "),
        ("POST", "/api/topics/orders", "the body is no JSON: "),
        ("DELETE", "/api/nodes/x", "INVALID_BODY"),
        ("PUT", "/config/nsqlookupd_http_addresses", "INVALID_VALUE"),
    ],
)
async def test_json_that_is_too_deep_is_refused(
    page_of_one: Page, method: str, path: str, message: str
) -> None:
    answer = await ask(page_of_one, method, path, DEEP)
    assert answer.startswith("400 ")
    assert message in answer


async def test_names_in_an_address_are_checked(page_of_one: Page) -> None:
    answer = await ask(page_of_one, "GET", "/groups/a%2fb/%ff")
    assert answer.startswith("400 ")
    assert "topic &#39;a/b&#39; is not valid" in answer


async def test_a_page_to_go_back_to_that_is_no_address_is_left_out(page_of_one: Page) -> None:
    answer = await ask(page_of_one, "GET", "/confirm?action=delete_topic&topic=orders&back=//[")
    assert answer.startswith("200 ")
    assert 'href="/"' in answer


async def test_an_origin_that_is_no_address_is_of_another_site(page_of_one: Page) -> None:
    answer = await ask(
        page_of_one, "POST", "/act", b"action=x", Content_Type=FORM, Origin="http://["
    )
    assert answer.startswith("403 ")


@pytest.mark.parametrize(
    "path",
    [
        f"/dead/letters?topic=orders&channel=work&until_ms={'0' * 5000}x",
        f"/dead/letters?topic=orders&channel=work&until_ms={'1' * 5000}",
        f"/dead/letters?topic=orders&channel=work&since={'1' * 5000}",
        f"/messages?topic=orders&from=time&time={'1' * 400}",
        f"/messages?topic=orders&queue={'0' * 5000}{'9' * 20}",
        f"/transactions/{'x' * 256}",
    ],
)
async def test_a_number_time_or_id_that_is_too_long_is_refused(
    page_of_one: Page, path: str
) -> None:
    assert (await ask(page_of_one, "GET", path)).startswith("400 ")


async def test_a_number_with_many_zeros_before_it_is_that_number(page_of_one: Page) -> None:
    path = f"/dead/letters?topic=orders&channel=work&since_ms={'0' * 5000}5"
    assert (await ask(page_of_one, "GET", path)).startswith("200 ")
