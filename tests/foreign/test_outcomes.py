"""What a program's test came to is told by SQLSTATE and text of the errors that led to its end."""

import pytest

from tests.foreign.known import KNOWN
from tests.foreign.outcomes import outcomes_of

REFUSED = ["0A000", "FeatureNotSupported: TRUNCATE of a.b is refused on a server of a group"]


def record(name: str, outcome: str, *errors: list[str | None]) -> dict[str, object]:
    return {"test": name, "outcome": outcome, "errors": errors}


def test_refused_when_the_group_has_said_so_whatever_followed() -> None:
    followed: list[str | None] = [None, "AssertionError: 1 != 2"]
    outcomes = outcomes_of("django", [record("one", "failure", [*REFUSED], followed)])
    assert outcomes.refused.document() == {" ".join(REFUSED): {"count": 1, "tests": ["one"]}}
    assert not outcomes.failed.count


def test_failed_when_another_server_would_say_the_same() -> None:
    said: list[str | None] = ["0A000", "FeatureNotSupported: cached plan must not change result"]
    outcomes = outcomes_of("django", [record("one", "failure", said)])
    assert [*outcomes.failed.document()] == [said[1]]


def test_what_fails_for_a_reason_that_is_known_is_counted_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(KNOWN, "django", {r"^one: .*lock": "locks are a server's own"})
    records = [record(name, "failure", [None, "no lock"]) for name in ("one", "two")]
    outcomes = outcomes_of("django", records)
    assert [*outcomes.known.document()] == ["locks are a server's own"]
    assert outcomes.failed.document()["no lock"]["tests"] == ["two"]


def test_what_fails_without_a_group_is_counted_apart_but_rows_never_differ_there() -> None:
    alone = [record("one", "error"), record("two", "passed")]
    records = [record("one", "failure", [*REFUSED]), record("two", "passed")]
    outcomes = outcomes_of(
        "django", [*records, record("one", "rows", [None, "rows differ"])], alone
    )
    assert (outcomes.alone, outcomes.passed, outcomes.refused.count) == (1, 1, 0)
    assert [*outcomes.failed.document()] == ["rows differ"]


def test_a_test_that_is_skipped_only_in_a_group_has_failed() -> None:
    skipped = record("one", "skipped", [None, "skipped: no locks"])
    assert outcomes_of("django", [skipped], [record("one", "skipped")]).skipped == 1
    outcomes = outcomes_of("django", [skipped], [record("one", "passed")])
    assert [*outcomes.failed.document()] == ["skipped: no locks"]


def test_a_test_that_runs_only_without_a_group_has_failed() -> None:
    alone = [record("one", "passed"), record("two", "error")]
    assert [*outcomes_of("django", [], alone).failed.document()] == ["it was not run"]


def test_failures_that_differ_in_numbers_and_names_are_one_group() -> None:
    errors: list[list[str | None]] = [[None, f"Error: row {n} of '{n}'"] for n in range(2)]
    outcomes = outcomes_of("django", [record(str(n), "call", e) for n, e in enumerate(errors)])
    group = {"count": 2, "tests": ["0", "1"]}
    assert outcomes.failed.document() == {"Error: row * of *": group}
