"""The simulation: seeds pass and replay, reach what they are for, and find what is broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from certifier.records import Verdict
from tests.sim.__main__ import main
from tests.sim.cluster import Cluster
from tests.sim.mutants import MUTANTS

SEEDS_A_TEST = 20
SEEDS = range(0, 200, SEEDS_A_TEST)
STEPS = 300
MUTANT_SEEDS_MAX = 60
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
    arguments = [f"--steps={STEPS}", f"--mutant={mutant}"]
    assert main([*arguments, f"--seeds={MUTANT_SEEDS_MAX}"]) == 1
    *_, last_line = capsys.readouterr().out.splitlines()
    command, _, replay = last_line.partition("replay with: ")
    assert command == "FAILED; "
    assert replay.startswith("python -m tests.sim --seed=")
    assert main(replay.removeprefix("python -m tests.sim ").split()) == 1
    assert capsys.readouterr().out.splitlines()[-1] == last_line


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
    reached = dict.fromkeys(("repeated", "collected", "forgotten", "rejoined", "acknowledged"), 0)
    for seed in range(15):
        cluster = Cluster(seed)
        cluster.run(STEPS * 3)
        reached["acknowledged"] += len(cluster.checks.acknowledged)
        for member in cluster.members.values():
            mind = member.mind
            reached["repeated"] += mind.counters.repeated
            reached["collected"] += mind.certifier.stable_version
            reached["forgotten"] += mind.outcomes.forgotten_version > 0
            reached["rejoined"] += mind.me.incarnation > len(cluster.disks)
            for verdict in Verdict:
                verdicts[verdict] += mind.counters.verdicts[verdict]
    assert all(reached.values()), reached
    assert verdicts[Verdict.CERTIFIED] and verdicts[Verdict.CONFLICT] and verdicts[Verdict.TOO_OLD]
