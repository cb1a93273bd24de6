"""What verbs need of the package's extras, and what is said where that is not installed.

    GroupcertError
    └── Unavailable
        └── ExtraMissing              EXTRA_MISSING

The rule it keeps: a verb imports what it needs, and where that is not there, `missing_extra` knows
who brings it. A verb that starts other processes, or works for long before it needs the last of its
modules, asks first, by `check_extras`.
"""

from collections.abc import Sequence
from importlib.util import find_spec

from ...certifier.errors import Unavailable

MODULES = {
    "member": (
        "grpc_reflection",
        "nats",
        "numpy",
        "prometheus_client",
        "pydantic",
        "pymysql",
        "rocksdict",
        "sortedcontainers",
        "uvloop",
        "xxhash",
        "zstandard",
    ),
    "certification-log": ("pyarrow",),
    "postgresql": ("prometheus_client", "psutil", "psycopg", "pydantic", "uvloop", "xxhash"),
    "audit": ("pandas", "polars", "pyarrow", "pyspark"),
}
"""The modules that each extra brings."""


class ExtraMissing(Unavailable):
    """A verb needs packages that come with extras of groupcert, which are not installed."""

    message = (
        "this needs the extra {extras} (not installed: {missing}): "
        "pip install 'groupcert[{extras}]'"
    )
    extras: str
    """Names, with commas."""
    missing: str
    """One module of each."""


def check_extras(*extras: str) -> None:
    """Raises ExtraMissing unless the modules of all these extras are installed."""
    found = {extra: [name for name in MODULES[extra] if not find_spec(name)] for extra in extras}
    lacking = {extra: names[0] for extra, names in found.items() if names}
    if lacking:
        raise ExtraMissing(extras=",".join(lacking), missing=", ".join(lacking.values()))


def missing_extra(error: ModuleNotFoundError, arguments: Sequence[str]) -> ExtraMissing | None:
    """Returns which extra has a module that a command line did not find; of several that which is
    named like the verb. Returns None if no extra has it: that is a mistake in the code.
    """
    name = (error.name or "").partition(".")[0]
    for extra in sorted(MODULES, key=lambda extra: extra not in arguments[:1]):
        if name in MODULES[extra]:
            return ExtraMissing(extras=extra, missing=name)
    return None
