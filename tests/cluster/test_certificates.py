"""Certificates by openssl serve: those of the script, and those of the lines in the README."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from groupcert.members.security.credentials import Credentials, Tls
from tests.cluster.certificates import main
from tests.members.wire.test_channels import ask, serving

README = Path(__file__).parents[2] / "members" / "security" / "README.md"

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")


def check_serves(folder: Path, server: str, client: str) -> None:
    """Asserts that a client gets an answer of a server, each with its own files."""
    authority = folder / "authority.pem"
    strict = ["openssl", "verify", "-x509_strict", "-CAfile", str(authority)]
    for name in (server, client):
        subprocess.run([*strict, str(folder / f"{name}.pem")], check=True, capture_output=True)
    own, shown = (
        Tls(authority=authority, certificate=folder / f"{name}.pem", key=folder / f"{name}.key")
        for name in (server, client)
    )
    with serving(own) as address:
        assert ask(address, Credentials(tls=shown)) == "c"


def test_the_script_makes_what_members_and_clients_need(tmp_path: Path) -> None:
    main([str(tmp_path / "new"), "m1=10.213.7.11,m1.example", "shop"])
    authority = (tmp_path / "new" / "authority.pem").read_bytes()
    main([str(tmp_path / "new"), "m2"])
    assert (tmp_path / "new" / "authority.pem").read_bytes() == authority
    check_serves(tmp_path / "new", "m1", "shop")
    check_serves(tmp_path / "new", "m2", "m1")
    shown = subprocess.run(
        ["openssl", "x509", "-in", str(tmp_path / "new" / "m1.pem"), "-noout", "-text"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "DNS:m1, IP Address:10.213.7.11, DNS:m1.example" in shown.stdout


def test_the_script_says_what_openssl_says(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="usage"):
        main([str(tmp_path)])
    with pytest.raises(SystemExit, match=r"openssl req -x509 .*x/y"):
        main([str(tmp_path), "x/y"])


def test_the_lines_in_the_readme_serve(tmp_path: Path) -> None:
    (lines,) = re.findall(r"```sh\n(new=.*?)```", README.read_text(), re.DOTALL)
    assert len(lines.splitlines()) <= 8
    subprocess.run(["sh", "-e", "-c", lines], cwd=tmp_path, check=True, capture_output=True)
    check_serves(tmp_path, "m1", "shop")
