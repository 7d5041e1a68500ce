"""The command that hands on to the others."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import martlet
from martlet.cli import main as main_module
from martlet.cli.main import COMMANDS, Command, main

ROOT = Path(__file__).parents[3]


def test_the_console_script_prints_its_version() -> None:
    script = Path(sys.executable).with_name("martlet")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"martlet {martlet.__version__}\n"


def test_the_package_can_be_run_as_a_module() -> None:
    command = [sys.executable, "-m", "martlet", "brokr"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "did you mean 'broker'?" in done.stderr) == (2, True)


IMPORTED_ALONE = """
import importlib, sys, traceback
for name in sys.argv[1:]:
    for known in [known for known in sys.modules if known.partition(".")[0] == "martlet"]:
        del sys.modules[known]
    try:
        assert callable(importlib.import_module(name).main), name
    except Exception:
        traceback.print_exc()
"""


def test_every_command_of_the_table_is_there() -> None:
    """Each with no other module of the package imported before it."""
    names = [command.module for command in COMMANDS.values()]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_ALONE, *names],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert not done.stderr


def test_commands_of_a_checkout_are_named_as_such_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main_module, "__file__", str(tmp_path / "a" / "b" / "c" / "main.py"))
    assert main(["bench", "--rows", "mpub", "--against", "127.0.0.1:4150"]) == 1
    assert "run ./run bench in a checkout" in capsys.readouterr().err


def test_in_a_checkout_its_benchmarks_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list"]) == 0
    assert "hot-path" in capsys.readouterr().out.split()


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name}" in said
        assert command.help in said


def test_without_a_command_the_usage_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: martlet COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"), [("brokr", "broker"), ("pipelines", "pipeline"), ("--versoin", "--version")]
)
def test_a_slip_gets_a_suggestion(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([typed]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert repr(typed) in said.err
    assert f"did you mean {meant!r}?" in said.err


def test_a_word_like_no_command_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert ", ".join(COMMANDS) in capsys.readouterr().err


def test_a_command_gets_its_arguments_and_gives_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got = []

    def record(arguments: list[str]) -> int:
        got.append(arguments)
        return 7

    add_main(monkeypatch, record)
    assert main(["probe", "-a", "--help"]) == 7
    assert got == [["-a", "--help"]]


def add_main(monkeypatch: pytest.MonkeyPatch, run: Callable[[list[str]], int]) -> None:
    """Add the command `probe`, which does this."""
    module = ModuleType("martlet_test_command")
    module.main = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(COMMANDS, "probe", Command(module.__name__, "a probe", "spark"))


def add_command(monkeypatch: pytest.MonkeyPatch, folder: Path, source: str) -> None:
    """Add the command `asks`, a module of that source."""
    (folder / "asks_at_import.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(COMMANDS, "asks", Command("asks_at_import", "a probe", "spark"))
    monkeypatch.delitem(sys.modules, "asks_at_import", raising=False)


def test_numpy_has_threads_only_if_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The threads of numpy took an eighth of a second of a processor as a broker started."""
    source = (
        'import os\nthreads = os.environ["OPENBLAS_NUM_THREADS"]\n'
        "main = lambda arguments: print(threads) or 0\n"
    )
    for setting, used in ((None, "1"), ("4", "4")):
        add_command(monkeypatch, tmp_path, source)
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
        if setting is not None:
            monkeypatch.setenv("OPENBLAS_NUM_THREADS", setting)
        assert main(["asks"]) == 0
        assert capsys.readouterr().out == f"{used}\n"


def test_a_command_is_imported_without_looking_for_garbage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (
        "import gc\nwhile_imported = gc.isenabled()\n"
        "main = lambda arguments: print(while_imported, gc.isenabled()) or 0\n"
    )
    add_command(monkeypatch, tmp_path, source)
    assert main(["asks"]) == 0
    assert capsys.readouterr().out == "False True\n"


def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_command(monkeypatch, tmp_path, "import a_package_nobody_has")
    assert main(["asks"]) == 1
    said = capsys.readouterr().err
    assert "a_package_nobody_has" in said
    assert "pip install '.[spark]' in a clone of Martlet's repository" in said


def test_a_missing_module_of_our_own_is_a_bug_and_not_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(COMMANDS, "lost", Command("martlet.cli.lost", "is not there", "spark"))
    with pytest.raises(ModuleNotFoundError, match=r"martlet\.cli\.lost"):
        main_module.main(["lost"])


ENDLESS = """
import asyncio, sys
from martlet.cli import main as apps, tool

async def work():
    async with asyncio.TaskGroup() as group:
        group.create_task(write())

async def write():
    while True:
        print("y" * 1000)
        await asyncio.sleep(0)

def main(argv):
    return tool.run(work, lambda: None)

apps.COMMANDS["endless"] = apps.Command(__name__, "writes")
sys.exit(apps.main(["endless"]))
"""
"""A command like those of the tools, which writes until it is stopped."""


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "martlet", "--help"],
        ["-m", "martlet", "broker", "--help"],
        ["-c", ENDLESS],
    ],
    ids=["help", "the help of a command", "a tool"],
)
def test_a_command_ends_silently_when_its_reader_goes(command: list[str]) -> None:
    """`martlet --help | head -1` ended in a traceback."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, *command],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_another_broken_pipe_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(argv: list[str]) -> int:
        raise BrokenPipeError("a connection broke")

    add_main(monkeypatch, fail)
    with pytest.raises(BrokenPipeError, match="a connection broke"):
        main(["probe"])
