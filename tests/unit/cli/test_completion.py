"""What a shell completes."""

from __future__ import annotations

import importlib
import shutil
import subprocess

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
    known = {"pipeline": "JOBS", "completion": "_SCRIPTS", "replicas": "_COUNTS"}.get(
        name, "ACTIONS"
    )
    if name != "log":  # argparse has its actions
        assert sorted(getattr(module, known)) == sorted(command.actions)


def test_the_script_of_bash_completes(capsys: pytest.CaptureFixture[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash on PATH")
    assert main(["bash"]) == 0
    script = capsys.readouterr().out
    program = (
        'martlet() { printf "%s\\n" "$3-one" "$3-two"; }\n'
        f"{script}\nCOMP_WORDS=(martlet x) COMP_CWORD=1\n_martlet\n"
        'printf "%s " "${COMPREPLY[@]}"'
    )
    done = subprocess.run([bash, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "x-one x-two "


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tcsh"]) == 2
    assert "bash|zsh|fish" in capsys.readouterr().err
