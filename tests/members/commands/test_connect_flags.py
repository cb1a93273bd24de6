"""The flags that reach members: one set for all verbs, as flags or from the environment."""

import inspect
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.commands.cli import app as groupcert
from groupcert.members.commands.connect_flags import ConnectFlags, connecting
from groupcert.members.errors.usage import InvalidOption
from tests.certificates import Authority

CALLING = (("status",), ("replica",), ("load",), ("bench", "group"))


def run(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """Returns what a verb was given, as text."""
    app = typer.Typer()

    @app.command()
    @connecting(several=True, former="--member")
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
        ((), {}, ("127.0.0.1:7101",)),
        ((), {"GROUPCERT_ADDRESS": "m1:1"}, ("m1:1",)),
        (("m2:2", "[::1]:3,m4:4"), {"GROUPCERT_ADDRESS": "m1:1"}, ("m2:2", "[::1]:3", "m4:4")),
        (("--member", "m2:2", "--member", "m3:3"), {}, ("m2:2", "m3:3")),
        (("--member", "m2:2"), {"GROUPCERT_ADDRESS": "m1:1"}, ("m2:2",)),
    ],
)
def test_addresses_stand_behind_the_verb_or_in_the_environment(
    words: tuple[str, ...], environment: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert f"addresses={expected!r}" in run(*words, environment=environment)


@pytest.mark.parametrize("verb", ["status", "health", "backup --out b", "group leave", "load"])
@pytest.mark.parametrize("text", ["m1", "m1:0", "::1:7101", "m1:7101,", "nats://m1:4222"])
def test_a_malformed_address_is_told_alike_by_every_verb(verb: str, text: str) -> None:
    raised = CliRunner().invoke(groupcert, [*verb.split(), text]).exception
    assert isinstance(raised, InvalidOption)
    wrong = text.rpartition(",")[2]
    shape = "host:port, such as 127.0.0.1:7101 or [::1]:7101"
    assert str(raised) == f"ADDRESS is {wrong!r}: expected {shape}"


def test_one_member_is_not_several() -> None:
    raised = CliRunner().invoke(groupcert, ["status", "m1:1,m2:2"]).exception
    assert str(raised) == "ADDRESS is 'm1:1,m2:2': expected one member's"


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
        ("group set lag=3 --address 127.0.0.1:8", "127.0.0.1:8"),
        ("group settings", "127.0.0.1:7"),
        ("group settings --address 127.0.0.1:8", "127.0.0.1:8"),
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
    called = []

    def credentials(connect: ConnectFlags) -> None:
        called.append(connect.address)
        raise ConnectionAbortedError

    monkeypatch.setattr(ConnectFlags, "credentials", credentials)
    runner = CliRunner(env={"GROUPCERT_ADDRESS": "127.0.0.1:7"})
    assert isinstance(runner.invoke(groupcert, words.split()).exception, ConnectionAbortedError)
    assert called == [asked]
