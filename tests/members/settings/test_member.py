"""Settings of a member: where they come from, and what is said when they are wrong."""

import pytest
from pydantic import ValidationError

from groupcert.members.settings.member import MemberConfig, load_config

NAMED: dict[str, object] = {"group": "shop", "member": "m1"}
EMBEDDED: dict[str, object] = {**NAMED, "log_server": "embedded"}


def test_settings_do_not_change_after_the_start() -> None:
    config = load_config(None, EMBEDDED, {})
    with pytest.raises(ValidationError, match="frozen"):
        config.group = "other"


@pytest.mark.parametrize("name", MemberConfig.model_fields)
def test_every_setting_says_what_it_is_and_why_it_has_its_default(name: str) -> None:
    description = MemberConfig.model_fields[name].description or ""
    assert "efault" in description
