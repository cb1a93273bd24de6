"""The flags that reach members: one set for all verbs, as flags or from the environment."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.commands.cli import app as groupcert
from groupcert.members.commands.connect_flags import (
    DEFAULT_ADDRESS,
    ConnectFlags,
    connecting,
)
from groupcert.members.demo.lasting_group import Places, alone_in
from groupcert.members.errors.usage import InvalidOption, NothingUp
from tests.certificates import Authority
from tests.members.commands.test_failures import VERBS

CALLING = (("status",), ("replica",), ("load",))


def run(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """Returns what a verb was given, as text."""
    app = typer.Typer()

    @app.command()
    @connecting(several=True)
    def verb(connect: ConnectFlags, other: int = 3) -> None:
        typer.echo(f"{other} {connect!r}")

    result = CliRunner().invoke(app, list(arguments), env=environment or {})
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_flags_win_over_the_environment() -> None:
    said = run(
        "--tls-key", "k", environment={"GROUPCERT_TLS_KEY": "e", "GROUPCERT_TOKEN_FILE": "t"}
    )
    flags = ConnectFlags(None, None, Path("k"), Path("t"))
    assert said == f"3 {flags!r}"


def test_other_options_stay() -> None:
    assert run("--other", "4").startswith("4 ConnectFlags(tls_authority=None")


@pytest.mark.parametrize("verb", CALLING, ids=" ".join)
def test_every_verb_that_calls_members_has_them(verb: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(groupcert, [*verb, "--help"], env={"COLUMNS": "200"}).output
    for name in ConnectFlags._fields[:4]:
        assert f"--{name.replace('_', '-')}" in shown


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        ((), {"GROUPCERT_ADDRESS": "m1:1"}, ("m1:1",)),
        (("m2:2", "[::1]:3,m4:4"), {"GROUPCERT_ADDRESS": "m1:1"}, ("m2:2", "[::1]:3", "m4:4")),
    ],
)
def test_addresses_stand_behind_the_verb_or_in_the_environment(
    words: tuple[str, ...], environment: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert f"given={expected!r}" in run(*words, environment=environment)


def called(**flags: Any) -> tuple[str, ...]:
    """Returns the members that a verb calls with these flags."""
    return ConnectFlags(None, None, None, None, **flags).addresses


PLACES = Places(group="shop", members={"m1": "a:1", "m2": "b:2"}, consoles={})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which verbs are called, with the ports of a group that was up there once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".groupcert").mkdir()
    elsewhere = replace(PLACES, members={"m1": "c:3", "m2": "d:4"})
    elsewhere.write(tmp_path / ".groupcert" / "group.json")
    return tmp_path


def test_without_an_address_it_is_the_group_that_is_up_in_the_folder(here: Path) -> None:
    folder = Path(".groupcert")
    with alone_in(folder):
        with pytest.raises(NothingUp):  # It has begun to start, where nobody knows.
            assert called()
        PLACES.write(folder / "up.json")
        assert called() == ("a:1", "b:2")
        assert ConnectFlags(None, None, None, None).address == "a:1"
        assert called(given=("e:5",)) == ("e:5",)
    folder.rename("other")
    with alone_in(Path("other")):
        PLACES.write(here / "other" / "up.json")
        assert called(data_folder=Path("other")) == ("a:1", "b:2")
        assert called() == (DEFAULT_ADDRESS,)


CHANGING = (
    "set lag=3",
    "mode multi-primary",
    "primary m1",
    "expel m1",
    "forget m1",
    "leave",
    "rejoin",
    "skip 1",
    "restart --run {name}",
)


@pytest.mark.parametrize(
    "line",
    [
        "status",
        "status --applier",
        "health",
        "load",
        "backup --out b",
        "group settings",
        *(f"group {line}" for line in CHANGING),
    ],
)
def test_every_verb_goes_to_the_group_of_the_folder(
    here: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(asked_by(monkeypatch, line.split(), {}), NothingUp)
    with alone_in(Path(".groupcert")):
        PLACES.write(Path(".groupcert/up.json"))
        assert asked_by(monkeypatch, line.split(), {}) == "a:1"


def test_every_verb_that_changes_a_group_can_be_told_which_one() -> None:
    parameters = {
        " ".join(words): {each.name for each in verb.params} for words, verb in VERBS.items()
    }
    calling = {words for words, names in parameters.items() if "token_file" in names}
    changing = {f"group {line.split()[0]}" for line in CHANGING}
    assert {words for words in calling if words.startswith("group ")} == {
        *changing,
        "group settings",
    }
    assert {words for words in calling if "group" in parameters[words]} == {
        *changing,
        "load",
        "postgresql ddl",
    }


def test_a_group_that_is_down_is_not_looked_for_at_other_ports(here: Path) -> None:
    with alone_in(Path(".groupcert")):
        PLACES.write(Path(".groupcert/up.json"))
    with pytest.raises(NothingUp, match=r"nothing is up in \.groupcert: `groupcert up` starts"):
        assert called()
    with pytest.raises(InvalidSetting, match="--data-folder is 'none': expected a folder of"):
        assert called(data_folder=Path("none"))
    with pytest.raises(InvalidOption, match="--data-folder is 'x': expected no ADDRESS beside"):
        assert called(data_folder=Path("x"), given=("a:1",))


def test_a_folder_that_is_given_wins_over_the_environment() -> None:
    assert "given=('m1:1',)" in run(environment={"GROUPCERT_ADDRESS": "m1:1"})
    said = run("--data-folder", "x", environment={"GROUPCERT_ADDRESS": "m1:1"})
    assert "given=(), data_folder=PosixPath('x')" in said


def test_a_verb_without_the_parameter_is_a_mistake() -> None:
    def verb(other: int = 3) -> None:
        """Calls nobody."""

    with pytest.raises(AssertionError):
        connecting()(verb)
    assert "other" in inspect.signature(verb).parameters


def test_flags_become_credentials_that_were_checked(tmp_path: Path) -> None:
    tls = Authority(tmp_path).issue("shop")
    (tmp_path / "token").write_text("abc")
    files = Path(tls.authority), Path(tls.certificate), Path(tls.key)
    credentials = ConnectFlags(*files, tmp_path / "token").credentials()
    assert credentials.tls == tls
    assert credentials.token == "abc"
    assert ConnectFlags(None, None, None, None).credentials().tls is None
    with pytest.raises(InvalidSetting, match="tls_key"):
        ConnectFlags(*files[:2], None, None).credentials()
    with pytest.raises(InvalidSetting, match="tls_certificate"):
        ConnectFlags(files[0], tmp_path / "none", files[2], None).credentials()


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("group set lag=3", "127.0.0.1:7"),
        ("group set lag=3 127.0.0.1:8", "127.0.0.1:8"),
        ("group settings", "127.0.0.1:7"),
        ("group settings 127.0.0.1:8", "127.0.0.1:8"),
        ("group leave", "127.0.0.1:7"),
        ("status", "127.0.0.1:7"),
        ("backup --out b", "127.0.0.1:7"),
        ("health", "127.0.0.1:7101"),
    ],
)
def test_a_verb_calls_the_member_that_the_environment_names(
    words: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them: one that did not would change another group than the one that is meant."""
    environment = {"GROUPCERT_ADDRESS": "127.0.0.1:7"}
    assert asked_by(monkeypatch, words.split(), environment) == asked


def asked_by(
    monkeypatch: pytest.MonkeyPatch, words: Sequence[str], environment: Mapping[str, str]
) -> object:
    """Returns the address of the member that a verb is about to call, or why it calls none."""
    addresses: list[str] = []

    def credentials(connect: ConnectFlags) -> None:
        addresses.append(connect.address)
        raise ConnectionAbortedError

    monkeypatch.setattr(ConnectFlags, "credentials", credentials)
    raised = CliRunner(env=environment).invoke(groupcert, words).exception
    return addresses[0] if isinstance(raised, ConnectionAbortedError) else raised
