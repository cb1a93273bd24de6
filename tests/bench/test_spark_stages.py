"""What stages took: by their tasks that ran, in the events that Spark writes."""

import json
from pathlib import Path
from typing import Any

from tests.bench.spark_stages import stages


def task(stage: int, seconds: float, *, spilled: int = 0) -> dict[str, Any]:
    """The end of a task that read and wrote two megabytes."""
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": stage,
        "Task Info": {"Launch Time": 1_000, "Finish Time": 1_000 + int(seconds * 1_000)},
        "Task Metrics": {
            "Disk Bytes Spilled": spilled,
            "Shuffle Read Metrics": {"Local Bytes Read": 1_500_000, "Remote Bytes Read": 500_000},
            "Shuffle Write Metrics": {"Shuffle Bytes Written": 2_000_000},
        },
    }


def completed(stage: int, *operators: str) -> dict[str, Any]:
    """The end of a stage of 2.5 s, which runs operators, from its source on."""
    names = list(enumerate(reversed(operators)))[::-1]
    ids = {number: f"spark_plan_{number}" if number % 2 else str(number) for number, _ in names}
    scopes = [json.dumps({"id": ids[number], "name": name}) for number, name in names]
    return {
        "Event": "SparkListenerStageCompleted",
        "Stage Info": {
            "Stage ID": stage,
            "Submission Time": 10_000,
            "Completion Time": 12_500,
            "RDD Info": [{"Scope": scope} for scope in sorted(scopes)] + [{"Name": "others"}],
        },
    }


def test_stages_have_what_their_tasks_took(tmp_path: Path) -> None:
    events = (
        {"Event": "SparkListenerLogStart"},
        task(7, 1),
        task(7, 0.5),
        task(7, 8, spilled=3_000_000),
        task(7, 1) | {"Task Metrics": None},
        task(2, 1),
        completed(7, "Scan parquet", "WholeStageCodegen (1)", "Exchange"),
        completed(2),
        completed(3, "was skipped"),
    )
    (tmp_path / "local-1").write_text("".join(f"{json.dumps(each)}\n" for each in events))
    small, large = stages(tmp_path)
    assert (small["number"], small["operators"], small["tasks"]) == (2, (), 1)
    assert large == dict(
        number=7,
        operators=("Scan parquet", "Exchange"),
        seconds=2.5,
        tasks=3,
        task_seconds_median=1.0,
        task_seconds_max=8.0,
        shuffle_read_mb=6,
        shuffle_write_mb=6,
        spilled_mb=3,
    )
