"""One audit of all scenes of the tests, each in a group of its own: Spark needs seconds for a plan,
whatever the number of rows. Segments are so short that each history has several of them, and
batches (see `conftest.py`) that walks keep something between two of them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.agree import agree
from groupcert.certifier.audit.answers.causes import Told, told_once
from groupcert.certifier.audit.answers.findings import Code, Finding
from groupcert.certifier.audit.answers.result import Result
from groupcert.certifier.audit.apply import apply
from groupcert.certifier.audit.isolation import isolation
from groupcert.certifier.audit.proof import proof
from groupcert.certifier.audit.rows import states
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.verify import verify
from tests.audit.agreement_scenes import AGREEMENT_SCENES
from tests.audit.agreement_scenes import WORKLOAD as AGREEMENT
from tests.audit.anomalies import NEIGHBOURS_MAX, WORDS
from tests.audit.faults import FAULTS, Scene
from tests.audit.histories import OPENED_US, Workload, write_as_is

JOBS = (verify, agree, isolation, apply, proof)
FAULTY = Workload(transactions=400, brought_share=0.2)
SHORT = Workload(transactions=1)
RIGHT = Workload(transactions=200)
RIGHT_ONES = {
    "usual": RIGHT,
    "tight": replace(RIGHT, gc_window="tight"),
    "blocks": replace(RIGHT, block_size=10),
    "hot": replace(RIGHT, items=3, items_each=2),
    "cold": replace(RIGHT, items=5_000, stable_every=15),
    "alone": replace(RIGHT, alone_share=0.5),
    "at-once": replace(RIGHT, period=0),
    "reads": replace(RIGHT, read_share=1.0),
    "brought": replace(RIGHT, brought_share=0.5, brought_own=True),
    "busy": replace(RIGHT, block_size=100, load=(8, 1, 1), view_every=97),
    "views": replace(RIGHT, view_every=20, block_size=7),
    "joins": replace(RIGHT, joins=True, gc_window="tight"),
}

Found = tuple[Code, str, int]
"""A code, an observer and a place."""


class Audited(NamedTuple):
    """The scenes by name, what each job has found in all of them, and what was told of that."""

    faulty: dict[str, Scene]
    right: dict[str, Scene]
    results: dict[str, Result]
    told: Told
    observers: list[str]

    @property
    def following(self) -> list[Finding]:
        """What was told below others."""
        return [each for mine in self.told.following.values() for each in mine]

    def results_of(self, job: str, scenes: Iterable[Callable[[Scene], None]]) -> list[Finding]:
        """What a job has found in the histories of some scenes."""
        observers = {
            str(rows[0]["observer"])
            for scene in scenes
            for rows in self.faulty[scene.__name__].histories.values()
        }
        return [each for each in self.results[job].findings if each.observer in observers]


def keys(findings: Iterable[Finding]) -> set[Found]:
    """Where findings are, by their code."""
    return {(each.code, each.observer, each.place) for each in findings}


def audit_of_all_scenes(spark: SparkSession, folder: Path) -> Audited:
    """Writes the histories of all scenes into a folder, and audits them."""
    faulty, right = write_scenes(folder)
    log = Log(spark, [str(folder)])
    log.opened_us = OPENED_US
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "SEGMENT_ROWS", 100)
        patch.setattr(isolation, "NEIGHBOURS_MAX", NEIGHBOURS_MAX)
        results = {job.__name__.rpartition(".")[2]: job.run(log) for job in JOBS}
        told = told_once([*results.values()])
    observers = [each.observer for each in log.histories]
    return Audited(faulty, right, results, told, observers)


def write_scenes(folder: Path) -> tuple[dict[str, Scene], dict[str, Scene]]:
    """Writes the histories of all scenes into a folder; returns those with faults, and others."""
    faulty, right = scenes()
    every = (*faulty.values(), *right.values())
    write_as_is(folder, *(rows for scene in every for rows in scene.histories.values()))
    return faulty, right


def scenes() -> tuple[dict[str, Scene], dict[str, Scene]]:
    """The scenes with faults, and others."""
    faulty = {each.name: each for each in _faulty_scenes()}
    right = {
        name: Scene(name, number, replace(workload, group=_group(9, number)))
        for number, (name, workload) in enumerate(RIGHT_ONES.items())
    }
    return faulty, right


def _faulty_scenes() -> Iterator[Scene]:
    """Each fault, each anomaly, and what does not belong together."""
    kinds = ((FAULTS, FAULTY, 100), (AGREEMENT_SCENES, AGREEMENT, 50), (tuple(WORDS), SHORT, 0))
    for kind, (faults, workload, first_seed) in enumerate(kinds):
        for number, fault in enumerate(faults):
            seed = first_seed + (number if first_seed else 0)
            scene = Scene(fault.__name__, seed, replace(workload, group=_group(kind, number)))
            fault(scene)
            yield scene


def _group(kind: int, number: int) -> str:
    return f"00000000-0000-0000-{kind:04x}-{number:012x}"
