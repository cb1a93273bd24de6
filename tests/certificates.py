"""Real certificates for tests: authorities, and what they sign, right and wrong."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from groupcert.members.host.loopback import HOST
from groupcert.members.security.credentials import Tls
from groupcert.members.total_order.embedded_server import LogServer

LONG_AGO = datetime.now(UTC) - timedelta(days=30)


class Authority:
    """An authority whose certificates are files in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.path = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(str(self.path))

    def issue(
        self,
        name: str,
        *hosts: str,
        expired: bool = False,
        trusts: "Authority | None" = None,
        into: str | None = None,
    ) -> Tls:
        """Files of a certificate with a common name, for hosts; loopback if none is named.

        Args:
            expired: It was good until a day after `LONG_AGO`.
            trusts: Whom its owner trusts, if not this authority.
            into: Names the files, where others than those of `name` are to be written.
        """
        issued = self._authority.issue_cert(
            *(hosts or (HOST, "localhost")),
            common_name=name,
            not_before=LONG_AGO,
            not_after=LONG_AGO + timedelta(days=1) if expired else None,
        )
        certificate = self._folder / f"{into or name}.pem"
        key = self._folder / f"{into or name}.key"
        chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
        certificate.write_bytes(chain)
        key.write_bytes(issued.private_key_pem.bytes())
        return Tls(authority=(trusts or self).path, certificate=certificate, key=key)


def tls_settings(tls: Tls, prefix: str = "tls") -> dict[str, object]:
    """The files as settings of a member."""
    parts = ("authority", "certificate", "key")
    return {f"{prefix}_{part}": str(getattr(tls, part)) for part in parts}


class TlsLogServer(LogServer):
    """A log server that takes connections over mutual TLS only, and monitors over TLS."""

    def __init__(self, directory: Path, tls: Tls) -> None:
        super().__init__(directory)
        self._tls = tls

    @property
    def address(self) -> str:
        """Where members connect."""
        return super().address.replace("nats://", "tls://")

    @property
    def monitor(self) -> str:
        """Where its monitoring answers."""
        return super().monitor.replace("http://", "https://")

    def _config(self) -> str:
        files = {
            "cert_file": self._tls.certificate,
            "key_file": self._tls.key,
            "ca_file": self._tls.authority,
        }
        lines = (f"{name}: {json.dumps(str(path))}" for name, path in files.items())
        config = super()._config().replace("http:", "https:")
        return config + "\n".join(("tls {", *lines, "verify: true", "}", ""))
