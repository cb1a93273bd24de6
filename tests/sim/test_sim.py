"""The simulation: seeds pass and replay, reach what they are for, and find what is broken.

`make test` runs two hundred seeds of all scenarios, `make nightly` ten thousand.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from certifier.records import Verdict
from tests.sim.__main__ import main
from tests.sim.cluster import Cluster
from tests.sim.mutants import MUTANTS
from tests.sim.scenarios import SCENARIOS, scenario_of

SEEDS_A_TEST = 20
SEEDS = range(0, 200, SEEDS_A_TEST)
STEPS = 800
MUTANT_SEEDS_MAX = 60
SEEN_IN = {
    "ask-nobody": "lost-tail",
    "believe-everybody": "stranger",
    "believe-the-log": "lost-tail",
    "forget-the-copies": "disk",
    "forget-the-fence": "lost-tail",
    "own-what-bears-its-mark": "stranger",
}
"""Mutants that few scenarios have an opportunity to find, each with one that has."""
SEEN_BY_CLIENTS = {
    "acknowledge-before-the-log": "acknowledged-lost",
    "ignore-last-item": "relay-overlap",
    "ignore-read-set": "write-skew",
    "skip-commit-order": "relay-order",
    "stamp-one-too-early": "relay-overlap",
    "tear-the-copy": "relay-skipped",
}
"""Mutants, each with what the workloads' checkers make of it."""
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    "first_seed",
    [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[1:])],
)
def test_every_promise_is_kept_under_faults(first_seed: int) -> None:
    arguments = ["--seed", str(first_seed), "--seeds", str(SEEDS_A_TEST), "--steps", str(STEPS)]
    assert main(arguments) == 0


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found_and_its_replay_is_named(
    mutant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--steps={STEPS}", f"--mutant={mutant}", f"--seeds={MUTANT_SEEDS_MAX}"]
    if mutant in SEEN_IN:
        arguments.append(f"--scenario={SEEN_IN[mutant]}")
    assert main(arguments) == 1
    *_, last_line = capsys.readouterr().out.splitlines()
    command, _, replay = last_line.partition("replay with: ")
    assert command == "FAILED; "
    assert replay.startswith("python -m tests.sim --seed=")
    assert main(replay.removeprefix("python -m tests.sim ").split()) == 1
    assert capsys.readouterr().out.splitlines()[-1] == last_line


@pytest.mark.parametrize("mutant", SEEN_BY_CLIENTS)
def test_clients_see_what_is_broken(mutant: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--steps={STEPS}", f"--mutant={mutant}", "--clients-alone"]
    assert main([*arguments, f"--seeds={MUTANT_SEEDS_MAX}"]) == 1
    output = capsys.readouterr().out
    (findings,) = (line for line in output.splitlines() if line.startswith("findings"))
    assert SEEN_BY_CLIENTS[mutant] in findings


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


def test_several_processes_find_the_same() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seed=3", "--seeds=4", "--steps=300"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    alone, together = (
        subprocess.run(
            [*command, f"--jobs={jobs}"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            check=True,
        ).stdout
        for jobs in (1, 2)
    )
    assert alone == together


def test_a_seed_is_the_same_run_in_every_process() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seed=1", "--seeds=3", f"--steps={STEPS}"]
    path = os.pathsep.join(sys.path)
    outputs = {
        subprocess.run(
            command,
            cwd=ROOT,
            env={"PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert b"lost 0" in outputs.pop()


def test_runs_reach_what_they_are_for() -> None:
    verdicts = dict.fromkeys(Verdict, 0)
    reached: Counter[str] = Counter()
    names = ("repeated", "collected", "forgotten", "acknowledged", "expelled", "changed", "held")
    for seed in range(15):
        cluster = Cluster(seed, "mix")
        cluster.run(STEPS * 3)
        reached.update(cluster.reached)
        reached["acknowledged"] += len(cluster.checks.acknowledged)
        reached["expelled"] += cluster.checks.expelled
        for member in cluster.members.values():
            mind = member.mind
            reached["repeated"] += mind.counters.repeated
            reached["collected"] += mind.certifier.stable_version
            reached["forgotten"] += mind.outcomes.forgotten_version > 0
            reached["changed"] += mind.settings.settings_version > 1
            reached["single_primary"] += mind.settings.single_primary
            reached["held"] += mind.flow.held_ms
            for verdict in Verdict:
                verdicts[verdict] += mind.counters.verdicts[verdict]
    missing = [name for name in (*names, *cluster.reached) if not reached[name]]
    assert not missing, reached
    assert verdicts[Verdict.CERTIFIED] and verdicts[Verdict.CONFLICT] and verdicts[Verdict.TOO_OLD]
