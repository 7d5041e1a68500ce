"""Recommended installs exist: the index has no package of ours."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from martlet.text import how_to_install

ROOT = Path(__file__).parents[2]
SUFFIXES = (".md", ".py", ".sh", ".toml", ".yaml", ".yml", ".service", "Dockerfile", "run")
FROM_THE_INDEX = re.compile(r"""pip install [^\n`]*?(?<![\w/.-])['"]?martlet(?![\w/.-])""")


def texts() -> dict[Path, str]:
    """Return the texts that users read and the sources of errors."""
    folders = [ROOT / name for name in ("src", "docs", "deploy", "bench", "examples")]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    files += [ROOT / name for name in ("README.md", "CHANGELOG.md", "run")]
    return {file: file.read_text() for file in files if file.name.endswith(SUFFIXES)}


def test_no_text_recommends_an_index_package_that_does_not_exist() -> None:
    for wrong in ("pip install 'martlet[cli]'", "pip install -U martlet", "pip install martlet==1"):
        assert FROM_THE_INDEX.search(wrong)
    for right in ("pip install '.[cli]' in a clone of Martlet", "pip install /tmp/martlet-0.1.whl"):
        assert not FROM_THE_INDEX.search(right)
    assert [file for file, text in texts().items() if FROM_THE_INDEX.search(text)] == []


def test_extras_that_errors_name_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        name
        for text in texts().values()
        for name in re.findall(r"""how_to_install\(['"]([^'"]+)['"]\)""", text)
    }
    assert named
    assert named <= project["optional-dependencies"].keys()
    assert how_to_install("cli") == "pip install '.[cli]' in a clone of Martlet's repository"
