"""What is told of an applier's use of its workers, by numbers that Spark has summed up."""

from pyspark.sql import Row

from groupcert.certifier.audit.apply.times import _use

RUNNING = [
    Row(any_us=600, busy_us=1_200),
    Row(any_us=400, busy_us=800),
]
WORKERS = [Row(worker=number) for number in (0, 1, 2, 3, None)]


def test_used_share_is_what_ran_at_once_of_what_could_have() -> None:
    used = _use(RUNNING, {"work": 2_000, "path": 800, "forced": 0}, WORKERS, 4_000)
    assert used == {
        "workers": 4,
        "running_mean": 2.0,
        "possible_mean": 2.5,
        "used_share": 0.8,
        "busy_share": 0.25,
        "forced_cuts": 0,
    }


def test_used_share_is_told_with_the_cuts_that_make_it_a_bound() -> None:
    used = _use(RUNNING, {"work": 2_000, "path": 800, "forced": 2}, WORKERS, 4_000)
    assert (used["used_share"], used["forced_cuts"]) == (0.8, 2)


def test_what_is_not_known_is_no_number() -> None:
    nobody = [Row(worker=None)]
    assert _use(RUNNING, {"work": 2_000, "path": 800, "forced": 0}, nobody, 4_000) == {
        "workers": 0,
        "running_mean": 2.0,
        "possible_mean": 2.5,
        "used_share": None,
        "busy_share": 0.25,
        "forced_cuts": 0,
    }
    assert _use([], {"work": 0, "path": 0, "forced": 0}, WORKERS, 4_000)["busy_share"] is None
