"""What the stages of a Spark application took, by the log of events that Spark writes of it."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.harness import Document

MEGABYTE = 1_000_000


def stages(events: Path) -> list[Document]:
    """Returns the stages that ran, by their numbers; `events`: the folder with the one log.

    `operators`: what a stage runs, by Spark's names. `seconds`: from its submission to its end.
    `task_seconds_median` and `task_seconds_max`: far apart where rows are spread unevenly.
    """
    completed: list[dict[str, Any]] = []
    tasks: dict[int, list[dict[str, Any]]] = defaultdict(list)
    with next(events.iterdir()).open() as lines:
        for line in lines:
            if '"SparkListenerTaskEnd"' in line[:60]:
                event = json.loads(line)
                if event.get("Task Metrics"):
                    tasks[event["Stage ID"]].append(event)
            elif '"SparkListenerStageCompleted"' in line[:60]:
                completed.append(json.loads(line)["Stage Info"])
    ran = (each for each in completed if tasks[each["Stage ID"]])
    return sorted(
        (_stage(each, tasks[each["Stage ID"]]) for each in ran),
        key=lambda stage: int(stage["number"]),
    )


def _stage(info: dict[str, Any], ended: list[dict[str, Any]]) -> Document:
    metrics = [each["Task Metrics"] for each in ended]
    times = [each["Task Info"] for each in ended]
    seconds = [(each["Finish Time"] - each["Launch Time"]) / 1000 for each in times]
    read = [each["Shuffle Read Metrics"] for each in metrics]
    return {
        "number": info["Stage ID"],
        "operators": _operators(info),
        "seconds": round((info["Completion Time"] - info["Submission Time"]) / 1000, 1),
        "tasks": len(ended),
        "task_seconds_median": round(median(seconds), 1),
        "task_seconds_max": round(max(seconds), 1),
        "shuffle_read_mb": _megabytes(
            each["Local Bytes Read"] + each["Remote Bytes Read"] for each in read
        ),
        "shuffle_write_mb": _megabytes(
            each["Shuffle Write Metrics"]["Shuffle Bytes Written"] for each in metrics
        ),
        "spilled_mb": _megabytes(each["Disk Bytes Spilled"] for each in metrics),
    }


def _operators(info: dict[str, Any]) -> tuple[str, ...]:
    """Returns the names of what a stage runs, each once, from its rows' source on.

    A scope's id is a number, with or without words before it: `19`, `spark_plan_19`.
    """
    scopes = [json.loads(each["Scope"]) for each in info["RDD Info"] if "Scope" in each]
    ordered = sorted(scopes, key=lambda scope: int(scope["id"].rpartition("_")[2]), reverse=True)
    names = (scope["name"] for scope in ordered)
    return tuple(dict.fromkeys(each for each in names if "Codegen" not in each))


def _megabytes(sizes: Any) -> int:
    return int(sum(sizes)) // MEGABYTE
