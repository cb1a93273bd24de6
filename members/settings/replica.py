"""Settings of a replica: what each one means, and why it has its default.

The rule it keeps: as for a member, a flag wins over `GROUPCERT_<NAME>` in the environment, which
wins over the TOML file; an unknown name is an error, and one error reports all problems.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, field_validator, model_validator

from ...applier.engine.worker import WORKERS_MAX
from ...certifier.errors import InvalidGtidSet
from ...certifier.gtid_set import GtidSet
from .member import Address, Listed, Name, Positive, loaded
from .security import SecuritySettings

Count = Annotated[int, Field(ge=0)]
SERVER_SCHEMES = ("mysql://", "mariadb://")
EMBEDDED = "rocksdb:"
ADDRESSES: TypeAdapter[str] = TypeAdapter(Address)
_POSITION = re.compile(r"\d+:\d+")


class ReplicaConfig(SecuritySettings):
    """One replica's settings."""

    sources: Listed[str]
    """Members to follow, `host:port`, or MySQL or MariaDB servers,
    `mysql://user:password@host:port/database`; if one does not answer, the next is asked. No
    default: a replica has a source."""
    replica: Name = "replica"
    """This replica's name: its checkpoint in the target is kept under it. Default: enough where a
    target has one replica."""
    target: str = "rocksdb:.groupcert-replica"
    """Where transactions are executed: `rocksdb:FOLDER`, `postgresql://...` or `mysql://...`.
    Default: the embedded store, in the folder that it is started in."""
    mapping: Path | None = None
    """A TOML file that maps a group's rows to tables of an SQL target. Default: none; such a target
    needs one. The tables of a server have their own names there."""
    copy_first: bool = False
    """Before the first transaction make the server's tables at the target, where they are missing,
    and fill them. Default: no; the target has them, as of the executed GTIDs that it has."""

    scheme: str = "logical-clock"
    """The scheme of parallel execution. Default: WL#7165's, which needs no promise of the source's
    users."""
    conflicts: str | None = None
    """With scheme `jobs`: `ignore`, `ordered`, `barrier`, `graph` or `merge`. Default: `graph`, the
    finest that keeps every state consistent."""
    policy: str | None = None
    """With scheme `logical-clock`: `at-most-one` or `first-available`. Default: the first,
    WL#7165's."""
    job_transactions_max: int | None = Field(default=None, ge=1, le=4_096)
    """With scheme `logical-clock`: transactions that follow each other and may start together, and
    are then executed and committed as one. Default: 64 on an SQL server, where each commit waits
    for a disk, and at least 4 for each of several workers; else 1, as in WL#7165. Only what waits
    is put together: a reader of a replica that is behind sees fewer of the states between."""
    workers: int = Field(default=4, ge=0, le=WORKERS_MAX)
    """Workers, each with a session at the target; 0: the coordinator executes alone. Default:
    MySQL's; but 0 for a `rocksdb:` target and for a server's log, unless a scheme is named: alone
    it executes ten times as many transactions as it hands to workers, and twice as many of a
    server, up to 64 of those that wait in one commit."""
    preserve_commit_order: bool | None = None
    """Commit in the source's order. Default: the scheme's own, which is yes for all but `database`,
    `table` and `jobs` that ignore conflicts."""

    transaction_retries: Count = 10
    """How often a transient failure is tried again before the replica stops. Default: MySQL's."""
    skip_gtids: str | None = None
    """A GTID set of transactions that count as executed, and are not (WL#5569's SKIP); those that
    never come are no error. Default: none."""
    on_error: Literal["stop", "stay"] = "stop"
    """Where the replica cannot go on: `stop` ends it, `stay` has it try again every `retry_s`; it
    answers for its status meanwhile. Default: `stop`, which no supervisor overlooks."""
    retry_s: Positive = 60
    """Seconds between two tries with `on_error` `stay`. Default: MySQL's SOURCE_CONNECT_RETRY."""
    delay_s: Count = 0
    """Execute transactions so many seconds after their commit at the source. Default 0: at once."""
    pending_jobs_size_max: Positive = 128 << 20
    """Bytes of these transactions; a larger one is executed alone. Default: MySQL's, 128 MiB."""
    transaction_bytes_max: Positive = 150_000_000
    """Bytes of one transaction's changes; a larger one stops the replica. Default: as at members.
    Here it is in memory as a whole, some four times."""

    until_after_gtids: str | None = None
    """Stop when all transactions of this GTID set are executed. Default: do not stop."""
    until_before_gtids: str | None = None
    """Stop before the first transaction of this GTID set. Default: do not stop."""
    until_position: str | None = None
    """Stop after `file:sequence_number` of the source's binary log. Default: do not stop."""
    until_view: int | None = Field(default=None, ge=1)
    """Stop after the view change with this id. Default: do not stop."""
    until_after_gaps: bool = False
    """Stop when nothing is missing before the newest executed transaction. Default: do not."""

    address: Address | None = None
    """Where the replica answers for its status and, with a `rocksdb:` target, to clients that read
    its rows, `host:port`. Default: nowhere."""
    metrics_address: Address | None = None
    """Where the replica serves metrics for Prometheus, `host:port`. Default: nowhere."""

    @model_validator(mode="before")
    @classmethod
    def _choose_workers(cls, data: dict[str, Any]) -> dict[str, Any]:
        target = str(data.get("target", cls.model_fields["target"].default))
        sources = data.get("sources")
        first = str(sources[0] if isinstance(sources, list | tuple) and sources else sources)
        is_fastest = target.startswith(EMBEDDED) or first.startswith(SERVER_SCHEMES)
        # A scheme is named for what workers do.
        if is_fastest and "scheme" not in data:
            return {"workers": 0, **data}
        return data

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("expected a member, host:port, or a server, mysql://...")
        servers = [source for source in value if source.startswith(SERVER_SCHEMES)]
        if servers and len(servers) < len(value):
            raise ValueError("expected members or servers, not both")
        if not servers:
            for address in value:
                ADDRESSES.validate_python(address)
        return value

    @property
    def follows_server(self) -> bool:
        """True if the sources are MySQL or MariaDB servers."""
        return self.sources[0].startswith(SERVER_SCHEMES)

    @field_validator("until_position")
    @classmethod
    def _check_position(cls, value: str | None) -> str | None:
        if value is not None and not _POSITION.fullmatch(value):
            raise ValueError(f"expected file:sequence_number, such as 3:17, not {value}")
        return value

    @field_validator("until_after_gtids", "until_before_gtids", "skip_gtids")
    @classmethod
    def _check_gtids(cls, value: str | None) -> str | None:
        try:
            GtidSet.parse(value or "")
        except InvalidGtidSet as error:
            raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _check_until(self) -> "ReplicaConfig":
        conditions = [
            name
            for name in type(self).model_fields
            if name.startswith("until_") and getattr(self, name)
        ]
        if len(conditions) > 1:
            raise ValueError(f"{' and '.join(conditions)} are given: expected one of them")
        return self


def load_replica_config(
    path: Path | None,
    flags: Mapping[str, object],
    environment: Mapping[str, str] = os.environ,
) -> ReplicaConfig:
    """Returns the settings of a replica that starts now; arguments and errors as for
    `members.settings.member.load_config`.
    """
    return loaded(ReplicaConfig, path, flags, environment)
