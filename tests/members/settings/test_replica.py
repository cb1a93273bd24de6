"""Settings of a replica: where they come from, and what is said of wrong ones."""

from pathlib import Path

import pytest

from groupcert.applier.engine.applier import ApplierOptions
from groupcert.members.errors.usage import InvalidConfig
from groupcert.members.settings.replica import ReplicaConfig, load_replica_config

SOURCE: dict[str, object] = {"sources": ["a:1"]}


def problems(settings: dict[str, object]) -> tuple[str, ...]:
    """Returns what is wrong with settings."""
    with pytest.raises(InvalidConfig) as caught:
        load_replica_config(None, settings, {})
    return caught.value.problems


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "replica.toml"
    path.write_text('sources = ["file:1"]\nscheme = "file"\nreplica = "file"\nworkers = 2\n')
    environment = {"GROUPCERT_SCHEME": "env", "GROUPCERT_REPLICA": "env", "HOME": "x"}
    config = load_replica_config(path, {"scheme": "flag", "replica": None}, environment)
    assert (config.scheme, config.replica, config.workers) == ("flag", "env", 2)
    assert config.sources == ("file:1",)


def test_the_environment_has_numbers_and_lists_as_texts() -> None:
    environment = {
        "GROUPCERT_SOURCES": "a:1,b:2",
        "GROUPCERT_WORKERS": "0",
        "GROUPCERT_PRESERVE_COMMIT_ORDER": "false",
    }
    config = load_replica_config(None, {}, environment)
    assert config.sources == ("a:1", "b:2")
    assert (config.workers, config.preserve_commit_order) == (0, False)


def test_all_problems_are_told_at_once() -> None:
    wrong = {"sources": ["nowhere"], "workers": 1025, "delay_s": -1, "until_position": "5", "x": 1}
    assert problems(wrong) == (
        "sources.0 is 'nowhere': expected host:port, such as 127.0.0.1:7101 or [::1]:7101",
        "workers is 1025: input should be less than or equal to 1024",
        "delay_s is -1: input should be greater than or equal to 0",
        "until_position: expected file:sequence_number, such as 3:17, not 5",
        "x is not a setting",
    )


def test_a_replica_has_a_source() -> None:
    expected = "sources is missing: give it as ADDRESS, in the file or as GROUPCERT_SOURCES"
    assert problems({}) == (expected,)
    assert problems({"sources": []}) == ("sources: expected a member, host:port",)


def test_it_stops_at_one_condition_only() -> None:
    given = {**SOURCE, "until_view": 3, "until_after_gaps": True, "until_after_gtids": None}
    (problem,) = problems(given)
    assert problem == "until_view and until_after_gaps are given: expected one of them"


def test_gtids_are_gtids() -> None:
    (problem,) = problems({**SOURCE, "until_before_gtids": "x:1"})
    assert problem.startswith("until_before_gtids: ")
    assert "x:1" in problem


@pytest.mark.parametrize("name", ["address", "metrics_address"])
def test_a_port_is_a_port(name: str) -> None:
    (problem,) = problems({**SOURCE, name: "a:65536"})
    assert problem == f"{name}: expected a port from 1 to 65535"


def test_what_is_the_appliers_has_the_appliers_default() -> None:
    config = load_replica_config(None, SOURCE, {})
    assert config.transaction_retries == ApplierOptions().transaction_retries


@pytest.mark.parametrize("name", ReplicaConfig.model_fields)
def test_every_setting_says_what_it_is_and_why_it_has_its_default(name: str) -> None:
    description = ReplicaConfig.model_fields[name].description or ""
    assert "efault" in description
