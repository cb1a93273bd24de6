"""`python -m tests.bench`: options, exit codes, and what is kept after Ctrl-C."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest

from tests.bench import __main__ as command
from tests.bench.__main__ import BENCHMARKS, UNAVAILABLE, main, parser_of
from tests.bench.harness import Document, Load, Run, in_turns
from tests.integration.test_interruption import (
    INTERRUPTED,
    assert_nothing_left,
    press_ctrl_c,
    running,
)
from tests.integration.waiting import wait_for

BENCH = "tests.bench"


def stand_in(
    run: Run, rounds: int = 2, kinds: tuple[str, ...] = (), right: bool = True
) -> Document:
    """Measures nothing."""
    results = run.measure(in_turns([Load(kind, len) for kind in kinds], rounds), nullcontext("ab"))
    run.check(right, "all of it")
    return {"machine": {"cores": 2}, "found": results}


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "function_of", lambda name: stand_in)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_its_options_and_says_what_it_does(name: str) -> None:
    options = parser_of(name)
    assert options.description
    parsed = vars(options.parse_args(["--json"]))
    assert parsed.pop("as_json") and parsed.pop("output") is None
    for option in parsed:
        assert f"    {option}: " in options.description


@pytest.mark.usefixtures("stood_in")
def test_standard_output_and_the_file_have_the_document_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "found.json"
    words = ["group", "--json", "--output", str(output), "--rounds", "2", "--kinds", "a", "b"]
    assert main(words) == 0
    printed, told = capsys.readouterr()
    assert json.loads(printed) == json.loads(output.read_text())
    assert json.loads(printed)["found"] == {"a": [2, 2], "b": [2, 2]}
    assert [line for line in told.splitlines() if line.startswith("[")] == [
        "[1/4] a, round 1",
        "[2/4] b, round 1",
        "[3/4] a, round 2",
        "[4/4] b, round 2",
    ]


@pytest.mark.usefixtures("stood_in")
def test_what_is_wrong_is_told_beside_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["group", "--no-right", "--kinds", "a"]) == 1
    printed, told = capsys.readouterr()
    assert printed == "found: a [2, 2]\n"
    assert told.endswith("WRONG: all of it\n")


def test_what_was_measured_before_an_interrupt_is_kept() -> None:
    def stopped(_: str) -> int:
        raise KeyboardInterrupt

    run = Run()
    loads: list[Load[str]] = [Load("one", len), Load("two", stopped), Load("three", stopped)]
    assert run.measure(loads, nullcontext("ab")) == {"one": [2]}
    assert run.document() == {"interrupted": True, "not_run": ["two", "three"]}


def test_a_setup_that_is_interrupted_has_run_nothing_and_no_error_is_hidden() -> None:
    @contextmanager
    def setup(error: BaseException) -> Iterator[None]:
        raise error
        yield

    run = Run()
    assert run.measure([Load("one", lambda _: 1)], setup(KeyboardInterrupt())) == {}
    assert run.not_run == ["one"]
    with pytest.raises(ZeroDivisionError):
        run.measure([Load("one", lambda _: 1)], setup(ZeroDivisionError()))


@pytest.mark.nats
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.in_turns
def test_the_benchmark_of_a_group_keeps_the_loads_that_are_done(tmp_path: Path) -> None:
    with running(tmp_path, "group", "--seconds", "2", "--json", module=BENCH) as bench:
        wait_for("part 2", lambda: "[2/" in (tmp_path / "err").read_text())
        started = psutil.Process(bench.pid).children(recursive=True)
        assert len(started) >= 4, "a log server and three members"
        document = json.loads(press_ctrl_c(bench))
        assert bench.returncode == INTERRUPTED
    assert [result["load"] for result in document["results"]] == ["stream"]
    assert document["not_run"] == ["commits of 8 clients", "commits of 32 clients"]
    assert_nothing_left(tmp_path, started)


@pytest.mark.nats
@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.in_turns
def test_the_certifiers_benchmark_keeps_the_sizes_that_are_done(tmp_path: Path) -> None:
    with running(tmp_path, "certify", "--json", module=BENCH) as bench:
        wait_for("part 2", lambda: "[2/" in (tmp_path / "err").read_text())
        started = psutil.Process(bench.pid).children(recursive=True)
        document = json.loads(press_ctrl_c(bench))
        assert bench.returncode == INTERRUPTED
    assert [size["resident_items"] for size in document["sizes"]] == [10_000]
    assert document["not_run"] == ["1,000,000 resident items", "5,000,000 resident items"]
    assert_nothing_left(tmp_path, started)


@pytest.mark.in_turns
@pytest.mark.slow
@pytest.mark.database
def test_the_benchmark_of_a_group_runs_in_turns_with_galera(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["group", "--galera", "--seconds", "0.5", "--json"])
    printed, told = capsys.readouterr()
    if code == UNAVAILABLE and os.environ.get("REQUIRE_DATABASES") != "1":
        pytest.skip(told)
    assert code == 0, told
    document = json.loads(printed)
    for system, ratios in document["ratios"].items():
        for clients in ("8", "32"):
            ours, theirs = document[system][clients], document["galera"][clients]
            for name, ratio in ratios[clients].items():
                assert theirs[name] > 0
                assert ratio == pytest.approx(ours[name] / theirs[name], abs=0.001)
    loads = [(each["load"], each["clients"], each["log_servers"]) for each in document["results"]]
    assert loads == [("stream", 3, 1), *(("commits", n, log) for n in (8, 32) for log in (1, 3))]
    for result in document["results"]:
        assert result["commits_per_second"] > 0
        assert 0 < result["p50_ms"] <= result["p99_ms"]
        assert result["cpu_cores"].keys() == {"members", "log_server", "clients"}
