"""The addresses of all commands: flags, environment, config file."""

from __future__ import annotations

import os
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from martlet.cli import config
from martlet.cli.broker_http import BrokerHttpOptions
from martlet.cli.nsq_tools.pub import PublishOptions
from martlet.cli.nsq_tools.tail import TailOptions
from martlet.cli.operations.peek import PeekOptions
from martlet.cli.start import arguments
from martlet.options import OptionError
from martlet.options.addresses import (
    changing_config,
    config_path,
    default_addresses,
    read_config,
)
from martlet.pipeline.audit.options import AuditOptions


@pytest.fixture(autouse=True)
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "somewhere" / "config.toml"
    monkeypatch.setenv("MARTLET_CONFIG", str(path))
    for name in ("MARTLET_ADDRESS", "MARTLET_LOOKUP", "MARTLET_OPERATOR_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return path


def set_config(*words: str) -> int:
    return config.main(["set", *words])


@pytest.mark.parametrize("flag", ["address", "nsqd-http-address"])
def test_both_names_of_a_flag_mean_the_same(flag: str) -> None:
    command = arguments("peek", "", PeekOptions)
    values, _ = command.read([f"--{flag}=a:1", "--address=b:2", f"-{flag}", "c:3"])
    assert values["nsqd_http_addresses"] == ("a:1", "b:2", "c:3")


@pytest.mark.parametrize("key", ["address", "nsqd_http_address"])
def test_both_keys_of_a_file_mean_the_same(key: str, tmp_path: Path) -> None:
    path = tmp_path / "peek.toml"
    path.write_text(f'{key} = ["a:1"]\n')
    values, warnings = arguments("peek", "", PeekOptions).read([f"--config={path}"])
    assert (values["nsqd_http_addresses"], warnings) == (("a:1",), [])


def test_a_flag_comes_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(OptionError, match="martlet config set address"):
        BrokerHttpOptions()
    assert set_config("lookup", "file:1", "file:2") == 0
    assert BrokerHttpOptions().lookupd_http_addresses == ("file:1", "file:2")
    assert TailOptions(topics=("t",)).lookupd_http_addresses == ("file:1", "file:2")
    monkeypatch.setenv("MARTLET_ADDRESS", "environment:1, environment:2")
    options = BrokerHttpOptions()
    assert options.nsqd_http_addresses == ("environment:1", "environment:2")
    assert options.lookupd_http_addresses == ()
    assert PublishOptions(topic="t").nsqd_http_addresses == ("environment:1", "environment:2")
    assert AuditOptions().http_addresses == ("environment:1", "environment:2")
    flag = BrokerHttpOptions(lookupd_http_addresses=("flag:1",))
    assert (flag.nsqd_http_addresses, flag.lookupd_http_addresses) == ((), ("flag:1",))


def test_an_audit_of_data_folders_asks_no_default_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MARTLET_ADDRESS", "environment:1")
    assert AuditOptions(data_paths=("data",)).addresses == ()


def test_settings_are_written_shown_and_removed(
    config_file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set_config("address", "a:1", "b:2") == 0
    assert set_config("operator_token_file", 'C:\\odd "name"') == 0
    assert read_config() == {
        "address": ("a:1", "b:2"),
        "operator_token_file": ('C:\\odd "name"',),
    }
    assert BrokerHttpOptions().operator_token_file == 'C:\\odd "name"'
    monkeypatch.setenv("MARTLET_LOOKUP", "l:1")
    capfd.readouterr()
    assert config.main([]) == 0
    assert capfd.readouterr().out.splitlines() == [
        f"config file: {config_file}",
        "address = a:1, b:2 (config file)",
        "lookup = l:1 ($MARTLET_LOOKUP)",
        'operator_token_file = C:\\odd "name" (config file)',
        "trusted_broker: not set",
    ]
    assert config.main(["unset", "address"]) == 0
    assert "address" not in read_config()
    assert default_addresses() == ((), ("l:1",))
    assert [path.name for path in config_file.parent.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set"], "the setting is missing: one of address, lookup, operator_token_file"),
        (["set", "address"], "the value is missing: martlet config set address VALUE"),
        (["set", "adress", "a:1"], "there is no setting 'adress'"),
        (["set", "address", "nonsense"], "address=nonsense"),
        (["set", "address", "a b:1"], "address=a b:1 is not"),
        (["set", "address", "a\n:1"], "address=a\\x0a:1 is not"),
        (["set", "address", "a:1,b:2"], "address=a:1,b:2 is not"),
        (["set", "address", "://a:1"], "address=://a:1 is not"),
        (["set", "address", "ftp://a:1"], "address=ftp://a:1 is not"),
        (["set", "address", "user@a:1"], "address=user@a:1 is not"),
        (["set", "address", "::1:4151"], "address=::1:4151 is not"),
        (["set", "address", "a:65536"], "address=a:65536 is not"),
        (["set", "operator_token_file", "a", "b"], "has 2 values, and takes one"),
        (["set", "operator_token_file", "\udcff"], "is not text in UTF-8"),
        (["unset", "nothing"], "unset takes one of"),
        (["forget"], "no action 'forget'"),
    ],
)
def test_wrong_words_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], config_file: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        config.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not config_file.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("address = ", "is not TOML"),
        ("\udcff", "is not TOML"),
        ("address = 4151", "write a text, or a list of them"),
        ("address = ['nonsense']", "nonsense"),
        ("colour = 'red'", "there is no setting 'colour'"),
        ("# " + "x" * (1 << 16), "more than 65536 bytes"),
        ("address = ['a:1']\naddress = ['b:1']", "is not TOML"),
        ("lookup = []", "lookup is"),
    ],
)
def test_a_file_that_is_wrong_is_named(text: str, said: str, config_file: Path) -> None:
    config_file.parent.mkdir()
    config_file.write_text(text, errors="surrogateescape")
    with pytest.raises(OptionError, match=said) as refused:
        BrokerHttpOptions()
    assert str(config_file) in str(refused.value)
    # What names its brokers needs no file.
    assert BrokerHttpOptions(nsqd_http_addresses=("a:1",)).operator_token_file == ""


def test_a_wrong_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARTLET_LOOKUP", "nonsense")
    with pytest.raises(OptionError, match=r"\$MARTLET_LOOKUP: lookup=nonsense"):
        BrokerHttpOptions()


@pytest.mark.parametrize("address", ["a:1", "http://a.b-c:65535", "https://é:1", "[::1]:4151"])
def test_addresses_of_all_kinds_are_kept(address: str) -> None:
    assert set_config("address", address) == 0
    assert default_addresses() == ((address,), ())


@pytest.mark.parametrize("value", ['"\\', "line\nline", "\x00\t\x1b\x7f", "🔑", "#", "''"])
def test_each_text_is_read_as_it_was_written(value: str) -> None:
    assert set_config("operator_token_file", value) == 0
    assert read_config() == {"operator_token_file": (value,)}


@pytest.mark.parametrize("text", ["\ufeffaddress = ['a:1']\n", "address = ['a:1']\r\n"])
def test_a_file_of_an_editor_for_windows_is_read(text: str, config_file: Path) -> None:
    config_file.parent.mkdir()
    config_file.write_bytes(text.encode())
    assert read_config() == {"address": ("a:1",)}


def test_the_file_that_a_link_leads_to_is_written(config_file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("lookup = ['l:1']\n")
    config_file.parent.mkdir()
    config_file.symlink_to(real)
    assert set_config("address", "a:1") == 0
    assert config_file.is_symlink()
    assert tomllib.loads(real.read_text()) == {"lookup": ["l:1"], "address": ["a:1"]}


def test_a_file_stays_readable_for_those_who_could_read_it(config_file: Path) -> None:
    mask = os.umask(0o022)
    try:
        assert set_config("address", "a:1") == 0
        assert config_file.stat().st_mode & 0o777 == 0o644
        config_file.chmod(0o640)
        assert set_config("address", "a:2") == 0
        assert config_file.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(mask)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_neither_read_nor_replaced(
    make: Callable[[Path], None], config_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config_file.parent.mkdir()
    make(config_file)
    before = config_file.stat().st_mode
    assert set_config("address", "a:1") == 1
    assert config.main([]) == 1
    assert capfd.readouterr().err.count(f"{config_file} is not a file") == 2
    assert config_file.stat().st_mode == before


def test_a_config_file_is_turned_off_with_dev_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARTLET_CONFIG", os.devnull)
    assert read_config() == {}
    with pytest.raises(OptionError, match="is not a file"), changing_config():
        pass


def test_a_folder_that_cannot_be_made_is_named(
    config_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config_file.parent.write_text("in the way")
    assert set_config("address", "a:1") == 1
    assert str(config_file.parent) in capfd.readouterr().err
    assert config.main([]) == 1


def test_changes_at_the_same_time_are_all_kept(config_file: Path) -> None:
    started = threading.Event()

    def change() -> None:
        started.set()
        with changing_config() as settings:
            settings["lookup"] = ("l:1",)

    thread = threading.Thread(target=change)
    with changing_config() as settings:
        thread.start()
        started.wait()
        settings["address"] = ("a:1",)
    thread.join()
    assert read_config() == {"address": ("a:1",), "lookup": ("l:1",)}
    assert [path.name for path in config_file.parent.iterdir()] == ["config.toml"]


def test_a_relative_xdg_config_home_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MARTLET_CONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert config_path() == tmp_path / ".config" / "martlet" / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert config_path() == tmp_path / "xdg" / "martlet" / "config.toml"


def test_without_a_home_the_environment_is_enough(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("MARTLET_CONFIG", "HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # No entry for the user.
    with pytest.raises(OptionError, match=r"no home .* \$MARTLET_CONFIG"):
        config_path()
    assert config.main(["set", "address", "a:1"]) == 1
    assert "$MARTLET_CONFIG" in capfd.readouterr().err
    monkeypatch.setenv("MARTLET_ADDRESS", "a:1")
    monkeypatch.setenv("MARTLET_OPERATOR_TOKEN_FILE", "token")
    assert BrokerHttpOptions().nsqd_http_addresses == ("a:1",)
