"""``martlet config``: the defaults of all commands, in the client's config file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from martlet.cli import tool
from martlet.options.addresses import (
    CONFIG_VARIABLE,
    SETTINGS,
    changing_config,
    check_setting,
    config_path,
    in_environment,
    read_config,
)
from martlet.options.checks import require_action
from martlet.options.flag import OptionError, option
from martlet.options.options import LogOptions

ACTIONS = ("show", "set", "unset")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(LogOptions):
    """The options of ``martlet config``."""

    action: str = option("show", f"one of {', '.join(ACTIONS)}", section="what to do")
    setting: str = option("", f"one of {', '.join(SETTINGS)}")
    values: tuple[str, ...] = option((), "its value; may be given several times", name="value")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_action(self.action, ACTIONS)
        if self.action == "show":
            if self.setting:
                raise OptionError("show takes no setting, and shows all")
            return
        if not self.setting:
            raise OptionError(f"the setting is missing: one of {', '.join(SETTINGS)}")
        if self.action == "set":
            if not self.values:
                raise OptionError(
                    f"the value is missing: martlet config set {self.setting} VALUE [VALUE ...]"
                )
            check_setting("set", self.setting, self.values)
        elif self.values or self.setting not in SETTINGS:
            raise OptionError(f"unset takes one of {', '.join(SETTINGS)}, and no value")


DESCRIPTION = (
    "Show the defaults of all commands, or set or unset one: the addresses of brokers or of lookup"
    " daemons, and the operator's token. A flag comes before the environment, the environment"
    f" before the config file, which ${CONFIG_VARIABLE} may name."
)


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code of the process."""
    flags, words = tool.split(ConfigOptions, argv)
    action, setting, *values = [*words, "", ""][: max(2, len(words))]
    named = [("action", action), ("setting", setting), *(("value", value) for value in values)]
    flags += [f"--{name}={word}" for name, word in named if word]
    options = tool.options(
        "config", DESCRIPTION, ConfigOptions, flags, "[show | set NAME VALUE ... | unset NAME]"
    )
    try:
        return tool.run_alone(lambda: _run(options))
    except OptionError as error:
        _log.critical("%s", error)
        return 1


async def _run(options: ConfigOptions) -> None:
    if options.action == "show":
        await tool.show(_shown(read_config()))
        return
    with changing_config() as settings:
        if options.action == "set":
            settings[options.setting] = options.values
        else:
            settings.pop(options.setting, None)
    await tool.show([f"wrote {config_path()}"])


def _shown(config: dict[str, tuple[str, ...]]) -> list[str]:
    lines = [f"config file: {config_path()}"]
    for name, setting in SETTINGS.items():
        values = in_environment(name)
        source = f"${setting.variable}" if values else "config file"
        values = values or config.get(name, ())
        lines.append(f"{name} = {', '.join(values)} ({source})" if values else f"{name}: not set")
    return lines
