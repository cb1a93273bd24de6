"""What differs between clusters whose log is on NATS and those whose log is on etcd."""

import json
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

ANSWER_SECONDS_MAX = 1.0


class LogKind(Enum):
    """The servers that order messages."""

    NATS = "nats"
    ETCD = "etcd"

    @property
    def port(self) -> int:
        """Where members reach a log server."""
        return 4222 if self is LogKind.NATS else 2379

    @property
    def monitor_port(self) -> int:
        """Where a log server tells of itself."""
        return 8222 if self is LogKind.NATS else 2379

    def is_healthy(self, monitor: str) -> bool:
        """Whether a log server says so: one of NATS has what the others have."""
        page = "healthz" if self is LogKind.NATS else "health"
        with suppress(OSError):
            with urllib.request.urlopen(f"{monitor}/{page}", timeout=ANSWER_SECONDS_MAX):
                return True
        return False

    def leader(self, monitors: Mapping[str, str]) -> str | None:
        """The log server that leads, as a majority of them says; None: none."""
        votes: list[str] = []
        names: dict[str, str] = {}
        for name, monitor in monitors.items():
            with suppress(OSError, ValueError, KeyError, IndexError):
                if self is LogKind.NATS:
                    account = _page(f"{monitor}/jsz?accounts=1&streams=1")["account_details"][0]
                    votes.append(account["stream_detail"][0]["cluster"]["leader"])
                else:
                    status = _page(f"{monitor}/v3/maintenance/status", b"{}")
                    names[status["header"]["member_id"]] = name
                    votes.append(status["leader"])
        leading = next((each for each in votes if 2 * votes.count(each) > len(monitors)), None)
        return leading if self is LogKind.NATS or leading is None else names.get(leading)


def _page(url: str, data: bytes | None = None) -> Any:
    with urllib.request.urlopen(url, data, timeout=ANSWER_SECONDS_MAX) as page:
        return json.load(page)
