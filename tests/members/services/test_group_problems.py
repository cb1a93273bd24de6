"""What is wrong is said in a sentence that names who it is about, and what to do: the script
tests/testdata/group_problems.txt has a status, as text of its message, and its problems.
"""

from pathlib import Path

from google.protobuf import text_format

from groupcert.members.services.group_problems import (
    problems_of,
    problems_of_all,
    since,
)
from groupcert.members.total_order.server_health import LOST_MS
from groupcert.v1.group_pb2 import DepartedMember, GroupStatus
from tests.datadriven import Command, run_script

SCRIPT = Path(__file__).parents[2] / "testdata" / "group_problems.txt"
ONLINE = 'observer { name: "m1" state: MEMBER_STATE_ONLINE }'


def problems(command: Command) -> str:
    """status: of m1, which is ONLINE where the body does not say more; all fields of the status."""
    status = text_format.Parse(ONLINE, GroupStatus())
    text_format.Merge("\n".join(command.body), status)
    return "\n".join(
        f"{each.kind.value} of {each.name}: {each.text}" for each in problems_of(status)
    )


def test_the_script_gives_its_answers(rewrite: bool) -> None:
    assert LOST_MS == 2_000, "the script has times just below and above"
    run_script(SCRIPT, {"status": problems}, rewrite=rewrite)


def test_a_time_as_documents_have_it() -> None:
    assert since(DepartedMember(since_us=1_795_396_396_000_000)) == "2026-11-23T01:13:16Z"
    assert since(DepartedMember()) == ""


def test_problems_of_all_are_told_once() -> None:
    seen = text_format.Parse(ONLINE, GroupStatus())
    seen.members.add(name="m2", suspected=True)
    fenced = text_format.Parse('observer { name: "m3" state: MEMBER_STATE_FENCED }', GroupStatus())
    fenced.members.add(name="m2", suspected=True)
    found = problems_of_all(seen, {"m1": seen, "m2": "it is gone", "m3": fenced})
    assert [(each.kind, each.name) for each in found] == [
        ("member_silent", "m2"),
        ("member_state", "m3"),
        ("member_unreachable", "m2"),
    ]
    assert found[2].text == "m2 does not answer: it is gone"
