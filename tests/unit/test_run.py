"""`./run`: the environment that it makes, when it makes it again, and its errors.

The interpreter is a stand-in that records its arguments, so nothing is installed here; the real
thing happens each time a fresh clone runs its tests.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = "cat cksum date dirname du env head ln mkdir mv readlink rm rmdir sh sleep tr cp grep"

# Behaves as python, and as pip and martlet of the environments that it makes. $home is its folder.
PYTHON = """#!/bin/sh
home={home}
printf '%s\\n' "$*" >>"$home/asked"
last=
case "$*" in
"-c import sys; sys.exit(sys.version_info < (3, 11))") exit ${{TOO_OLD:-0}} ;;
"-c import sys; print(sys._base_executable)") echo "$home/python3" ;;
"- "*) [ ! -e "$home/has-ssl" ] || exec {python} "$@"; exit 1 ;;
*" --target "*)
    [ -e "$home/uv-in-the-index" ] || exit 1
    for word do [ "$last" != --target ] || folder=$word; last=$word; done
    mkdir -p "$folder/bin"
    cp "$home/uv-in-the-index" "$folder/bin/uv" ;;
*"-m pip"*--version*)
    case "$0" in */.venv/*) [ ! -e "$home/no-ensurepip" ] ;; *) [ ! -e "$home/no-pip" ] ;; esac ;;
*"-m pip"*" install "*)
    sleep "${{INSTALL_S:-0}}"
    [ ! -e "$home/shows-downloads" ] || {{
        printf 'Collecting big\\n  Downloading big (9 MB)\\n'
        until [ -e "$home/has-been-seen" ]; do sleep 0.05; done
    }}
    [ ! -e "$home/broken-index" ] || {{ echo "no such package" >&2; exit 1; }} ;;
"-m venv "*)
    case "$*" in *--without-pip*) ;; *) [ ! -e "$home/no-ensurepip" ] || exit 1 ;; esac
    for folder do :; done
    mkdir -p "$folder/bin"
    cp "$0" "$folder/bin/python"
    printf '#!/bin/sh\\necho "martlet $*"\\n' >"$folder/bin/martlet"
    chmod +x "$folder/bin/martlet" ;;
*) exit 1 ;;
esac
"""

# Behaves as uv: its `venv` is that of the stand-in above.
UV = """#!/bin/sh
home={home}
[ "$*" != --version ] || exit 0
printf 'uv %s\\n' "$*" >>"$home/asked"
case "$1" in
venv) for folder do :; done; "$home/python3" -m venv --without-pip "$folder" ;;
pip) [ ! -e "$home/broken-index" ] || {{ echo "no such package" >&2; exit 1; }} ;;
esac
"""


@dataclass
class Machine:
    """A clone, and a PATH with little on it."""

    home: Path
    clone: Path

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.clone / "run", *arguments],
            env={"PATH": str(self.home), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """The exit code, and what was said on standard output and standard error."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def asked(self, what: str) -> list[str]:
        """The commands of the interpreter and of uv since the last time that have `what` in them.

        Without those that try to get uv.
        """
        file = self.home / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        file.write_text("")
        lines = [line for line in lines if "--target" not in line and not line.startswith("- ")]
        return [line for line in lines if what in line]

    def offer_uv(self) -> None:
        """Let pip find uv in the index."""
        uv = self.home / "uv-in-the-index"
        uv.write_text(UV.format(home=self.home))
        uv.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    home = tmp_path / "bin"
    clone = tmp_path / "a clone"
    for folder in (home, clone):
        folder.mkdir()
    for name in [*TOOLS.split(), "chmod"]:
        program = shutil.which(name)
        assert program, name
        (home / name).symlink_to(program)
    python = home / "python3"
    python.write_text(PYTHON.format(home=home, python=sys.executable))
    python.chmod(0o755)
    shutil.copy(ROOT / "run", clone)
    (clone / "pyproject.toml").write_text("martlet")
    for name in ("", "-core", "-build", "-uv"):
        (clone / f"requirements{name}.lock").write_text(f"a{name}==1 --hash=sha256:00\n")
    return Machine(home, clone)


def test_run_sets_up_once_and_hands_on_the_arguments(machine: Machine) -> None:
    code, out, err = machine.run("broker", "--data-path=a b", "")
    assert (code, out) == (0, "martlet broker --data-path=a b \n")
    assert "setting up" in err
    installs = machine.asked(" install ")
    assert len(installs) == 3
    assert [("--require-hashes" in line) for line in installs] == [True, True, False]
    assert machine.run("broker") == (0, "martlet broker\n", "")
    assert machine.asked("") == []


def test_commands_keep_bytecode_where_the_environment_turns_it_off(machine: Machine) -> None:
    """A broker compiled all its modules at each start."""
    machine.run("broker")
    script = machine.clone / ".venv" / "bin" / "martlet"
    script.write_text('#!/bin/sh\necho "${PYTHONDONTWRITEBYTECODE:-on} $PYTHONPYCACHEPREFIX"\n')
    code, out, err = machine.run("broker", PYTHONDONTWRITEBYTECODE="1")
    assert (code, out, err) == (0, f"on {machine.clone}/.venv/pycache\n", "")


@pytest.mark.parametrize(
    ("command", "lock"),
    [
        ("broker --data-path=x", "requirements-core.lock"),
        ("bench --rows mpub", "requirements-core.lock"),
        ("", "requirements-core.lock"),
        ("bench spark-read", "requirements.lock"),
        ("demo", "requirements.lock"),
        ("pipeline archive", "requirements.lock"),
    ],
)
def test_a_command_gets_the_packages_that_it_needs(
    machine: Machine, command: str, lock: str
) -> None:
    code, out, err = machine.run(*command.split())
    assert (code, out) == (0, f"martlet {command}\n")
    assert ("Spark and Java come when" in err) == (lock == "requirements-core.lock")
    assert f" 1 packages of {lock}" in err
    locked = [line.rpartition("/")[2] for line in machine.asked("--require-hashes")]
    assert locked == ["requirements-build.lock", lock]


def test_python_gets_spark_only_if_that_is_asked_for(machine: Machine) -> None:
    code, _, err = machine.run("python", "-m", "pip", "--version")
    assert code == 0
    assert " 1 packages of requirements-core.lock" in err
    code, _, err = machine.run("--full", "python", "-m", "pip", "--version")
    assert code == 0
    assert "adding Spark" in err
    assert machine.run("--full", "broker") == (0, "martlet broker\n", "")


def test_spark_comes_into_the_environment_with_the_first_command_that_needs_it(
    machine: Machine,
) -> None:
    machine.run("broker")
    machine.asked("")
    code, _, err = machine.run("demo")
    assert code == 0
    assert "adding Spark" in err
    asked = machine.asked("")
    assert not any("venv " in line.split("--")[0] for line in asked)
    (install,) = [line for line in asked if " install " in line]
    assert install.endswith("requirements.lock")
    for command in ("broker", "demo"):
        assert machine.run(command) == (0, f"martlet {command}\n", "")
    assert machine.asked("") == []


def test_a_broker_needs_no_newer_spark(machine: Machine) -> None:
    machine.run("demo")
    (machine.clone / "requirements.lock").write_text("other versions")
    assert machine.run("broker") == (0, "martlet broker\n", "")
    machine.asked("")
    assert "adding Spark" in machine.run("demo")[2]
    assert len(machine.asked(" install ")) == 1


def test_spark_that_cannot_be_added_leaves_the_core_as_it_was(machine: Machine) -> None:
    machine.run("broker")
    (machine.home / "broken-index").touch()
    assert machine.run("demo")[0] == 1
    assert machine.run("broker") == (0, "martlet broker\n", "")


def test_uv_that_pip_brings_makes_and_fills_the_environment(machine: Machine) -> None:
    machine.offer_uv()
    (machine.home / "no-ensurepip").touch()
    code, out, err = machine.run("broker")
    assert (code, out) == (0, "martlet broker\n"), err
    assert "getting uv" in err
    assert all(line.startswith("uv pip ") for line in machine.asked(" install "))
    assert not (machine.clone / ".venv.uv").exists()
    # It stays in the environment, so nothing has to bring it again.
    (machine.home / "uv-in-the-index").unlink()
    code, out, err = machine.run("demo")
    assert (code, out) == (0, "martlet demo\n")
    assert "getting uv" not in err
    (install,) = machine.asked(" install ")
    assert install.startswith("uv pip ")


def test_where_uv_cannot_install_pip_does(machine: Machine) -> None:
    machine.offer_uv()
    uv = machine.home / "uv-in-the-index"
    uv.write_text(uv.read_text().replace("broken-index", "uv-in-the-index"))
    code, out, err = machine.run("broker")
    assert (code, out) == (0, "martlet broker\n"), err
    assert "trying pip" in err
    assert len([line for line in machine.asked(" install ") if not line.startswith("uv")]) == 3


@contextmanager
def index(folder: Path) -> Iterator[str]:
    """An index of packages, which is served from a folder."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


@pytest.mark.parametrize("is_genuine", [True, False])
def test_a_python_without_pip_and_venv_fetches_uv(
    machine: Machine, tmp_path: Path, is_genuine: bool
) -> None:
    (machine.home / "has-ssl").touch()
    (machine.home / "no-pip").touch()
    (machine.home / "no-ensurepip").touch()
    page = tmp_path / "simple" / "uv"
    page.mkdir(parents=True)
    wheel = page / f"uv-1.2-py3-none-manylinux_2_17_{os.uname().machine}.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("uv-1.2.data/scripts/uv", UV.format(home=machine.home))
    others = ("uv-1.1-py3-none-manylinux_2_17_x86_64.whl", "uv-1.2-py3-none-win_amd64.whl")
    names = [others[0], wheel.name, others[1]]
    links = [f'<a href="/simple/uv/{name}#sha256=00">{name}</a>' for name in names]
    (page / "index.html").write_text("\n".join(links))
    found = hashlib.sha256(wheel.read_bytes() if is_genuine else b"another").hexdigest()
    lock = f"uv==1.2 \\\n    --hash=sha256:{found}\n"
    (machine.clone / "requirements-uv.lock").write_text(lock)
    with index(tmp_path) as url:
        code, out, err = machine.run("broker", PIP_INDEX_URL=url)
    if is_genuine:
        assert (code, out) == (0, "martlet broker\n"), err
        assert all(line.startswith("uv pip ") for line in machine.asked(" install "))
    else:
        assert code == 1
        assert "cannot make a virtual environment" in err


def test_a_changed_lock_file_brings_the_environment_up_to_date(machine: Machine) -> None:
    machine.run()
    machine.asked("")
    (machine.clone / "requirements-core.lock").write_text("other versions")
    code, _, err = machine.run()
    assert code == 0
    assert "up to date" in err
    asked = machine.asked("-m ")
    assert not any("venv " in line.split("--")[0] for line in asked)
    assert len([line for line in asked if " install " in line]) == 3


def test_an_update_that_fails_keeps_the_environment_and_is_tried_again(machine: Machine) -> None:
    machine.run()
    (machine.clone / "requirements-core.lock").write_text("other versions")
    (machine.home / "broken-index").touch()
    code, out, err = machine.run()
    assert (code, out) == (1, "")
    assert "no such package" in err
    assert "mend it and run this again" in err
    (machine.home / "broken-index").unlink()
    machine.asked("")
    assert machine.run()[0] == 0
    assert machine.asked("-m venv") == []


def test_a_set_up_that_was_cut_short_starts_afresh(machine: Machine) -> None:
    half = machine.clone / ".venv" / "lib" / "half a package"
    half.mkdir(parents=True)
    assert machine.run()[:2] == (0, "martlet \n")
    assert not half.exists()


def test_a_clone_that_was_moved_gets_a_new_environment(machine: Machine) -> None:
    machine.run()
    machine.clone = machine.clone.rename(machine.clone.with_name("elsewhere"))
    machine.asked("")
    assert machine.run()[0] == 0
    assert len(machine.asked("-m venv")) == 1


def test_a_python_without_ensurepip_is_filled_by_its_own_pip(machine: Machine) -> None:
    (machine.home / "no-ensurepip").touch()
    assert machine.run()[:2] == (0, "martlet \n")
    installs = machine.asked(" install ")
    assert len(installs) == 3
    assert all(f"--python {machine.clone}/.venv/bin/python" in line for line in installs)


def test_without_any_way_it_names_the_ways_out(machine: Machine) -> None:
    (machine.home / "no-ensurepip").touch()
    (machine.home / "no-pip").touch()
    code, _, err = machine.run()
    assert code == 1
    assert str(machine.home / "python3") in err
    for way_out in ("uv ", "python3-venv", "PYTHON="):
        assert way_out in err


def test_a_python_too_old_is_no_python(machine: Machine) -> None:
    code, _, err = machine.run(TOO_OLD="1")
    assert code == 1
    assert "no Python 3.11 or later is on PATH" in err
    code, _, err = machine.run(TOO_OLD="1", PYTHON="python3")
    assert code == 1
    assert "PYTHON=python3 is not a Python 3.11 or later" in err


def test_two_at_once_set_up_once(machine: Machine) -> None:
    both = [machine.start(str(number), INSTALL_S="0.2") for number in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert said == ["martlet 0\n", "martlet 1\n"]
    assert len(machine.asked("-m venv")) == 1


def test_downloads_are_shown_as_they_come(machine: Machine) -> None:
    (machine.home / "shows-downloads").touch()
    process = machine.start("broker")
    assert process.stderr is not None
    seen: list[str] = []
    while not seen or "Downloading" not in seen[-1]:
        seen.append(process.stderr.readline())
        assert seen[-1], seen
    (machine.home / "has-been-seen").touch()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "martlet broker\n")
    assert "Collecting" not in "".join([*seen, err])


def began(process_id: int) -> str:
    """When a process began, as Linux counts it."""
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()[19]


def test_the_lock_of_a_dead_process_is_taken_over(machine: Machine) -> None:
    dead = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    # Named with its start: its id alone may be another's by the time that it is looked at.
    (machine.clone / ".venv.lock").symlink_to(f"{dead.pid}@{began(dead.pid)}")
    dead.communicate()
    code, out, err = machine.run()
    assert (code, out) == (0, "martlet \n"), err
    assert "waiting for process" not in err
    assert not (machine.clone / ".venv.lock").is_symlink()


def test_the_lock_of_a_dead_process_with_a_reused_id_is_taken_over(machine: Machine) -> None:
    (machine.clone / ".venv.lock").symlink_to(f"{os.getpid()}@{int(began(os.getpid())) - 1}")
    code, out, err = machine.run()
    assert (code, out) == (0, "martlet \n"), err
    assert "waiting for process" not in err


@pytest.mark.parametrize("with_start", [True, False], ids=["with-its-time", "as-older-ones-wrote"])
def test_the_lock_of_a_process_that_lives_is_waited_for(machine: Machine, with_start: bool) -> None:
    lock = machine.clone / ".venv.lock"
    holder = str(os.getpid())
    lock.symlink_to(f"{holder}@{began(os.getpid())}" if with_start else holder)
    process = machine.start()
    assert process.stderr is not None
    assert process.stderr.readline().startswith(f"run: waiting for process {holder}, which")
    lock.unlink()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "martlet \n"), err


def test_a_lock_that_cannot_be_made_is_an_error(machine: Machine) -> None:
    (machine.clone / ".venv.lock").touch()
    code, _, err = machine.run()
    assert code == 1
    assert "cannot make" in err
