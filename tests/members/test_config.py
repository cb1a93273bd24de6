"""Settings of a member: where they come from, and what is said when they are wrong."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from members.config import InvalidConfig, MemberConfig, load_config

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
        "GROUPCERT_RECORD_HISTORY": "true",
    }
    config = load_config(None, NAMED, environment)
    assert config.log_servers == ("nats://a:1", "nats://b:2")
    assert (config.applier_workers, config.record_history) == (8, True)


def test_all_problems_are_told_at_once() -> None:
    wrong = {"address": "nowhere", "snapshots_max": 0, "colour": "red", "gc_window": "open"}
    assert problems(wrong) == (
        "group is missing: give it in the file or as GROUPCERT_GROUP",
        "member is missing: give it in the file or as GROUPCERT_MEMBER",
        "address is 'nowhere': expected host:port",
        "gc_window is 'open': input should be 'close' or 'tight'",
        "snapshots_max is 0: input should be greater than or equal to 1",
        "colour is not a setting",
    )


def test_an_unknown_name_in_the_environment_is_an_error() -> None:
    with pytest.raises(InvalidConfig, match="settings: groop is not a setting"):
        load_config(None, EMBEDDED, {"GROUPCERT_GROOP": "shop"})


@pytest.mark.parametrize(
    "servers", [{}, {"log_server": "embedded", "log_servers": ["nats://a:1"]}], ids=["none", "both"]
)
def test_a_member_needs_one_log_and_not_two(servers: dict[str, object]) -> None:
    (problem,) = problems({**NAMED, **servers})
    assert problem == 'log: give either log_servers or log_server = "embedded"'


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
    assert problem == "log_servers.0 is 'a:4222': expected nats://host:port"


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
