"""`python -m tests.bench NAME`: runs a benchmark and prints its tables, or one JSON document.

A benchmark is a function of a `Run`; its other parameters are its options. `--output` also writes
the document to a file, such as one of `results/`. Exits with 1 if something was wrong, 3 if a
server is not installed, 130 after Ctrl-C, which keeps what was measured.
"""

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from groupcert.certifier.errors import GroupcertError, Unavailable
from groupcert.members.host.interruption import INTERRUPTED, interruptible
from groupcert.members.host.logs import configure_logs
from tests.bench.harness import Document, Run, finish

BENCHMARKS = {
    "certify": "certify",
    "group": "group",
    "large": "large",
    "recovery": "recovery",
    "server-joins": "server_joins",
    "order": "order",
    "postgresql": "postgresql",
    "applier": "applier",
    "replicas": "replicas",
    "audit": "audit",
    "apply": "member",
    "member": "member",
    "comparison": "member",
    "sizing": "sizing",
    "whatif": "whatif",
    "whatif-targets": "whatif_targets",
    "first-hour": "first_hour",
    "rolling-restart": "stalls",
    "cluster-stalls": "stalls",
    "upgrade": "stalls",
}
"""Benchmarks, and the module that each is a function of."""
FINE, WRONG, USAGE, UNAVAILABLE = range(4)


def function_of(name: str) -> Callable[..., Document]:
    """Returns a benchmark."""
    module = importlib.import_module(f"tests.bench.{BENCHMARKS[name]}")
    function: Callable[..., Document] = getattr(module, name.replace("-", "_"))
    return function


def parser_of(name: str) -> argparse.ArgumentParser:
    """Returns the options of a benchmark: several values stand behind one flag."""
    function = function_of(name)
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.bench {name}",
        description=inspect.getdoc(function),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="no tables")
    parser.add_argument("--output", type=Path, help="also write the document to this file")
    for option, parameter in list(inspect.signature(function).parameters.items())[1:]:
        flag, default = f"--{option.replace('_', '-')}", parameter.default
        help = f"by default {default}"
        if isinstance(default, bool):
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=default, help=help)
        elif isinstance(default, tuple):
            kind = type(default[0]) if default else str
            parser.add_argument(flag, nargs="+", type=kind, default=default, help=help)
        else:
            kind = Path if default is None else type(default)
            parser.add_argument(flag, type=kind, default=default, help=help)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the command, and returns its exit code."""
    chosen = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    chosen.add_argument("name", choices=BENCHMARKS)
    name = chosen.parse_args(arguments[:1]).name
    options = vars(parser_of(name).parse_args(arguments[1:]))
    answer = {key: options.pop(key) for key in ("as_json", "output")}
    configure_logs()
    run = Run()
    try:
        with interruptible():
            finish(run, function_of(name)(run, **options), **answer)
    except GroupcertError as error:
        sys.stderr.write(f"{error}\n")
        return UNAVAILABLE if isinstance(error, Unavailable) else USAGE
    if run.not_run is not None:
        return INTERRUPTED
    return WRONG if run.wrong else FINE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
