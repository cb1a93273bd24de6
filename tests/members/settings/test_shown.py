"""Settings as other members and pages may see them: without anything secret."""

from pathlib import Path

from groupcert.members.core.log_records import GroupSettings
from groupcert.members.security.access import AccessList
from groupcert.members.settings.member import MemberConfig
from groupcert.members.settings.shown import OF_ONE_MEMBER, default_settings, shown_settings


def config(**settings: object) -> MemberConfig:
    return MemberConfig.model_validate(
        {"group": "g", "member": "m1", "log_servers": "nats://me:secret@log1:4222", **settings}
    )


def test_no_password_and_no_token_is_shown() -> None:
    access = {"principal": [{"name": "x", "token_sha256": "a" * 64, "roles": ["read"]}]}
    shown = shown_settings(
        config(
            log_trim_servers="nats://op:secret@log1:4222",
            log_monitors="http://op:secret@log1:8222",
            token_file="token",
            access=AccessList.model_validate(access),
        )
    )
    assert shown["log_servers"] == "nats://log1:4222"
    assert (shown["access"], shown["token_file"]) == ("1 principals", "token")
    assert not any("secret" in value or "aaaa" in value for value in shown.values())


def test_what_the_group_agrees_on_is_left_out() -> None:
    shown = shown_settings(config())
    assert shown.keys() == default_settings().keys()
    assert shown.keys().isdisjoint(GroupSettings._fields)
    assert shown.keys() >= OF_ONE_MEMBER


def test_what_is_not_set_is_the_default() -> None:
    shown, defaults = shown_settings(config()), default_settings()
    assert (shown["binary_log"], shown["workers"]) == ("true", "4")
    changed = {name for name in shown if shown[name] != defaults[name]}
    assert changed == {"member", "log_servers", "log_replicas", "create_log"}
    assert shown_settings(config(data_folder=Path("d")))["data_folder"] == "d"
