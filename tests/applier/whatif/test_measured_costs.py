"""Costs of a target from the times that were measured at it."""

import pytest

from groupcert.applier.whatif.measured_costs import GROUP, MANY, Measured, Spent, measured_costs

QUIET = Measured(
    one=Spent(100, 40, 50),
    many=Spent(100 + 7 * (MANY - 1), 0, 0),
    tables=Spent(100 + 7 * (MANY - 1) + 60, 0, 0),
    newest=Spent(180, 0, 0),
    alone=Spent(200, 30, 20),
    group=Spent(GROUP * 50 + 150, GROUP * 30, GROUP * 20),
    serial=Spent(400, 120, 90),
    crowded=Spent(100, 0, 0),
)
"""The applier takes 50 us of its interpreter beside what the target takes, the server 20 more."""


def test_a_job_costs_what_its_target_takes_and_what_the_applier_takes_beside() -> None:
    costs = measured_costs(QUIET, cores=2)
    assert costs.execution_us(1) + costs.job_us == 90 + 70 + 10
    assert (costs.applier_percent, costs.server_percent) == (53, 41)
    assert (costs.row_us, costs.table_us) == (7, 60)
    assert costs.newest_percent == 100 + round(100 * 80 / 170)
    assert (costs.commit_applier_us, costs.commit_server_us, costs.cores) == (30, 20, 2)


@pytest.mark.parametrize(
    ("wait_us", "together", "commit_us"), [(150, True, 150), (GROUP * 150, False, 150)]
)
def test_jobs_of_a_group_share_a_sync_or_do_not(
    wait_us: int, together: bool, commit_us: int
) -> None:
    group = Spent(GROUP * 50 + wait_us, GROUP * 30, GROUP * 20)
    costs = measured_costs(QUIET._replace(group=group), cores=2)
    assert (costs.syncs_together, costs.commit_us) == (together, commit_us)


def test_the_handover_is_such_that_several_workers_are_predicted_as_fast_as_they_were() -> None:
    handovers = [
        measured_costs(QUIET._replace(crowded=Spent(us, 0, 0)), cores=2).handover_us
        for us in (1, 150, 200, 250, 100_000)
    ]
    assert handovers == sorted(handovers)
    assert handovers[0] == 0 < handovers[2] < handovers[-1]


def test_noise_gives_no_costs_below_zero() -> None:
    strange = QUIET._replace(
        many=Spent(90, 0, 0),
        tables=Spent(80, 0, 0),
        newest=Spent(50, 0, 0),
        serial=Spent(10, 5, 5),
        group=Spent(10, 20, 30),
    )
    costs = measured_costs(strange, cores=2)
    assert (costs.row_us, costs.table_us, costs.newest_percent, costs.commit_us) == (0, 0, 100, 0)
    assert costs.job_us == 40 + 50 + 10
