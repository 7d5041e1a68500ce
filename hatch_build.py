"""Builds the compiled hot path with the package, where there is a C compiler.

``python hatch_build.py`` builds it in place, for a working copy that is not installed. The
environment: ``CC`` and ``CFLAGS`` as usual; ``MARTLET_PURE=1`` builds nothing.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script, where hatchling need not be
    BuildHookInterface = object  # type: ignore[assignment, misc]

SOURCE = "src/martlet/native/_native.c"
LIBRARY = "src/martlet/native/_native.abi3.so"
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")


def build(root: Path) -> str:
    """Compile the hot path in place. Returns why it was not, or an empty text."""
    if os.environ.get("MARTLET_PURE", "0") not in ("", "0"):
        return "MARTLET_PURE is set"
    if not sys.platform.startswith("linux"):
        return "it is written for Linux"
    compiler = shlex.split(os.environ.get("CC") or "cc")
    flags = shlex.split(os.environ.get("CFLAGS", ""))
    folder = Path(sysconfig.get_path("include"))
    # Debian's pyconfig.h includes another one by its path from there.
    include = [f"-I{folder}", "-idirafter", str(folder.parent)]
    beside = root / f"{LIBRARY}.new"
    command = [*compiler, *_FLAGS, *flags, *include, str(root / SOURCE), "-o", str(beside)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        return f"there is no C compiler {compiler[0]!r}"
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no output"]
        return (
            f"{compiler[0]} failed: {next((line for line in lines if 'error' in line), lines[0])}"
        )
    beside.replace(root / LIBRARY)
    return ""


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg, unused-ignore]
    """Adds the compiled hot path to a wheel, or to a working copy."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it before the package is put together."""
        reason = build(Path(self.root))
        if reason:
            self.app.display_warning(f"martlet: the hot path stays in Python: {reason}")
            return
        if version != "editable":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"
            build_data["artifacts"].append(LIBRARY)


if __name__ == "__main__":
    sys.exit(build(Path(__file__).parent) or 0)
