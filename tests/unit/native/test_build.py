"""The compiled hot path is built where it can be, and nothing is missed where it cannot."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import hatch_build
import pytest

ROOT = Path(__file__).parents[3]
PRINT = "from martlet.native import native; print(native is not None)"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A working copy of the package without the compiled file."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    return tmp_path


def is_compiled(root: Path, **settings: str) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), **settings}
    environment = {name: value for name, value in environment.items() if value}
    done = subprocess.run(
        [sys.executable, "-c", PRINT], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout == "True\n"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_it_is_built_and_can_be_turned_off(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MARTLET_PURE", raising=False)
    assert not is_compiled(copied)
    assert hatch_build.build(copied) == ""
    assert is_compiled(copied)
    assert not is_compiled(copied, MARTLET_PURE="1")
    assert is_compiled(copied, MARTLET_PURE="0")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"CC": "no-such-compiler"}, "there is no C compiler 'no-such-compiler'"),
        ({"CC": "false"}, "false failed: no output"),
        ({"MARTLET_PURE": "1"}, "MARTLET_PURE is set"),
    ],
)
def test_without_a_compiler_python_does_it(
    copied: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], reason: str
) -> None:
    monkeypatch.delenv("MARTLET_PURE", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert hatch_build.build(copied) == reason
    assert not is_compiled(copied)
    assert not list(copied.rglob("*.so*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sanitizers_find_nothing(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AddressSanitizer and UndefinedBehaviorSanitizer, under the property test."""
    libraries = [
        subprocess.run(
            ["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(Path(library).is_absolute() for library in libraries):
        pytest.skip("the compiler has no sanitizers")
    flags = "-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all"
    monkeypatch.setenv("CFLAGS", flags)
    monkeypatch.delenv("MARTLET_PURE", raising=False)
    assert hatch_build.build(copied) == ""
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONPATH": f"{copied / 'src'}",
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    tests = ["property/native/test_native.py", "unit/native/test_raw_bodies.py"]
    tests = [f"tests/{name}" for name in (*tests, "unit/server/nsq/test_compiled_path.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "skipped" not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_is_for_every_linux_with_an_old_glibc(tmp_path: Path) -> None:
    done = subprocess.run(
        [ROOT / ".ci" / "wheels", tmp_path], stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 0
    (wheel,) = tmp_path.iterdir()
    assert done.stdout == f"{wheel}\n"
    assert "-cp311-abi3-" in wheel.name
    assert "manylinux_2_17_" in wheel.name
