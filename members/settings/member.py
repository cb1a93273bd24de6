"""Settings of a member: what each one means, and why it has its default.

The rule it keeps: a setting comes from a flag, else from `GROUPCERT_<NAME>` in the environment,
else from a TOML file, all read once, at start. An unknown name is an error, and one error reports
all problems.
"""

import os
import re
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from ..core.addresses import ADDRESS, ADDRESS_CHARACTERS_MAX, ADDRESS_SHAPE, PORT_MAX
from ..core.group_settings import NAME, RANGES, TABLES, TABLES_SHAPE
from ..core.views import WEIGHT
from ..errors.usage import InvalidConfig
from ..security.credentials import Tls
from .security import File, SecuritySettings, complete_tls

ENVIRONMENT_PREFIX = "GROUPCERT_"
GROUP_NAMESPACE = uuid.UUID("c4a5e9d2-51a4-4fd5-8f0e-2d3b8c6d1a77")
"""Makes a group's UUID of its name."""

REPORTS_MISSED_MIN = 4
"""Reports that a member may miss before it is expelled, at least."""
_LOG_ADDRESS = r"^(nats|tls|etcd|etcds)://[^\s/]+$"
_MONITOR_ADDRESS = r"^https?://[^\s/]+$"
_EVERY_INTERFACE = ("0.0.0.0", "[::]")
_FLAGS = {"sources": "ADDRESS"}
"""Settings that are given otherwise than by a flag of their name."""
_BEFORE_HOST = re.compile(r"""(['"]?)\S*@""")
_SHAPES = {
    NAME: "1 to 64 letters, digits, - and _",
    TABLES: TABLES_SHAPE,
    ADDRESS: ADDRESS_SHAPE,
    _LOG_ADDRESS: "nats://host:port, tls://host:port, etcd://host:port or etcds://host:port",
    _MONITOR_ADDRESS: "http://host:port",
}


def _port_checked(address: str) -> str:
    if not 1 <= int(address.rpartition(":")[2]) <= PORT_MAX:
        raise ValueError("expected a port from 1 to 65535")
    return address


def _within(name: str) -> Any:
    """Returns the limits of a setting that the group agrees on."""
    return Field(ge=RANGES[name].least, le=RANGES[name].most)


def _split(value: object) -> object:
    """Splits lists of the environment, which are texts, at their commas."""
    return tuple(filter(None, value.split(","))) if isinstance(value, str) else value


def _split_addresses(value: object) -> object:
    """Splits addresses at their commas; one without `scheme://user:password@` has that of the one
    before it, as in `etcd://log1:2379,log2:2379`.
    """
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(each, str) for each in listed):
        return value
    before, addresses = "", []
    for address in filter(None, ",".join(listed).split(",")):
        if "://" in address:
            scheme, _, place = address.partition("://")
            before = f"{scheme}://{place[: place.rfind('@') + 1]}"
        addresses.append(address if "://" in address else f"{before}{address}")
    return tuple(addresses)


Config = TypeVar("Config", bound=BaseModel)
Element = TypeVar("Element")
Listed = Annotated[tuple[Element, ...], BeforeValidator(_split)]
Name = Annotated[str, Field(pattern=NAME)]
Tables = Annotated[str, Field(pattern=TABLES)]
Address = Annotated[
    str,
    Field(pattern=ADDRESS, max_length=ADDRESS_CHARACTERS_MAX),
    AfterValidator(_port_checked),
]
LogAddress = Annotated[str, Field(pattern=_LOG_ADDRESS)]
LogAddresses = Annotated[tuple[LogAddress, ...], BeforeValidator(_split_addresses)]
MonitorAddress = Annotated[str, Field(pattern=_MONITOR_ADDRESS)]
Positive = Annotated[int, Field(ge=1)]


class MemberConfig(SecuritySettings):
    """One member's settings. Those of the group must be the same at every member."""

    group: Name
    """The group's name. No default: two groups must never meet by accident."""
    member: Name
    """This member's name, the same after each restart. No default: names must differ."""
    address: Address = "127.0.0.1:7101"
    """Where the member serves, `host:port`, as clients and members reach it. Default: loopback,
    since without TLS nobody is authenticated: opening it to a network is a decision."""
    listen_address: Address | None = None
    """Where the member listens, if not at `address`: in a container, every interface. Default:
    `address`."""
    session_frames: bool = True
    """Take the messages of clients' sessions over TCP connections of their own, too, beside gRPC's.
    Default true: a small commit costs members and clients a quarter less; clients that cannot
    connect go on over gRPC."""
    session_frames_port: int = Field(default=0, ge=0, le=PORT_MAX)
    """The port of these connections, at the host of `listen_address`. Default 0: any that is free,
    which the member tells its clients; a firewall needs one to be named."""
    metrics_address: Address | None = None
    """Where the member serves its console (`members/console/README.md`), metrics for Prometheus,
    and probes over HTTP, `host:port`. Default: nowhere."""
    data_folder: Path = Path(".groupcert")
    """Rows, certification info and relay queue; of one member only. Default: the folder that it is
    started in."""

    log_server: Literal["embedded"] | None = None
    """With "embedded" this member starts a log server of its own. No default: it is either this or
    `log_servers`, since a member with a log of its own is a group of its own."""
    log_servers: LogAddresses = ()
    """Addresses of the log servers that the group shares: `nats://host:port` or `etcd://host:port`,
    with TLS `tls://` or `etcds://`, with `user:password@` before the host where they ask for it;
    `etcd://host:port,host:port` is short for several. Default: none, see `log_server`."""
    log_monitors: Listed[MonitorAddress] = ()
    """Addresses `http://host:port` of the log servers' monitoring, to check that they sync every
    write. Default: none, then NATS is not asked, and the member says so; etcd's servers are asked
    where they serve."""
    log_replicas: int = Field(
        default_factory=lambda settings: 3 if len(settings.get("log_servers", ())) >= 3 else 1,
        ge=1,
        le=5,
    )
    """Servers that hold the log. Default: 3 where three or more are named, else 1."""
    log_connect_ms: Positive = 10_000
    """How long a start waits for a log server that answers, in ms. Default: an election among log
    servers takes up to 9 s."""
    create_log: bool = Field(
        default_factory=lambda settings: settings.get("log_server") == "embedded"
    )
    """Make the group's log if it does not exist. Default: only with a log server of its own; else
    `groupcert bootstrap` makes the group, once, so that a lost log is not replaced by an empty
    one."""

    group_uuid: uuid.UUID = Field(
        default_factory=lambda settings: uuid.uuid5(GROUP_NAMESPACE, settings.get("group", ""))
    )
    """The group's: source of the GTIDs that it assigns. Default: made of the group's name, so that
    members agree without a setting."""
    gtid_assignment_block_size: Annotated[int, _within("gtid_assignment_block_size")] = 1_000_000
    """The group's: GTID numbers that a member reserves at a time. Default: Group Replication's."""
    gc_window: Literal["close", "tight"] = "close"
    """The group's: what a collection does to the applier's window. Default "close": WL#8440's;
    "tight" keeps the applier parallel across collections."""
    write_set_items_max: Annotated[int, _within("write_set_items_max")] = 100_000
    """The group's: rows that one transaction may write. Default: each is certified in about a
    microsecond, so that one transaction never holds the others up for much more than 100 ms."""
    flow_control_lag_max: Annotated[int, _within("flow_control_lag_max")] = 25_000
    """The group's: transactions that may be certified and not applied everywhere before members
    send less; 0: any number. Default: the queue lengths at which Group Replication begins to."""
    single_primary: bool = False
    """The group's: only one member, the primary, takes transactions. Default false: all do."""
    members_allowed: Listed[Name] = ()
    """The group's: names that may join. Default: empty, any name may join."""
    rows: Literal["kept", "none"] = "kept"
    """With "none" the member certifies, votes and may keep a certification log, and has no rows:
    for a third site, beside two that have them. Default "kept": in its store, or at the server of
    `postgresql`."""
    postgresql: str | None = None
    """The server that keeps the member's rows, `postgresql://...`, attached before: its clients
    commit by SQL. Default: none, the member's own store keeps them."""
    postgresql_tables: Listed[Tables] = ()
    """The group's: patterns of PostgreSQL's tables, such as `public.*`, whose rows members take
    only from their own servers, and from callers with the role `postgresql`, which takes `access`
    at every member. Default: empty, they take any row from whoever may write."""
    outcomes_max: Annotated[int, _within("outcomes_max")] = 131_072
    """The group's: outcomes that are remembered by transaction id. Default: about half a minute at
    4,000 commits/s, longer than clients repeat a commit; 57 MB at most."""

    transaction_bytes_max: int = Field(default=150_000_000, ge=1, le=1 << 30)
    """Bytes of one transaction's changes and write set. Default: Group Replication's."""
    fragment_bytes: int = Field(default=256 << 10, ge=64 << 10, le=1 << 20)
    """Bytes of changes over which a transaction goes through the log in fragments, and of each of
    them before compression. Default 256 KiB: as a message takes of small ones, none of which
    waits longer behind a fragment than behind others."""
    ingress_bytes_max: Positive = 600_000_000
    """Bytes of large transactions that a member is taking in; one alone is always taken. Default:
    four of the largest."""

    workers: int = Field(default=4, ge=0, le=1024)
    """Threads that execute remote transactions; with 0 the reader of the log does it, in order.
    Default: MySQL's."""
    relay_queue_bytes_max: Positive = 256 << 20
    """Bytes of the relay queue in memory before reading the log pauses. Default 256 MiB: some
    seconds of full load."""
    stable_set_period_ms: Positive = 1_000
    """How often the member reports to the group how far it is, in ms. Default: certification info
    is collected a second or two late."""

    weight: int = Field(default=WEIGHT, ge=0, le=100)
    """In single-primary mode the member of the view with the largest weight is elected. Default:
    Group Replication's."""
    suspicion_timeout_ms: Positive = 5_000
    """How long another member may be silent before it is shown as suspected, in ms. Default: Group
    Replication's."""
    member_expel_timeout_ms: int = Field(default=5_000, ge=0)
    """How much longer until it is expelled from the view, in ms. Default: Group Replication's."""
    unreachable_majority_timeout_ms: int = Field(default=0, ge=0)
    """How long the log may take nothing before this member gives up what waits and leaves its
    group, in ms. Default 0: it waits for ever, as in Group Replication."""
    autorejoin_tries: int = Field(default=3, ge=0)
    """How often a member that was expelled, or gave up, tries to come back. Default: Group
    Replication's."""
    autorejoin_interval_ms: Positive = 30_000
    """Time between two of these tries, in ms; the first one is made at once. Default: longer than
    an election among log servers and an expulsion together."""
    exit_state_action: Literal["READ_ONLY", "OFFLINE_MODE", "ABORT_SERVER"] = "READ_ONLY"
    """What a member does once it is out of its group for good, or fenced: it answers reads that ask
    for no consistency, answers none, or ends with exit code 3. Default: Group Replication's."""

    snapshot_lease_ms: Positive = 60_000
    """How long an unused snapshot stays open, and a large commit may leave the member without its
    next part, in ms. Default: longer than a client hesitates."""
    snapshots_max: Positive = 10_000
    """Snapshots open at a time. Default: more than clients that one member serves."""

    compare_period_s: int = Field(default=86_400, ge=0)
    """How long after one comparison of all members' rows the next begins, in s; 0: none does by
    itself. The group's first member by name decides. Default: a day."""

    binary_log: bool = True
    """Keep what the member commits for replicas that follow it. Default true: it costs about a
    twentieth of a member's time; with `postgresql` false, since it costs the disk twice the rows
    that the relay queue keeps, and few have replicas beside their servers."""
    binary_log_file_bytes_max: int = Field(default=256 << 20, ge=4_096)
    """Bytes of a file of the binary log; then another one begins. Default 256 MiB: files are what
    is removed, and what a replica that comes back may have to look through."""
    binary_log_retention_bytes: Positive = 4 << 30
    """Bytes of the binary log that are kept, in whole files. Default 4 GiB: about half an hour of
    full load."""
    binlog_commit_wait_count: int = Field(default=0, ge=0)
    """Transactions that a commit waits for, so that replicas may execute them as a group. Default
    0: a commit does not wait, as in MariaDB."""
    binlog_commit_wait_usec: int = Field(default=100_000, ge=0)
    """How long a commit waits for these transactions at most, in µs. Default: MariaDB's."""
    domain_sessions: Listed[str] = ()
    """Sessions that may set `gtid_domain_id`. Default: none, since a wrong domain lets replicas
    differ from their source."""

    seeds: Listed[Address] = ()
    """Members that this one may copy where the log no longer reaches back to it, and that it asks
    how far they have read before it joins. Default: none, then it knows the members of the last
    view that its store, or the log, has."""
    recovery_log_messages_max: int = Field(default=100_000, ge=0)
    """Messages that a member reads from the log at its start if `seeds` could give it a copy; 0: no
    limit. Default: five minutes of full load, read in about half of that."""
    recovery_bytes_per_second_max: int = Field(default=100 << 20, ge=0)
    """Bytes of copies that this member gives to others each second; 0: no limit. Default
    100 MiB: leaves a donor most of a core and of a disk."""
    log_trim_servers: LogAddresses = ()
    """Addresses as `log_servers`, for a user that may trim the log. Default: none, then this member
    never trims it, unless it is that of its embedded log server."""
    log_retention_messages: Positive = 1_000_000
    """Messages that the log keeps although every member has them. Default: an hour of full load, in
    which a member may be away and come back without a copy."""
    log_retention_bytes: Positive = 16 << 30
    """Bytes of messages that the log keeps although every member has them; the smaller of both
    limits counts. Default 16 GiB: several times what a binary log keeps."""

    certification_log: File = None
    """Folder of the certification log, Parquet files with every decision, for `groupcert audit`
    and `ReadHistory`.
    Default: none, no log is kept; files grow without end, and an operator has to remove them."""
    certification_log_file_bytes: Positive = 64 << 20
    """Bytes after which a file of the certification log ends. Default 64 MiB: a million
    transactions or so, a good piece of work for one core of Spark."""
    certification_log_file_seconds: int = Field(default=60, ge=0)
    """Seconds after which a file of the certification log ends, however small it is; 0: no files,
    decisions wait in the data folder, for `ReadHistory` alone. Default 60: an audit lags a minute
    behind."""
    certification_log_waiting_bytes_max: Positive = 4 << 30
    """Bytes of decisions in the data folder that wait for a file of the certification log. With
    more, they are given up, and another history begins; from a quarter of that on the files are
    written at full speed, which slows commits. Default 4 GiB: an hour of 5,000 transactions a
    second while the folder takes no files. It has to be less than the data folder's free space."""
    certification_log_keys: bool = False
    """Write readable keys of the embedded store's rows, too, never values. Default false: items are
    hashes. They hide no key that can be guessed: who reads the log can hash every number of an
    account in seconds, and sees which were written."""

    log_tls_authority: File = None
    """PEM file: authorities of the log servers' certificates. With the two below, the log is
    reached over mutual TLS only, whatever its addresses begin with. Default: `tls_authority`, where
    an address begins with `tls://` or `etcds://`."""
    log_tls_certificate: File = None
    """PEM file: the certificate shown to log servers. Default: `tls_certificate`, likewise."""
    log_tls_key: File = None
    """PEM file: the private key of that certificate. Default: `tls_key`, likewise."""

    @model_validator(mode="before")
    @classmethod
    def _take_addresses(cls, named: dict[str, object]) -> dict[str, object]:
        """Takes addresses that are given as `log_server`, as the flag does, for `log_servers`."""
        address = named.get("log_server")
        if isinstance(address, str) and "://" in address and not named.get("log_servers"):
            return {**named, "log_server": None, "log_servers": address}
        return named

    @model_validator(mode="before")
    @classmethod
    def _has_default_of_kind(cls, named: dict[str, object]) -> dict[str, object]:
        """Takes the default of `binary_log` for the kind of member."""
        has_store = not named.get("postgresql") and named.get("rows") != "none"
        return named if has_store else {"binary_log": False, **named}

    @model_validator(mode="after")
    def _check_suspicion(self) -> "MemberConfig":
        limit_ms = self.suspicion_timeout_ms + self.member_expel_timeout_ms
        if limit_ms < REPORTS_MISSED_MIN * self.stable_set_period_ms:
            raise ValueError(
                f"suspicion_timeout_ms and member_expel_timeout_ms are {limit_ms} together: "
                f"expected {REPORTS_MISSED_MIN} times stable_set_period_ms or more"
            )
        return self

    @model_validator(mode="after")
    def _check_log(self) -> "MemberConfig":
        if self.log_server is None and not self.log_servers:
            raise ValueError(
                "log_servers is missing: give it as --log-server, in the file or as "
                'GROUPCERT_LOG_SERVERS, or log_server = "embedded"'
            )
        if self.log_server is not None and self.log_servers:
            raise ValueError('log: give either log_servers or log_server = "embedded"')
        addresses = (*self.log_servers, *self.log_trim_servers)
        if len({each.startswith("etcd") for each in addresses}) > 1:
            raise ValueError("log_servers: expected addresses of NATS or of etcd, not of both")
        own = complete_tls(
            self.log_tls_authority, self.log_tls_certificate, self.log_tls_key, "log_tls"
        )
        if own is not None and not self.log_servers:
            raise ValueError(
                "log_tls_authority: an embedded log server is on loopback, without TLS"
            )
        if (scheme := self._tls_scheme) and self.log_tls is None:
            raise ValueError(f"log_servers: {scheme}:// needs the files log_tls_... or tls_...")
        return self

    @model_validator(mode="after")
    def _check_rows(self) -> "MemberConfig":
        if self.rows == "none" and self.postgresql is not None:
            raise ValueError('rows is "none": expected no postgresql, which keeps rows')
        if self.rows == "none" and self.binary_log:
            raise ValueError(
                'binary_log is true: expected false with rows = "none"; replicas follow a member '
                "that keeps rows"
            )
        return self

    @model_validator(mode="after")
    def _check_tables(self) -> "MemberConfig":
        if self.postgresql_tables and self.access is None:
            raise ValueError(
                "postgresql_tables: without access nobody has the role postgresql, and these rows "
                "would be taken from nobody"
            )
        return self

    @model_validator(mode="after")
    def _check_certification_log(self) -> "MemberConfig":
        if self.certification_log is not None and self.member.startswith("_"):
            raise ValueError(
                f"member is {self.member!r}: with certification_log expected a name that begins "
                "with a letter, a digit or -, as Spark takes no file whose name begins with _"
            )
        return self

    @property
    def console_address(self) -> str:
        """Returns where others reach `metrics_address`; empty: nowhere."""
        host, _, port = (self.metrics_address or "").rpartition(":")
        if host in _EVERY_INTERFACE:
            host = self.address.rpartition(":")[0]
        return f"{host}:{port}" if host else ""

    @property
    def writes_certification_log(self) -> bool:
        """Returns whether it writes files of a certification log, with Parquet."""
        return self.certification_log is not None and self.certification_log_file_seconds > 0

    @property
    def log_tls(self) -> Tls | None:
        """Returns the files for connections to log servers; None: they are plain."""
        own = complete_tls(
            self.log_tls_authority, self.log_tls_certificate, self.log_tls_key, "log_tls"
        )
        return own or (self.tls if self._tls_scheme else None)

    @property
    def _tls_scheme(self) -> str:
        """The scheme of an address that asks for TLS; empty: none does."""
        schemes = (each.partition("://")[0] for each in self.log_servers)
        return next((each for each in schemes if each in {"tls", "etcds"}), "")


def load_config(
    path: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> MemberConfig:
    """Returns the settings of a member that starts now.

    Args:
        path: A TOML file; None: there is none.
        flags: What the command line says; None is "not said".

    Raises:
        InvalidConfig: Some settings are missing, malformed or not known.
    """
    return loaded(MemberConfig, path, flags or {}, environment)


def loaded(
    kind: type[Config],
    path: Path | None,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
) -> Config:
    """Returns settings of a kind; arguments and errors as for `load_config`."""
    try:
        return kind.model_validate(_named(path, flags, environment))
    except ValidationError as error:
        problems = tuple(filter(None, map(problem_text, error.errors())))
        raise InvalidConfig(problems=problems) from None


def _named(
    path: Path | None, flags: Mapping[str, object], environment: Mapping[str, str]
) -> dict[str, object]:
    """Returns the settings that file, environment and flags name; flags win over the environment,
    that over the file; a flag that is None does not count.

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
        problem = f"{path} cannot be read ({error}): expected a TOML file"
        raise InvalidConfig(problems=(problem,)) from None


def expected_of(error: ErrorDetails) -> str:
    """Returns the values that a setting may have, in words, for an error that names the setting."""
    match error["type"]:
        case "string_pattern_mismatch":
            return _SHAPES[error["ctx"]["pattern"]]
        case "value_error":
            return str(error["ctx"]["error"]).removeprefix("expected ")
        case _:
            return error["msg"].removeprefix("Input should be ")


def problem_text(error: ErrorDetails) -> str:
    """Returns one problem in words, without passwords; empty for a consequence of another one."""
    name = ".".join(map(str, error["loc"]))
    value = _BEFORE_HOST.sub(r"\1***@", repr(error["input"]))[:80]
    match error["type"]:
        case "default_factory_not_called":
            return ""
        case "missing" if "." in name:
            return f"{name} is missing: give it in the table {name.partition('.')[0]}"
        case "missing":
            flag = _FLAGS.get(name) or f"--{name.replace('_', '-')}"
            variable = f"{ENVIRONMENT_PREFIX}{name.upper()}"
            return f"{name} is missing: give it as {flag}, in the file or as {variable}"
        case "extra_forbidden":
            return f"{name} is not a setting"
        case "string_pattern_mismatch":
            return f"{name} is {value}: expected {expected_of(error)}"
        case "value_error":
            return f"{name}: {error['ctx']['error']}".removeprefix(": ")
        case _ if name.startswith("access"):  # What stands there may be a token.
            return f"{name}: {error['msg'][0].lower()}{error['msg'][1:]}"
        case _:
            return f"{name} is {value}: {error['msg'][0].lower()}{error['msg'][1:]}"
