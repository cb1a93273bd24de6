"""What a run is about: which faults happen, and how often; the same names as in `tests/cluster`.

The rule it keeps: a scenario is a row of a table. Which one a seed runs, the seed says, unless one
is asked for by its name.
"""

import random
from typing import NamedTuple

from tests.sim import faults
from tests.sim.faults import Fault

FAULTS_WEIGHT = 2
"""The share of faults among all events, which have weights of 79 together."""


class Scenario(NamedTuple):
    """`faults`: each with its weight. `weight`: how often there is one. `loss`: the share of what a
    member sends or reads that has to be tried again. `drift`: each clock goes at its own rate.
    """

    faults: tuple[tuple[int, Fault], ...]
    weight: int = FAULTS_WEIGHT
    loss: float = 0.0
    drift: bool = False


_USUAL: tuple[tuple[int, Fault], ...] = (
    (3, faults.crash),
    (6, faults.start),
    (3, faults.pause),
    (1, faults.leave),
    (3, faults.stop_outside),
    (1, faults.expel),
    (1, faults.lose_log),
    (1, faults.change_settings),
    (1, faults.appoint),
)
_ALL: tuple[tuple[int, Fault], ...] = (
    *_USUAL,
    (1, faults.cut_off),
    (1, faults.lag),
    (1, faults.step_clock),
    (1, faults.lose_disk),
    (1, faults.switch_timelines),
    (1, faults.act_as_operator),
    (1, faults.roll),
)
SCENARIOS = {
    "mix": Scenario(_ALL, drift=True, loss=0.1),
    "away": Scenario(
        (
            (2, faults.crash),
            (1, faults.start),
            (1, faults.leave),
            (1, faults.stop_outside),
            (2, faults.switch_timelines),
            (1, faults.act_as_operator),
            (1, faults.pause),
        )
    ),
    "churn": Scenario(
        (
            (3, faults.leave),
            (6, faults.stop_outside),
            (6, faults.start),
            (1, faults.expel),
            (1, faults.crash),
            (1, faults.appoint),
            (1, faults.change_settings),
        ),
        weight=4,
    ),
    "clock": Scenario(((4, faults.step_clock), (1, faults.crash), (2, faults.start)), drift=True),
    "delay": Scenario(((1, faults.crash), (2, faults.start), (1, faults.lag)), loss=0.6),
    "disk": Scenario(
        (
            (3, faults.lose_disk),
            (4, faults.start),
            (1, faults.crash),
            (1, faults.switch_timelines),
            (1, faults.act_as_operator),
        )
    ),
    "kill": Scenario(((5, faults.crash), (1, faults.crash_all), (7, faults.start))),
    "lag": Scenario(((4, faults.lag), (1, faults.crash), (2, faults.start), (1, faults.pause))),
    "log-leader": Scenario(((4, faults.lose_log), (1, faults.crash), (2, faults.start))),
    "lost-tail": Scenario(
        (
            (2, faults.lose_tail),
            (3, faults.crash),
            (3, faults.start),
            (1, faults.roll),
            (1, faults.lose_disk),
            (3, faults.trust_log),
        )
    ),
    "partition": Scenario(((4, faults.cut_off), (1, faults.crash), (2, faults.start))),
    "pause": Scenario(((4, faults.pause), (1, faults.start))),
    "rolling": Scenario(((4, faults.roll), (1, faults.start))),
    "stranger": Scenario(
        (
            (6, faults.write_junk),
            (2, faults.impersonate),
            (1, faults.crash),
            (3, faults.start),
            (1, faults.leave),
            (1, faults.stop_outside),
        ),
        weight=4,
    ),
    "usual": Scenario(_USUAL),
}


def scenario_of(seed: int) -> str:
    """What a seed runs: every other one a mix of everything."""
    dice = random.Random(f"scenario {seed}")
    return "mix" if dice.random() < 0.5 else dice.choice(sorted(SCENARIOS))
