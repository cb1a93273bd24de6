"""Certificates for a group in containers, or for a demonstration, by openssl.

    python -m tests.cluster.certificates FOLDER m1=10.213.7.11 log1=10.213.7.21 shop

makes an authority in the folder, if there is none, and for each name a certificate of it: for that
host, for the addresses behind `=`, separated by commas, and for this machine's loopback, through
which ports of containers are reached. The commands are those of `members/security/README.md`.
"""

import ipaddress
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NEW = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes".split()
AUTHORITY_DAYS = 3_650
DAYS = 365
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def make_authority(folder: Path) -> None:
    """Writes `authority.pem` and `authority.key`, unless they are there."""
    if (folder / "authority.pem").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    subject = ("-subj", "/CN=authority of the group", "-days", str(AUTHORITY_DAYS))
    _openssl((*NEW, *subject, *usage, *_outputs("authority")), folder)


def make_certificate(folder: Path, name: str, hosts: Sequence[str] = ()) -> None:
    """Writes `NAME.pem` and `NAME.key`, signed by the folder's authority."""
    names = dict.fromkeys((name, *hosts, *LOOPBACK))
    alternatives = ",".join(f"{_kind(each)}:{each}" for each in names)
    signed = ("-CA", "authority.pem", "-CAkey", "authority.key", "-extensions", "usr_cert")
    subject = ("-subj", f"/CN={name}", "-days", str(DAYS))
    alternative = ("-addext", f"subjectAltName={alternatives}")
    _openssl((*NEW, *subject, *signed, *alternative, *_outputs(name)), folder)


def main(arguments: Sequence[str]) -> None:
    """The command."""
    if len(arguments) < 2:
        sys.exit("usage: python -m tests.cluster.certificates FOLDER NAME[=HOST,HOST] ...")
    folder = Path(arguments[0])
    make_authority(folder)
    for argument in arguments[1:]:
        name, _, hosts = argument.partition("=")
        make_certificate(folder, name, [host for host in hosts.split(",") if host])


def _outputs(name: str) -> tuple[str, ...]:
    return "-keyout", f"{name}.key", "-out", f"{name}.pem"


def _kind(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "DNS"
    return "IP"


def _openssl(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")


if __name__ == "__main__":
    main(sys.argv[1:])
