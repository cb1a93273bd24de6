"""What a program's test came to is told by SQLSTATE and text of the errors that led to its end."""

from tests.foreign.outcomes import outcomes_of

REFUSED = ["0A000", "FeatureNotSupported: TRUNCATE of a.b is refused on a server of a group"]


def record(name: str, outcome: str, *errors: list[str | None]) -> dict[str, object]:
    return {"test": name, "outcome": outcome, "errors": errors}


def test_refused_when_the_group_has_said_so_whatever_followed() -> None:
    followed: list[str | None] = [None, "AssertionError: 1 != 2"]
    outcomes = outcomes_of([record("one", "failure", [*REFUSED], followed)], frozenset())
    assert dict(outcomes.refused) == {" ".join(REFUSED): ["one"]}
    assert not outcomes.failed


def test_failed_when_another_server_would_say_the_same() -> None:
    said: list[str | None] = ["0A000", "FeatureNotSupported: cached plan must not change result"]
    outcomes = outcomes_of([record("one", "failure", said)], frozenset())
    assert [*outcomes.failed] == [said[1]]


def test_what_fails_without_a_group_is_counted_apart() -> None:
    records = [record("one", "failure", [*REFUSED]), record("two", "passed")]
    document = outcomes_of(records, frozenset(["one"])).document()
    assert document["failed alone too"] == 1
    assert document["passed"] == 1
    assert not document["refused"]


def test_failures_that_differ_in_numbers_and_names_are_one_group() -> None:
    errors: list[list[str | None]] = [[None, f"Error: row {n} of '{n}'"] for n in range(2)]
    outcomes = outcomes_of([record(str(n), "call", e) for n, e in enumerate(errors)], frozenset())
    assert dict(outcomes.failed) == {"Error: row * of *": ["0", "1"]}
