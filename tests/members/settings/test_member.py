"""Settings of a member: where they come from, and what is said when they are wrong."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from groupcert.members.errors.usage import InvalidConfig
from groupcert.members.settings.member import MemberConfig, load_config

NAMED: dict[str, object] = {"group": "shop", "member": "m1"}
EMBEDDED: dict[str, object] = {**NAMED, "log_server": "embedded"}


def problems(settings: dict[str, object], path: Path | None = None) -> tuple[str, ...]:
    """Returns what is wrong with settings."""
    with pytest.raises(InvalidConfig) as caught:
        load_config(path, settings, environment={})
    return caught.value.problems


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "member.toml"
    path.write_text('group = "file"\nmember = "file"\naddress = "a:1"\nlog_server = "embedded"\n')
    config = load_config(
        path,
        {"group": "flag", "member": None},
        {"GROUPCERT_GROUP": "env", "GROUPCERT_MEMBER": "env", "HOME": "x"},
    )
    assert (config.group, config.member, config.address) == ("flag", "env", "a:1")


def test_the_environment_has_numbers_and_lists_as_texts() -> None:
    environment = {
        "GROUPCERT_LOG_SERVERS": "nats://a:1,nats://b:2",
        "GROUPCERT_APPLIER_WORKERS": "8",
        "GROUPCERT_BINARY_LOG": "false",
        "GROUPCERT_CERTIFICATION_LOG": "",
    }
    config = load_config(None, NAMED, environment)
    assert config.certification_log is None, "empty is not the folder that it is started in"
    assert config.log_servers == ("nats://a:1", "nats://b:2")
    assert (config.applier_workers, config.binary_log) == (8, False)


def test_all_problems_are_told_at_once() -> None:
    wrong = {"address": "nowhere", "snapshots_max": 0, "colour": "red", "gc_window": "open"}
    assert problems(wrong) == (
        "group is missing: give it as --group, in the file or as GROUPCERT_GROUP",
        "member is missing: give it as --member, in the file or as GROUPCERT_MEMBER",
        "address is 'nowhere': expected host:port, such as 127.0.0.1:7101 or [::1]:7101",
        "gc_window is 'open': input should be 'close' or 'tight'",
        "snapshots_max is 0: input should be greater than or equal to 1",
        "colour is not a setting",
    )


def test_tables_are_reserved_only_where_somebody_can_have_the_role() -> None:
    (problem,) = problems({**EMBEDDED, "postgresql_tables": "public.*"})
    assert problem.startswith("postgresql_tables: without access nobody has the role postgresql")
    (problem,) = problems({**EMBEDDED, "postgresql_tables": "accounts"})
    assert problem.endswith("is 'accounts': expected schema.table, such as public.*")


def test_an_unknown_name_in_the_environment_is_an_error() -> None:
    with pytest.raises(InvalidConfig, match="settings: groop is not a setting"):
        load_config(None, EMBEDDED, {"GROUPCERT_GROOP": "shop"})


@pytest.mark.parametrize(
    "servers", [{}, {"log_server": "embedded", "log_servers": ["nats://a:1"]}], ids=["none", "both"]
)
def test_a_member_needs_one_log_and_not_two(servers: dict[str, object]) -> None:
    (problem,) = problems({**NAMED, **servers})
    assert problem.endswith('or log_server = "embedded"')


def test_a_member_whose_files_spark_would_not_see_keeps_no_log() -> None:
    named = {**EMBEDDED, "member": "_m1"}
    assert load_config(None, named, {}).member == "_m1"
    (problem,) = problems({**named, "certification_log": "log"})
    assert problem.startswith("member is '_m1': with certification_log expected a name that begins")


@pytest.mark.parametrize("address", ["a:0", "a:65536", "[::1]:99999"])
def test_a_port_is_a_port(address: str) -> None:
    assert problems({**EMBEDDED, "address": address}) == (
        "address: expected a port from 1 to 65535",
    )


@pytest.mark.parametrize("address", ["a:1", "10.0.0.1:65535", "[::1]:7101"])
def test_addresses_are_names_and_numbers_of_both_kinds(address: str) -> None:
    assert load_config(None, {**EMBEDDED, "address": address}, {}).address == address


def test_a_log_server_is_given_with_its_protocol() -> None:
    (problem,) = problems({**NAMED, "log_servers": ["a:4222"]})
    assert problem == (
        "log_servers.0 is 'a:4222': expected nats://host:port, tls://host:port, "
        "etcd://host:port or etcds://host:port"
    )


@pytest.mark.parametrize("name", ["log_server", "log_servers"])
def test_several_servers_of_etcd_may_share_what_stands_before_them(name: str) -> None:
    config = load_config(None, {**NAMED, name: "etcd://m:secret@a:1,b:2,c"}, {})
    assert config.log_servers == ("etcd://m:secret@a:1", "etcd://m:secret@b:2", "etcd://m:secret@c")
    assert (config.log_server, config.log_replicas) == (None, 3)


def test_a_log_is_on_nats_or_on_etcd() -> None:
    (problem,) = problems({**NAMED, "log_servers": ["nats://a:4222", "etcd://b:2379"]})
    assert problem == "log_servers: expected addresses of NATS or of etcd, not of both"


@pytest.mark.parametrize("content", [b"group = ", b"\xff", None], ids=["broken", "binary", "none"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "member.toml"
    if content is not None:
        path.write_bytes(content)
    (problem,) = problems({}, path)
    assert problem.startswith(f"{path} cannot be read (")
    assert problem.endswith("expected a TOML file")


def test_members_of_one_group_agree_on_its_uuid_without_being_told() -> None:
    first = load_config(None, EMBEDDED, {})
    second = load_config(None, {**EMBEDDED, "member": "m2"}, {})
    other = load_config(None, {**EMBEDDED, "group": "bank"}, {})
    assert first.group_uuid == second.group_uuid != other.group_uuid


def test_three_log_servers_hold_three_copies_and_a_single_one_holds_one() -> None:
    three = [f"nats://log{number}:4222" for number in range(3)]
    assert load_config(None, {**NAMED, "log_servers": three}, {}).log_replicas == 3
    assert load_config(None, {**NAMED, "log_servers": three[:1]}, {}).log_replicas == 1
    assert load_config(None, EMBEDDED, {}).log_replicas == 1


def test_settings_do_not_change_after_the_start() -> None:
    config = load_config(None, EMBEDDED, {})
    with pytest.raises(ValidationError, match="frozen"):
        config.group = "other"


@pytest.mark.parametrize("name", MemberConfig.model_fields)
def test_every_setting_says_what_it_is_and_why_it_has_its_default(name: str) -> None:
    description = MemberConfig.model_fields[name].description or ""
    assert "efault" in description


FILES: dict[str, object] = {"tls_authority": "a.pem", "tls_certificate": "c.pem", "tls_key": "k"}
LOG_FILES: dict[str, object] = {f"log_{name}": f"log-{path}" for name, path in FILES.items()}
PLAIN_LOG: dict[str, object] = {**NAMED, "log_servers": ["nats://a:1"]}
TLS_LOG: dict[str, object] = {**NAMED, "log_servers": ["tls://a:1"]}


@pytest.mark.parametrize("missing", FILES)
def test_tls_takes_all_three_files(missing: str) -> None:
    some = {name: path for name, path in FILES.items() if name != missing}
    (problem,) = problems({**EMBEDDED, **some})
    assert problem.startswith(f"{missing} is missing: expected a PEM file, since ")
    (problem,) = problems({**PLAIN_LOG, **{f"log_{name}": path for name, path in some.items()}})
    assert problem.startswith(f"log_{missing} is missing")


def test_an_empty_text_in_the_environment_is_no_file() -> None:
    environment = {f"GROUPCERT_{name.upper()}": "" for name in (*FILES, *LOG_FILES, "access")}
    config = load_config(None, EMBEDDED, environment)
    assert (config.tls, config.log_tls, config.access) == (None, None, None)


@pytest.mark.parametrize(
    ("settings", "authority"),
    [
        (PLAIN_LOG, None),
        ({**PLAIN_LOG, **FILES}, None),
        ({**TLS_LOG, **FILES}, "a.pem"),
        ({**TLS_LOG, **LOG_FILES}, "log-a.pem"),
        ({**PLAIN_LOG, **LOG_FILES}, "log-a.pem"),
        ({**TLS_LOG, **FILES, **LOG_FILES}, "log-a.pem"),
    ],
)
def test_the_log_is_reached_over_tls_with_its_own_files_or_by_its_address(
    settings: dict[str, object], authority: str | None
) -> None:
    tls = load_config(None, settings, {}).log_tls
    assert (None if tls is None else str(tls.authority)) == authority


def test_tls_to_a_log_needs_files_and_an_embedded_one_has_no_tls() -> None:
    (problem,) = problems(TLS_LOG)
    assert problem == "log_servers: tls:// needs the files log_tls_... or tls_..."
    (problem,) = problems({**EMBEDDED, **LOG_FILES})
    assert problem.startswith("log_tls_authority: an embedded log server is on loopback")


ACCESS = '[[principal]]\nname = "shop"\ncertificate = "shop"\nroles = ["read"]\n'


def test_access_is_a_file_or_a_table(tmp_path: Path) -> None:
    (tmp_path / "access.toml").write_text(ACCESS)
    by_file = load_config(None, {**EMBEDDED, "access": str(tmp_path / "access.toml")}, {})
    (tmp_path / "member.toml").write_text(ACCESS.replace("principal", "access.principal"))
    by_table = load_config(tmp_path / "member.toml", EMBEDDED, {})
    assert by_file.access is not None
    assert by_file.access == by_table.access
    assert load_config(None, EMBEDDED, {}).access is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "access: "),
        ("[[principal", "access: "),
        ("", "access.principal is missing"),
        (ACCESS.replace("read", "root"), "access.principal.0.roles"),
        (ACCESS.replace("certificate", "certificates"), "access.principal.0"),
        (ACCESS * 2, "access: name shop is given twice"),
    ],
)
def test_an_access_file_that_cannot_serve_is_said(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / "access.toml").write_text(content)
    found = problems({**EMBEDDED, "access": str(tmp_path / "access.toml")})
    assert found[0].startswith(problem)


@pytest.mark.parametrize(
    "principal",
    [
        {"name": "shop", "token_sha256": "secret", "roles": ["read"]},
        {"name": "shop", "token_sha256": ["secret"], "roles": ["read"]},
        {"name": "shop", "token": "secret", "roles": ["read"]},
        {"name": "shop", "token_sha256": "secret", "roles": "secret"},
        "secret",
    ],
)
def test_a_token_that_was_given_in_place_of_its_digest_is_not_told(principal: object) -> None:
    found = problems({**EMBEDDED, "access": {"principal": [principal]}})
    assert found
    assert all(each.startswith("access.principal.0") for each in found)
    assert not any("secret" in each for each in found)


@pytest.mark.parametrize(
    "address", ["nats://member:secret@log1:4222/x", "http://member:secret@log1", "member:secret@"]
)
def test_problems_show_no_password(address: str) -> None:
    (problem,) = problems({**NAMED, "log_servers": [address]})
    assert "secret" not in problem
    assert "log_servers.0 is '***@" in problem
