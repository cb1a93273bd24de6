"""The settings of simulated groups, by the dice."""

import random

from groupcert.members.core.log_records import GroupSettings


def first_settings(dice: random.Random) -> GroupSettings:
    """What a member is configured with; the first one's make the group."""
    return some_settings(
        dice,
        GroupSettings(
            settings_version=1,
            group="simulated",
            group_uuid="aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa",
            gtid_assignment_block_size=1,
            gc_window="close",
            write_set_items_max=100,
            outcomes_max=dice.choice((8, 30, 1_000)),
        ),
        single_primary=0.2,
    )


def some_settings(
    dice: random.Random, settings: GroupSettings, *, single_primary: float = 0.5
) -> GroupSettings:
    """Other ones, of those that a group may change."""
    return settings._replace(
        gtid_assignment_block_size=dice.choice((1, 3, 1_000_000)),
        gc_window=dice.choice(("close", "tight")),
        flow_control_lag_max=dice.choice((0, 9, 100)),
        single_primary=dice.random() < single_primary,
    )
