"""Settings of a replica: where they come from, and what is said of wrong ones."""

import pytest

from groupcert.applier.engine.applier import ApplierOptions
from groupcert.members.settings.replica import ReplicaConfig, load_replica_config

SOURCE: dict[str, object] = {"sources": ["a:1"]}


def test_what_is_the_appliers_has_the_appliers_default() -> None:
    config = load_replica_config(None, SOURCE, {})
    assert config.transaction_retries == ApplierOptions().transaction_retries


@pytest.mark.parametrize(
    ("settings", "workers"),
    [
        ({}, 0),
        ({"target": "rocksdb:folder"}, 0),
        ({"target": "rocksdb:folder", "workers": 2}, 2),
        ({"target": "rocksdb:folder", "scheme": "table"}, 4),
        ({"target": "postgresql://a@b/c"}, 4),
    ],
)
def test_workers_have_a_default_by_target(settings: dict[str, object], workers: int) -> None:
    assert load_replica_config(None, SOURCE | settings, {}).workers == workers


@pytest.mark.parametrize("name", ReplicaConfig.model_fields)
def test_every_setting_says_what_it_is_and_why_it_has_its_default(name: str) -> None:
    description = ReplicaConfig.model_fields[name].description or ""
    assert "efault" in description
