"""Costs, and processors that are scarce."""

import json
from dataclasses import asdict
from itertools import islice
from typing import Any

import pytest

from groupcert.applier.whatif.costs import LIKE, Costs, costs_like, costs_of, replaced
from groupcert.applier.whatif.scheme_comparison import Line, run_line
from groupcert.applier.whatif.simulation import Run
from groupcert.applier.whatif.workload import Workload, load
from groupcert.certifier.errors import InvalidSetting
from tests.applier.whatif.run_bounds import bound_us
from tests.applier.whatif.streams import parse
from tests.bench.whatif_targets import NEAR, RESULTS, lines_of, rate_of, stream

GRAPH = Line("jobs", conflicts="graph")


def independent(**costs: Any) -> Workload:
    """Forty transactions of 100 us, none of which follows another."""
    lines = (f"100us d.t/{number}" for number in range(40))
    return load(parse(lines), Costs(commit_us=0, **costs))


def run(workload: Workload, workers: int, line: Line = GRAPH) -> Run:
    """Its run, which does not beat its bound."""
    found = run_line([workload], line, workers)
    assert found.makespan_us >= bound_us(workload, found)
    return found


def test_processors_limit_what_workers_reach() -> None:
    workload = independent(server_percent=50, cores=2)
    assert run(workload, 1).makespan_us == 4_000
    assert run(workload, 2).makespan_us == 2_000
    assert run(workload, 4).makespan_us == run(workload, 8).makespan_us == 40 * 50 // 2 + 50
    assert run(workload, 8).processor_us > 0 == run(workload, 2).processor_us


def test_the_applier_has_one_interpreter_however_many_cores_there_are() -> None:
    workload = independent(applier_percent=50, cores=8)
    assert run(workload, 8).makespan_us == 40 * 50 + 50
    slower = independent(applier_percent=50, handover_us=10, cores=8)
    assert run(slower, 8).makespan_us == 40 * 50 + 39 * 10 + 50
    assert run(slower, 1).makespan_us == 4_000, "one thread hands over to nobody"


def test_commits_of_a_group_share_a_sync_or_do_not() -> None:
    """Four commit as a group in 4 * (1 + 2) us, and sync once or each for 100 us."""
    line = Line("logical-clock")
    chosen = {"commit_us": 100, "commit_applier_us": 1, "commit_server_us": 2, "cores": 4}
    lines = [f"{us}us d.t/{us}" for us in (5, 1, 2, 3)]
    shared, own = (
        run(load(parse(lines), Costs(**chosen, syncs_together=together)), 4, line)
        for together in (True, False)
    )
    assert (shared.makespan_us, shared.commit_groups) == (5 + 4 * 3 + 100, 1)
    assert (own.makespan_us, own.commit_groups) == (5 + 4 * 103, 1)
    assert own.committing_us == 103 * (4 + 3 + 2 + 1), "each is free when it is visible"


def test_merged_transactions_share_a_round_trip() -> None:
    workload = independent(job_us=1_000)
    merged = run(workload, 1, Line("jobs", conflicts="merge"))
    assert (merged.jobs, merged.makespan_us) == (1, 1_000 + 40 * 100)


def test_merged_transactions_have_a_statement_for_each_table() -> None:
    lines = [f"100us d.t{number % 3}/{number}" for number in range(12)]
    workload = load(parse(lines), Costs(commit_us=0, job_us=50, table_us=10))
    assert run(workload, 1).makespan_us == 12 * 150
    merged = run(workload, 1, Line("jobs", conflicts="merge"))
    assert (merged.jobs, merged.makespan_us) == (1, 50 + 12 * 100 + 2 * 10)


def test_who_reads_versions_first_takes_longer() -> None:
    workload = independent(newest_percent=150)
    assert run(workload, 1, Line("jobs", conflicts="ignore")).makespan_us == 6_000
    assert run(workload, 1).makespan_us == 4_000


def test_costs_are_those_of_a_target_but_for_what_is_given() -> None:
    assert replaced(costs_like(None), execute_us=None) == Costs()
    chosen = replaced(costs_like("postgresql"), cores=16, row_us=None)
    assert (chosen.cores, chosen.row_us) == (16, LIKE["postgresql"].row_us)
    with pytest.raises(InvalidSetting, match=r"like.*oracle.*mariadb-replica, postgresql"):
        costs_like("oracle")
    with pytest.raises(InvalidSetting, match=r"cores.*1 or more"):
        Costs(cores=0)
    with pytest.raises(InvalidSetting, match=r"cores.*4.*nothing needs a processor"):
        replaced(costs_like("wait"), cores=4)


def test_costs_are_those_of_an_earlier_report() -> None:
    costs = LIKE["mariadb"]
    report = {"workload": {"costs": {**asdict(costs), "spread_percent": 50}}}
    assert costs_of(json.loads(json.dumps(report))) == costs


@pytest.mark.parametrize(
    "report",
    [
        [],
        {},
        {"workload": 1},
        {"workload": {"costs": 1}},
        {"workload": {"costs": {"job_us": 1}}},
        {"workload": {"costs": {**asdict(Costs()), "job_us": "1"}}},
    ],
)
def test_what_is_no_report_is_refused(report: object) -> None:
    with pytest.raises(InvalidSetting, match=r"report.*workload\.costs, as --json"):
        costs_of(report)


@pytest.mark.parametrize("name", LIKE)
def test_predictions_in_the_result_file_are_those_of_the_code(name: str) -> None:
    found = json.loads((RESULTS / "whatif-targets.json").read_text())
    workload = load(stream(found["options"]["transactions"]), LIKE[name])
    predicted = {
        (row["target"], row["scheme"], row["workers"]): row["predicted"] for row in found["results"]
    }
    for label, line in islice(lines_of(name).items(), 2):
        assert round(rate_of(workload, line, 8)) == predicted[name, label, 8]


def test_all_predictions_are_near_what_was_measured() -> None:
    found = json.loads((RESULTS / "whatif-targets.json").read_text())["results"]
    assert len(found) == 140
    assert all(abs(row["off"]) <= NEAR for row in found)
