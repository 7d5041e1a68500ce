"""What a shell completes."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

from martlet.cli.completion import main, words
from martlet.cli.main import COMMANDS


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["dea"], ["dead-letters"]),
        (["topic", "c"], ["create", "configure"]),
        (["topic", "create", "--que"], ["--queues="]),
        (["peek", "--addr"], ["--address="]),
        (["broker", "--data-p"], ["--data-path="]),
        (["pipeline", "replay", "--from-t"], ["--from-topic="]),
        (["nothing", ""], []),
        (["peek", "--address=1"], []),
    ],
)
def test_words_are_completed(typed: list[str], expected: list[str]) -> None:
    assert words(typed) == expected


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.actions])
def test_the_actions_are_those_that_the_command_has(name: str) -> None:
    command = COMMANDS[name]
    module = importlib.import_module(command.module)
    table = {
        "pipeline": "JOBS",
        "completion": "_SCRIPTS",
        "replicas": "_COUNTS",
        "dead-letters": "DeadLetterOptions.operations",
        "delayed": "DelayedOptions.operations",
        "transactions": "TransactionToolOptions.operations",
        "groups": "GroupOptions.operations",
    }.get(name, "ACTIONS")
    if name != "log":  # argparse has its actions
        assert sorted(attrgetter(table)(module)) == sorted(command.actions)


def test_the_script_of_bash_completes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bash"]) == 0
    script = capsys.readouterr().out
    program = (
        'martlet() { printf "%s\\n" "$3-one" "$3-two"; }\n'
        f"{script}\nCOMP_WORDS=(martlet x) COMP_CWORD=1\n_martlet\n"
        'printf "%s " "${COMPREPLY[@]}"'
    )
    assert run("bash", "-c", program) == "x-one x-two "


def test_no_command_is_run_by_a_flag_whose_value_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran: list[list[str]] = []

    def run(argv: list[str]) -> None:
        ran.append(argv)
        print("  --data-path PATH")

    monkeypatch.setattr("martlet.cli.main.main", run)
    assert words(["broker", "--data-path", "--"]) == ["--data-path="]
    assert ran == [["broker", "--help"]]


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file and with `martlet` on PATH, where shells have no files of a user."""
    program = tmp_path / "bin" / "martlet"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m martlet "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for name in ("HOME", "ZDOTDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "a_file").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, *arguments: str) -> str:
    """Return what a shell prints, which may say nothing else."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} on PATH")
    done = subprocess.run(
        [path, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


LINES = [
    ("martlet dea", "martlet dead-letters "),
    ("martlet topic create --que", "martlet topic create --queues="),
    ("martlet config unset a_f", "martlet config unset a_file "),
]


@pytest.mark.parametrize(("line", "completed"), LINES)
@pytest.mark.usefixtures("in_folder")
def test_zsh_completes(line: str, completed: str) -> None:
    assert f"<{completed}>" in run("zsh", "-f", "-c", ZSH, "zsh", line)


ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1= PS2= RPS1= ; unsetopt prompt_sp; stty -echo"
zpty -w shell "source <(martlet completion zsh)"
zpty -w shell "show() { print -r -- \<\$BUFFER\>; zle kill-whole-line }; zle -N show"
zpty -w shell "bindkey '^I' complete-word '^X' show; print -r -- REA''DY"
zpty -r shell out '*READY*'
zpty -w -n shell "$1"$'\t\C-x'
zpty -r shell out '*<*>*'
print -r -- "$out"
zpty -d shell
"""
"""Types a line, TAB and a key that shows the line, into a shell at a terminal."""


@pytest.mark.usefixtures("in_folder")
def test_the_script_of_zsh_is_a_function_to_be_loaded(
    capsys: pytest.CaptureFixture[str], in_folder: Path
) -> None:
    assert main(["zsh"]) == 0
    (in_folder / "_martlet").write_text(capsys.readouterr().out)
    program = (
        "autoload -Uz compinit; fpath=($PWD $fpath); compinit -u; print ${_comps[martlet]}\n"
        "_files() { print files }; words=(martlet nothing ''); CURRENT=3; _martlet\n"
    )
    assert run("zsh", "-f", "-c", program) == "_martlet\nfiles\n"


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        *((line, completed.split()[-1]) for line, completed in LINES),
        ("martlet broker --config=a_f", "--config=a_file"),
        ("martlet topic del", "delete"),
    ],
)
@pytest.mark.usefixtures("in_folder")
def test_fish_completes(line: str, completed: str) -> None:
    program = f"martlet completion fish | source; complete -C '{line}'"
    shown = run("fish", "--no-config", "-c", program).splitlines()
    assert [line.split("\t")[0] for line in shown] == [completed]
