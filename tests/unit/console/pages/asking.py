"""Forms and addresses of pages, as a browser sends and follows them."""

from __future__ import annotations

import html as html_module
import re
from typing import Any
from urllib.parse import urlencode

from tests.admin_page import Page


async def ask(page: Page, action: str, status: int = 200, **fields: Any) -> str:
    """Return the page that asks before an operation."""
    query = urlencode({"action": action, **fields}, doseq=True)
    return await page.get(f"/confirm?{query}", status)


def form_of(html: str) -> dict[str, Any]:
    """Return the hidden fields of the form that asks."""
    form = html[html.index('<form method="post"') :]
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form):
        fields.setdefault(html_module.unescape(name), []).append(html_module.unescape(value))
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def button_of(html: str) -> str:
    """Return what the button says that does it."""
    (label,) = re.findall(r'<button class="danger">([^<]*)</button>', html)
    return html_module.unescape(str(label))


def notice_of(html: str) -> str:
    """Return what the page says was done."""
    (text,) = re.findall(r'<p class="notice" role="status">([^<]*)</p>', html)
    return html_module.unescape(str(text))


def next_of(html: str, relation: str = "next") -> str:
    """Return the address where a list continues."""
    (href,) = re.findall(rf'<a rel="{relation}" href="([^"]+)"', html)
    return html_module.unescape(str(href))


def text_of(html: str) -> str:
    """Return what is read, with a space between cells."""
    return html_module.unescape(" ".join(re.sub(r"<[^>]*>", " ", html).split()))
