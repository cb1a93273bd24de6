"""A member's settings: what each one means, and why it has its default.

The rule it keeps: a setting comes from a flag, else from `GROUPCERT_<NAME>` in the environment,
else from a TOML file, all read once, at start. A name that is not known is an error, and all that
is wrong is said at once.
"""

import os
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

ENVIRONMENT_PREFIX = "GROUPCERT_"
GROUP_NAMESPACE = uuid.UUID("c4a5e9d2-51a4-4fd5-8f0e-2d3b8c6d1a77")
"""Makes a group's UUID of its name."""

_NAME = r"^[A-Za-z0-9_-]{1,64}$"
_ADDRESS = r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/]+):\d{1,5}$"
_LOG_ADDRESS = r"^nats://[^\s/]+$"
_MONITOR_ADDRESS = r"^https?://[^\s/]+$"
_SHAPES = {
    _NAME: "1 to 64 letters, digits, - and _",
    _ADDRESS: "host:port",
    _LOG_ADDRESS: "nats://host:port",
    _MONITOR_ADDRESS: "http://host:port",
}


def _port_checked(address: str) -> str:
    if not 1 <= int(address.rpartition(":")[2]) <= 65_535:
        raise ValueError("expected a port from 1 to 65535")
    return address


Name = Annotated[str, Field(pattern=_NAME)]
Address = Annotated[str, Field(pattern=_ADDRESS), AfterValidator(_port_checked)]
LogAddress = Annotated[str, Field(pattern=_LOG_ADDRESS)]
MonitorAddress = Annotated[str, Field(pattern=_MONITOR_ADDRESS)]
Positive = Annotated[int, Field(ge=1)]


class InvalidConfig(Exception):
    """Settings that a member cannot start with; `problems` are all of them."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("settings: " + "; ".join(problems))
        self.problems = problems


class MemberConfig(BaseModel):
    """One member's settings. Those of the group must be the same at every member."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    group: Name
    """The group's name. No default: two groups must never meet by accident."""
    member: Name
    """This member's name, the same after each restart. No default: names must differ."""
    address: Address = "127.0.0.1:7101"
    """Where it serves, `host:port`, as clients and members reach it. Default: loopback, since
    nobody is authenticated: opening it to a network is a decision."""
    data_folder: Path = Path(".groupcert")
    """Rows, certification info and relay queue; of one member only. Default: the folder that it is
    started in."""

    log_server: Literal["embedded"] | None = None
    """With "embedded" this member starts a log server of its own. No default: it is either this or
    `log_servers`, since a member with a log of its own is a group of its own."""
    log_servers: tuple[LogAddress, ...] = ()
    """Addresses `nats://host:port` of the log servers that the group shares. Default: none, see
    `log_server`."""
    log_monitors: tuple[MonitorAddress, ...] = ()
    """Addresses `http://host:port` of their monitoring, to see that they sync every write. Default:
    none, then this is not checked and the member says so."""
    log_replicas: int = Field(
        default_factory=lambda settings: 3 if len(settings.get("log_servers", ())) >= 3 else 1,
        ge=1,
        le=5,
    )
    """Servers that hold the log. Default: 3 where three or more are named, else 1."""
    log_server_port: int = Field(default=0, ge=0, le=65_535)
    """Port of the embedded log server. Default 0: a free one, chosen at its first start."""
    log_connect_ms: Positive = 10_000
    """How long a start waits for a log server that answers, in ms. Default: an election among log
    servers takes up to 9 s."""
    create_log: bool = True
    """Make the group's log if it does not exist. Default true: the first member makes the group;
    set it to false afterwards, and a lost log is not replaced by an empty one."""

    group_uuid: uuid.UUID = Field(
        default_factory=lambda settings: uuid.uuid5(GROUP_NAMESPACE, settings.get("group", ""))
    )
    """The group's: source of the GTIDs that it assigns. Default: made of the group's name, so that
    members agree without being told."""
    gtid_assignment_block_size: Positive = 1_000_000
    """The group's: GTID numbers that a member reserves at a time. Default: Group Replication's."""
    gc_window: Literal["close", "tight"] = "close"
    """The group's: what a collection does to the applier's window. Default "close": WL#8440's;
    "tight" keeps the applier parallel across collections."""
    write_set_items_max: Positive = 100_000
    """The group's: rows that one transaction may write. Default: each is certified in about a
    microsecond, so that one transaction never holds the others up for much more than 100 ms."""
    outcomes_max: int = Field(default=131_072, ge=2)
    """The group's: outcomes that are remembered by transaction id. Default: about half a minute at
    4,000 commits/s, longer than clients repeat a commit; some 10 MB."""

    transaction_bytes_max: int = Field(default=4 << 20, ge=1, le=7 << 20)
    """Bytes of one transaction's changes and write set. Default 4 MiB: a transaction goes into one
    message of the log, which has 8 MB at most."""
    batch_transactions_max: Positive = 128
    """Transactions in one message of the log. Default: more gain little and wait longer."""
    batch_bytes_max: Positive = 256 << 10
    """Bytes after which a message takes no further transaction. Default 256 KiB: what a log server
    syncs about as quickly as a small message."""
    batch_linger_ms: int = Field(default=5, ge=0, le=1_000)
    """How long a message waits for as many transactions as were answered together, in ms. Default
    5: about what clients need to come back on a busy machine; a lone client never waits."""
    publish_window: Positive = 4
    """Messages of the log in flight. Default 4: fills the time of a round trip; more make smaller
    batches."""

    applier_workers: int = Field(default=4, ge=0, le=1024)
    """Threads that execute remote transactions; with 0 the reader of the log does it, in order.
    Default: MySQL's."""
    relay_queue_bytes_max: Positive = 256 << 20
    """Bytes of the relay queue in memory before reading the log pauses. Default 256 MiB: some
    seconds of full load."""
    stable_set_period_ms: Positive = 1_000
    """How often the member tells the group how far it is, in ms. Default: certification info is
    collected a second or two late."""
    stable_set_rows: Positive = 100_000
    """Items recorded since the last report after which it reports at once. Default: bounds what a
    second of full load adds to certification info."""

    snapshot_lease_ms: Positive = 60_000
    """How long an unused snapshot stays open, in ms. Default: longer than a client hesitates."""
    snapshots_max: Positive = 10_000
    """Snapshots open at a time. Default: more than clients that one member serves."""
    snapshot_hold_versions: Positive = 1_000_000
    """Versions that an open snapshot keeps from being collected; past that its transaction is too
    old. Default: some minutes of full load, about 500 MB of certification info."""

    binary_log: bool = True
    """Keep what the member commits for replicas that follow it. Default true: it costs about a
    twentieth of a member's time."""
    binary_log_file_bytes_max: int = Field(default=256 << 20, ge=4_096)
    """Bytes of a file of the binary log; then another one begins. Default 256 MiB: files are what
    is removed, and what a replica that comes back may have to look through."""
    binary_log_files_max: int = Field(default=1_000, ge=1)
    """Files that are kept; each start of the member begins one. Default 1,000: the bytes are the
    limit that counts."""
    binary_log_retention_bytes: Positive = 4 << 30
    """Bytes of the binary log that are kept, in whole files. Default 4 GiB: about half an hour of
    full load."""
    binary_log_sequence_number_max: int = Field(default=2**63 - 1, ge=1)
    """Transactions of a file, whose counters then begin again. Default: what the stamps' 63 bits
    hold."""
    binary_log_databases_max: Positive = 16
    """Databases that a transaction names for replicas; one that updates more is said to update all.
    Default: MySQL's."""
    binlog_commit_wait_count: int = Field(default=0, ge=0)
    """Transactions that a commit waits for, so that replicas may execute them as a group. Default
    0: a commit waits for nobody, as in MariaDB."""
    binlog_commit_wait_usec: int = Field(default=100_000, ge=0)
    """How long it waits for them at most, in µs. Default: MariaDB's."""
    domain_sessions: tuple[str, ...] = ()
    """Sessions that may set `gtid_domain_id`. Default: none, since a wrong domain lets replicas
    differ from their source."""

    record_history: bool = False
    """Keep every decision for `ReadHistory`. Default false: it grows without end; demo, tests and
    audits turn it on."""
    reflection: bool = True
    """Serve gRPC reflection. Default true: `grpcurl` works without files; it tells no secrets."""

    @field_validator("log_servers", "log_monitors", "domain_sessions", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """The environment has lists as texts, separated by commas."""
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_log(self) -> "MemberConfig":
        if (self.log_server is None) == (not self.log_servers):
            raise ValueError('log: give either log_servers or log_server = "embedded"')
        return self


def load_config(
    path: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> MemberConfig:
    """The settings of a member that starts now.

    Args:
        path: A TOML file; None: there is none.
        flags: What the command line says; None is "not said".

    Raises:
        InvalidConfig: Some settings are missing, malformed or not known.
    """
    try:
        return MemberConfig.model_validate(named_settings(path, flags or {}, environment))
    except ValidationError as error:
        raise InvalidConfig(tuple(filter(None, map(problem_text, error.errors())))) from None


def named_settings(
    path: Path | None, flags: Mapping[str, object], environment: Mapping[str, str]
) -> dict[str, object]:
    """What file, environment and flags say, the later ones before the earlier; a flag that is None
    says nothing.

    Raises InvalidConfig: the file cannot be read.
    """
    named = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    said = {name: value for name, value in flags.items() if value is not None}
    return {**_read(path), **named, **said}


def _read(path: Path | None) -> dict[str, object]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfig((f"{path} cannot be read ({error}): expected a TOML file",)) from None


def problem_text(error: ErrorDetails) -> str:
    """One problem in words; empty for what merely follows from another one."""
    name = ".".join(map(str, error["loc"]))
    value = repr(error["input"])[:80]
    match error["type"]:
        case "default_factory_not_called":
            return ""
        case "missing":
            return (
                f"{name} is missing: give it in the file or as {ENVIRONMENT_PREFIX}{name.upper()}"
            )
        case "extra_forbidden":
            return f"{name} is not a setting"
        case "string_pattern_mismatch":
            return f"{name} is {value}: expected {_SHAPES[error['ctx']['pattern']]}"
        case "value_error":
            return f"{name}: {error['ctx']['error']}".removeprefix(": ")
        case _:
            return f"{name} is {value}: {error['msg'][0].lower()}{error['msg'][1:]}"
