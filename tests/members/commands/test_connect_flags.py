"""The flags that reach members: one set for all verbs, as flags or from the environment."""

import inspect
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.commands.cli import app as groupcert
from groupcert.members.commands.connect_flags import ConnectFlags, connecting
from tests.certificates import Authority

CALLING = (("status",), ("replica",), ("load",), ("bench", "group"))


def run(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """Returns what a verb was given, as text."""
    app = typer.Typer()

    @app.command()
    @connecting
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
    for name in ConnectFlags._fields:
        assert f"--{name.replace('_', '-')}" in shown


def test_a_verb_without_the_parameter_is_a_mistake() -> None:
    def verb(other: int = 3) -> None:
        """Calls nobody."""

    with pytest.raises(AssertionError):
        connecting(verb)
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
