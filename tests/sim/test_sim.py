"""The simulation: seeds pass and replay, reach what they are for, and find what is broken.

`make test` runs a hundred seeds of all scenarios in four days, `make nightly` ten thousand.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from groupcert.certifier.records import Verdict
from tests.sim.__main__ import main
from tests.sim.cluster import Cluster
from tests.sim.mutants import MUTANTS
from tests.sim.scenarios import SCENARIOS, scenario_of

SEEDS_A_TEST = 10
SEEDS = range(0, 100, SEEDS_A_TEST)
LATER = (pytest.mark.slow, pytest.mark.in_turns)
STEPS = 800
MUTANT_SEEDS_MAX = 60
REACHING_SEEDS_MAX = 15
REACHING = ("mix", "mix", "away")
"""Scenarios that take turns; by the last one members are late enough to be on another timeline."""
SEEN_IN = {
    "ask-nobody": "lost-tail",
    "believe-everybody": "stranger",
    "believe-the-log": "lost-tail",
    "forget-the-copies": "disk",
    "forget-the-fence": "lost-tail",
    "own-what-bears-its-mark": "stranger",
}
"""Mutants that few scenarios have an opportunity to find, each with one that has."""
SEEN_AT = {
    "believe-the-log": 2,
    "forget-the-doubt": 19,
    "forget-the-fence": 1,
    "ask-nobody": 3,
    "ignore-read-set": 1,
    "own-what-bears-its-mark": 2,
    "skip-the-gap": 12,
    "suspect-by-the-clock": 8,
    "take-a-part-for-the-whole": 1,
    "take-any-copy": 16,
    "take-from-everybody": 2,
}
"""The seed that finds a mutant soonest, where it is not the first."""
SEEN_BY_CLIENTS = {
    "acknowledge-before-the-log": ("acknowledged-lost", 0),
    "ignore-last-item": ("relay-overlap", 0),
    "ignore-read-set": ("write-skew", 3),
    "skip-commit-order": ("relay-order", 1),
    "stamp-one-too-early": ("relay-overlap", 0),
    "tear-the-copy": ("relay-skipped", 4),
}
"""Mutants, each with what the workloads' checkers make of it, and the seed that shows it."""
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    "first_seed",
    [0, *(pytest.param(each, marks=LATER) for each in SEEDS[1:])],
)
def test_every_promise_is_kept_under_faults(first_seed: int) -> None:
    arguments = ["--seed", str(first_seed), "--seeds", str(SEEDS_A_TEST), "--steps", str(STEPS)]
    assert main(arguments) == 0


@pytest.mark.parametrize("names", [("m3",), ("m1", "m2")])
def test_every_promise_is_kept_beside_members_without_rows(names: tuple[str, ...]) -> None:
    arguments = [f"--seeds={SEEDS_A_TEST}", f"--steps={STEPS}"]
    assert main([*arguments, *(f"--without-rows={name}" for name in names)]) == 0


def find(arguments: list[str], seed: int) -> int:
    """Runs the seed that is known to fail; a change of the simulation may move it to another."""
    return main([*arguments, f"--seed={seed}"]) or main([*arguments, f"--seeds={MUTANT_SEEDS_MAX}"])


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found_and_its_replay_is_named(
    mutant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--steps={STEPS}", f"--mutant={mutant}"]
    if mutant in SEEN_IN:
        arguments.append(f"--scenario={SEEN_IN[mutant]}")
    assert find(arguments, SEEN_AT.get(mutant, 0)) == 1
    *_, last_line = capsys.readouterr().out.splitlines()
    command, _, replay = last_line.partition("replay with: ")
    assert command == "FAILED; "
    assert replay.startswith("python -m tests.sim --seed=")
    assert main(replay.removeprefix("python -m tests.sim ").split()) == 1
    assert capsys.readouterr().out.splitlines()[-1] == last_line


@pytest.mark.parametrize("mutant", SEEN_BY_CLIENTS)
def test_clients_see_what_is_broken(mutant: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--steps={STEPS}", f"--mutant={mutant}", "--clients-alone"]
    code, seed = SEEN_BY_CLIENTS[mutant]
    assert find(arguments, seed) == 1
    *_, findings = re.findall("^findings.*", capsys.readouterr().out, re.M)
    assert code in findings


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_runs_by_its_name(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--scenario={scenario}", "--seeds=5", f"--steps={STEPS}"]) == 0
    *runs, totals = capsys.readouterr().out.splitlines()
    assert all(f"{scenario}: faults" in run for run in runs)
    assert scenario == "lost-tail" or "lost 0" in totals
    assert "longest stall" in totals


def test_many_seeds_run_every_scenario() -> None:
    assert {scenario_of(seed) for seed in range(200)} == set(SCENARIOS)


@pytest.mark.slow
def test_a_seed_is_the_same_run_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    """In this one, and in two of another hash seed that share the seeds."""
    arguments = ["--seed=1", "--seeds=2", "--steps=400"]
    assert main(arguments) == 0
    together = subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments, "--jobs=2"],
        cwd=ROOT,
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
    )
    alone = capsys.readouterr().out
    assert together.stdout.decode() == alone
    assert "lost 0" in alone


@pytest.mark.slow
def test_runs_reach_what_they_are_for() -> None:
    reached: Counter[str] = Counter()
    names = {
        "repeated",
        "collected",
        "compared",
        "forgotten",
        "acknowledged",
        "expelled",
        "changed",
        "held",
    }
    names |= {"single_primary", Verdict.CERTIFIED.name, Verdict.CONFLICT.name, Verdict.TOO_OLD.name}
    for seed in range(REACHING_SEEDS_MAX):
        cluster = Cluster(seed, REACHING[seed % len(REACHING)])
        cluster.run(STEPS)
        reached.update(cluster.reached)
        reached["acknowledged"] += len(cluster.checks.acknowledged)
        reached["expelled"] += cluster.checks.expelled
        for member in cluster.members.values():
            machine = member.machine
            reached["repeated"] += machine.counters.repeated
            reached["compared"] += machine.comparisons.is_over
            reached["collected"] += machine.certifier.stable_version
            reached["forgotten"] += machine.outcomes.forgotten_version > 0
            reached["changed"] += machine.settings.settings_version > 1
            reached["single_primary"] += machine.settings.single_primary
            reached["held"] += machine.flow.held_ms
            for verdict in Verdict:
                reached[verdict.name] += machine.counters.verdicts[verdict]
        missing = [name for name in {*names, *cluster.reached} if not reached[name]]
        if not missing:
            break
    assert not missing, reached
