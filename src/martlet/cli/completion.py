"""``martlet completion``: completes commands, actions and flags in a shell.

The script that it prints asks ``martlet completion words WORD ...`` at each TAB. A command's flags
are read from its ``--help``, so they are never out of date.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterable, Sequence

_SCRIPTS = {
    "bash": """_martlet() {
    local IFS=$'\\n'
    COMPREPLY=($(martlet completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace
}
complete -o default -F _martlet martlet
""",
    "zsh": """#compdef martlet
_martlet() {
    local -a found
    found=(${(f)"$(martlet completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ! $#found )); then
        _files
        return
    fi
    local -a flags=(${(M)found:#*=}) others=(${found:#*=})
    compadd -S '' -a flags
    compadd -a others
}
if [[ ${funcstack[1]-} == _martlet ]]; then
    _martlet
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _martlet martlet
fi
""",
    "fish": """function __martlet
    set -l last (commandline -ct)
    set -l words (commandline -opc) "$last"
    set -l found (martlet completion words $words[2..-1] 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
        return
    end
    set -l flag (string match -r -- '^--[^=]+=' "$last")
    for path in (__fish_complete_path (string replace -- "$flag" '' "$last"))
        printf '%s\\n' "$flag$path"
    end
end
complete -c martlet -f -a '(__martlet)'
""",
}
USAGE = """usage: martlet completion bash|zsh|fish

Print a script that completes martlet's commands, actions and flags. For one shell:

    source <(martlet completion bash)             # or zsh
    martlet completion fish | source

For every shell put that line into ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish."""
_FLAG = re.compile(r"^  (?:-h, )?(--[a-z][a-z0-9-]*)( [A-Z\[<a-z])?", re.MULTILINE)


def main(argv: Sequence[str]) -> int:
    """Print a script, or the words that can replace the last one."""
    if argv and argv[0] == "words":
        for word in words(argv[1:] or [""]):
            print(word)
        return 0
    if argv and argv[0] in _SCRIPTS:
        print(_SCRIPTS[argv[0]], end="")
        return 0
    if argv and argv[0] in ("-h", "-help", "--help"):
        print(USAGE)
        return 0
    print(USAGE, file=sys.stderr)
    return 2


def words(typed: Sequence[str]) -> list[str]:
    """Return what the last word can become, after those before it."""
    from martlet.cli.main import COMMANDS

    *before, last = typed
    if not before:
        return _beginning(last, COMMANDS)
    command = COMMANDS.get(before[0])
    if command is None or "=" in last:
        return []
    if last.startswith("-"):
        return _beginning(last, _flags(before))
    if len(before) == 1:
        return _beginning(last, command.actions)
    return []


def _beginning(last: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(last)]


def _flags(before: Sequence[str]) -> list[str]:
    """Return the flags in a command's help, or its action's; those with a value end in ``=``."""
    from martlet.cli.main import COMMANDS
    from martlet.cli.main import main as martlet

    shown = io.StringIO()
    name, *others = before
    # No other word: with "--data-path --help" a broker would begin, in a folder of that name.
    actions = [other for other in others[:1] if other in COMMANDS[name].actions]
    for arguments in ([name, *actions], [name]):
        shown.seek(0)
        shown.truncate()
        with (
            contextlib.redirect_stdout(shown),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.suppress(SystemExit),
        ):
            martlet([*arguments, "--help"])
        if flags := _FLAG.findall(shown.getvalue()):
            return list(dict.fromkeys(f"{flag}=" if value else flag for flag, value in flags))
    return []
