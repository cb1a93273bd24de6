"""Files for TLS and tokens: what cannot serve is named before anything connects."""

import os
from pathlib import Path

import pytest

from groupcert.certifier.errors import InvalidSetting
from groupcert.members.security.credentials import Credentials, Tls, read_token, tls_of
from tests.certificates import Authority


def test_all_three_files_or_none() -> None:
    assert tls_of(None, None, None) is None
    assert tls_of("a", "c", "k") == Tls(authority="a", certificate="c", key="k")


@pytest.mark.parametrize(
    ("files", "missing", "given"),
    [
        (("a", None, None), "log_tls_certificate", "log_tls_authority is"),
        ((None, "c", "k"), "log_tls_authority", "log_tls_certificate and log_tls_key are"),
        (("a", "c", None), "log_tls_key", "log_tls_authority and log_tls_certificate are"),
    ],
)
def test_a_missing_file_is_named(
    files: tuple[str | None, str | None, str | None], missing: str, given: str
) -> None:
    with pytest.raises(InvalidSetting, match=f"a PEM file, since {given} given") as caught:
        tls_of(*files, prefix="log_tls")
    assert caught.value.name == missing


@pytest.mark.parametrize("part", ["authority", "certificate", "key"])
def test_a_file_that_is_not_there_or_has_no_pem_is_named(tmp_path: Path, part: str) -> None:
    tls = Authority(tmp_path).issue("m1")
    path = Path(getattr(tls, part))
    path.write_text("no PEM")
    with pytest.raises(InvalidSetting, match="a PEM file that can be used") as caught:
        tls.check()
    assert caught.value.name == f"tls_{part}"
    path.unlink()
    with pytest.raises(InvalidSetting, match="No such file or directory") as caught:
        tls.check()
    assert caught.value.name == f"tls_{part}"


def test_a_key_of_another_certificate_is_found(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("m1"), authority.issue("m2")
    mixed = Tls(authority=one.authority, certificate=one.certificate, key=other.key)
    with pytest.raises(InvalidSetting, match="key values mismatch"):
        mixed.check()


def test_a_stamp_changes_with_each_file(tmp_path: Path) -> None:
    tls = Authority(tmp_path).issue("m1")
    stamps = [tls.stamp()]
    for number, path in enumerate((tls.authority, tls.certificate, tls.key)):
        os.utime(path, ns=(number, number))
        stamps.append(tls.stamp())
    assert len(set(stamps)) == 4


def test_a_token_is_read_without_the_space_around_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  abc-123\n")
    assert read_token(path) == "abc-123"


@pytest.mark.parametrize("content", ["", " \n", "two words", "a\nb", "sécret", "x" * 1_025])
def test_what_cannot_be_sent_as_a_token_is_refused_and_not_told(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(InvalidSetting, match="token_file") as caught:
        read_token(path)
    assert not content.strip() or content.strip() not in str(caught.value)


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"a file with a token \(No such file"):
        read_token(tmp_path / "none")


def test_a_token_is_not_shown() -> None:
    assert "abc-123" not in repr(Credentials(token="abc-123"))
