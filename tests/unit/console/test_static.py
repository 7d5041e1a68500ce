"""The files that the page loads: as their projects published them, and all that there are."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

from tests.admin_page import page_of
from yarl import URL

import martlet.console

STATIC = Path(martlet.console.__file__).parent / "static"
VENDOR = STATIC / "vendor"


def test_files_of_other_projects_are_unchanged_and_licensed() -> None:
    entries = tomllib.loads((VENDOR / "VENDOR.toml").read_text())
    files = {path.name: path for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert entries.keys() == files.keys()
    for name, entry in entries.items():
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == entry["sha256"], name
    for package in {entry["package"].partition(".")[0] for entry in entries.values()}:
        assert (VENDOR / f"{package}.LICENSE").stat().st_size


def test_no_script_calls_another_site() -> None:
    for path in (*STATIC.glob("*.js"), *STATIC.glob("*.css"), *STATIC.glob("*.svg")):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text.replace(" //", "").replace("// ", ""), path
        assert "innerHTML" not in text
        assert "eval(" not in text


async def test_a_browser_gets_a_file_once() -> None:
    async with page_of(["127.0.0.1:1"]) as page:
        url = f"{page.url}/static/vendor/htmx.min.js"
        async with page.session.get(url) as first:
            assert await first.read() == (VENDOR / "htmx.min.js").read_bytes()
            assert first.content_type in ("text/javascript", "application/javascript")
            tag = first.headers["ETag"]
        async with page.session.get(url, headers={"If-None-Match": tag}) as again:
            assert (again.status, await again.read()) == (304, b"")
        for missing in ("nope.js", "../server.py", "%2e%2e/server.py"):
            async with page.session.get(URL(f"{page.url}/static/{missing}", encoded=True)) as none:
                assert none.status == 404
