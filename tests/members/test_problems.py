"""What is wrong is said in a sentence that names who it is about, and what to do."""

import pytest

from groupcert.v1 import group_pb2
from groupcert.v1.group_pb2 import (
    DepartedMember,
    GroupStatus,
    LogServerStatus,
    LogStatus,
    MemberStatus,
    ViewMember,
)
from members.log_health import LOST_MS
from members.problems import ProblemKind, cause_name, problems_of, since

NOTICED_US = 1_795_396_396_000_000


def observed(**fields: object) -> GroupStatus:
    """A member that is ONLINE and has something to say."""
    values = {"name": "m1", "state": group_pb2.MEMBER_STATE_ONLINE, **fields}
    return GroupStatus(observer=MemberStatus(**values))  # type: ignore[arg-type]


def texts(status: GroupStatus) -> dict[str, str]:
    return {problem.kind.value: problem.text for problem in problems_of(status)}


def test_where_all_is_well_there_is_nothing() -> None:
    log = LogStatus(leader="n1", servers=[server("n1", "CURRENT"), server("n2", "CURRENT")])
    status = observed(log=log)
    status.members.add(name="m2")
    assert texts(status) == {}
    assert texts(observed()) == {}, "an earlier release says nothing of the log"


def server(name: str, state: str, lag: int = 0) -> LogServerStatus:
    number = group_pb2.LogServerState.Value(f"LOG_SERVER_STATE_{state}")
    return LogServerStatus(name=name, state=number, lag=lag)


def test_a_member_that_is_not_online_says_why() -> None:
    state = group_pb2.MEMBER_STATE_RECOVERING
    status = observed(state=state, reason="reading the log: 5 of 9 messages")
    assert texts(status) == {"member_state": "m1 is RECOVERING: reading the log: 5 of 9 messages"}
    assert texts(observed(state=state)) == {"member_state": "m1 is RECOVERING"}


@pytest.mark.parametrize(
    ("member", "heard"),
    [
        (ViewMember(name="m2", silent_ms=3_140), ", for 3.1 s"),
        (ViewMember(name="m2", suspected=True), ""),
    ],
)
def test_a_member_that_is_silent_is_named(member: ViewMember, heard: str) -> None:
    status = observed()
    status.members.append(member)
    text = f"m2 is silent: m1 hears nothing of it{heard}"
    assert texts(status) == {"member_silent": text}


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (group_pb2.DEPARTURE_CAUSE_UNSPECIFIED, "is in the view no more"),
        (group_pb2.DEPARTURE_CAUSE_LEFT, "left: it was stopped, or told to leave"),
        (group_pb2.DEPARTURE_CAUSE_SILENT, "was expelled: nobody heard of it"),
        (group_pb2.DEPARTURE_CAUSE_EXPELLED, "was expelled by an operator"),
    ],
)
def test_who_has_gone_is_named_with_what_to_do(
    cause: group_pb2.DepartureCause.ValueType, words: str
) -> None:
    status = observed()
    status.departed.append(
        DepartedMember(name="m3", address="c:1", cause=cause, since_us=NOTICED_US)
    )
    then = "start it again, or `groupcert group forget m3`"
    assert texts(status) == {
        "member_departed": f"m3 (c:1) {words}, at 2026-11-23T01:13:16Z: {then}"
    }
    status.departed[0].since_us = 0
    assert texts(status) == {"member_departed": f"m3 (c:1) {words}: {then}"}


def test_each_log_server_that_is_lost_is_named() -> None:
    servers = [server("n1", "CURRENT"), server("n2", "SILENT"), server("n3", "BEHIND", 1_432)]
    status = observed(log=LogStatus(leader="n1", servers=servers))
    assert [(each.kind, each.name, each.text) for each in problems_of(status)] == [
        (
            ProblemKind.LOG_SERVER,
            "n2",
            "log server n2 is down or cut off: the others do not hear of it",
        ),
        (
            ProblemKind.LOG_SERVER,
            "n3",
            "log server n3 is behind: it lacks 1,432 entries of the log",
        ),
    ]


def test_a_log_without_a_leader_is_told_after_a_moment() -> None:
    servers = [server("n1", "UNKNOWN")]
    log = LogStatus(leaderless_ms=LOST_MS - 1, servers=servers)
    assert texts(observed(log=log)) == {}
    log.leaderless_ms = 3_210
    sentence = (
        "the log has had no leader with a majority for 3.2 s, as m1 sees it: "
        "nothing can be committed"
    )
    assert texts(observed(log=log)) == {"log_leader": sentence}
    log.problem = "no route to host"
    assert texts(observed(log=log)) == {"log_leader": f"{sentence} (no route to host)"}


def test_a_log_that_takes_nothing_and_a_certification_log_that_fails() -> None:
    status = observed(log_unacknowledged_ms=3_000, certification_log_error="No space left")
    assert texts(status) == {
        "log_unacknowledged": "the log has not acknowledged a message of m1 for 3.0 s",
        "certification_log": "m1 cannot write its certification log: No space left",
    }


def test_a_cause_and_a_time_as_documents_have_them() -> None:
    assert cause_name(group_pb2.DEPARTURE_CAUSE_SILENT) == "SILENT"
    assert since(DepartedMember(since_us=NOTICED_US)) == "2026-11-23T01:13:16Z"
    assert since(DepartedMember()) == ""
