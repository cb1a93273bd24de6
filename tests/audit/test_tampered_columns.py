"""Which column is covered by what, one tampering a row of the table `TAMPERINGS`."""

from dataclasses import replace
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from groupcert.certifier.audit.agree import agree
from groupcert.certifier.audit.answers.findings import Code, Finding
from groupcert.certifier.audit.answers.result import Result
from groupcert.certifier.audit.proof import proof
from groupcert.certifier.audit.rows.certification_log import Log
from groupcert.certifier.audit.verify import verify
from tests.audit.faults import Scene
from tests.audit.histories import write_as_is
from tests.audit.tamperings import TAMPERINGS, WORKLOAD, Tampering, apply_to_all, apply_to_one

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.in_turns]


class Tampered(NamedTuple):
    """What each job found in all scenes, and the scene with one copy that was not chained anew."""

    results: dict[str, Result]
    edited: Scene

    def found(self, job: str, name: str) -> list[Finding]:
        """What a job found in the histories of a scene."""
        return [
            each for each in self.results[job].findings if each.observer.rpartition("-")[0] == name
        ]


@pytest.fixture(scope="module")
def tampered(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tampered:
    """An audit of a group for each tampering, and of one with all of them in one copy."""
    scenes = []
    for number, tampering in enumerate(TAMPERINGS):
        group = f"00000000-0000-0000-0007-{number:012x}"
        scenes.append(Scene(tampering.name, 5, replace(WORKLOAD, group=group)))
        apply_to_all(tampering, scenes[-1])
    group = "00000000-0000-0000-0007-0000000000ff"
    edited = Scene("edited", 5, replace(WORKLOAD, group=group))
    apply_to_one(TAMPERINGS, edited)
    folder = tmp_path_factory.mktemp("tampered")
    write_as_is(folder, *(rows for each in (*scenes, edited) for rows in each.histories.values()))
    log = Log(spark, [str(folder)])
    jobs = {"verify": verify, "agree": agree, "proof": proof}
    return Tampered({name: job.run(log) for name, job in jobs.items()}, edited)


@pytest.mark.parametrize("tampering", TAMPERINGS, ids=lambda each: each.column)
def test_a_change_of_all_copies_is_found_by_the_rule_and_the_digest_alone(
    tampered: Tampered, tampering: Tampering
) -> None:
    own = [each.code for each in tampered.found("agree", tampering.name)]
    assert own == list(tampering.told), "the copies are alike"
    rule = {each.code for each in tampered.found("verify", tampering.name)}
    assert rule == {*tampering.rule}
    told = {each.code for each in tampered.found("proof", tampering.name)}
    assert told == ({Code.DIGEST_WRONG} if tampering.in_digest else set())


def test_a_change_of_one_copy_is_found_by_its_chain_whatever_the_column(
    tampered: Tampered,
) -> None:
    found = {(each.code, each.observer, each.place) for each in tampered.found("proof", "edited")}
    edited = {each for each in found if each[0] is Code.RECORD_EDITED}
    assert edited == tampered.edited.expected
    assert len(edited) == len(TAMPERINGS)
