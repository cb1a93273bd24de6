"""The tree keeps the rules of the house: who imports whom, what is pure, how long things get.

Aim: what a reader would have to look for in review is looked for here. Each check takes one source
and returns its problems as `path:line: what is wrong, and the limit`. The first tests run the
checks over every file that git knows or would add; the last ones feed each check a source that
breaks its rule, so that a check that finds nothing any more is itself found.
"""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

import pytest

from tests import test_floors
from tests.sources import ROOT, Check, Source, imported_names, parse, tree

TOP_LEVEL = {
    "proto",
    "certifier",
    "applier",
    "members",
    "tests",
    "deploy",
    "pyproject.toml",
    "README.md",
    "Makefile",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
}
MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
VAGUE_MODULE_WORDS = {"utils", "helpers", "common", "base", "manager"}
SHORTENED_WORDS = {"txn", "txns", "trx", "trxs"}

# The pure state machines, values in and values out: those of which the Makefile asks full coverage.
PURE = tuple(
    pattern
    for line in (ROOT / "Makefile").read_text().splitlines()
    if line.startswith(("PURE_APPLIER", "PURE_MEMBERS"))
    for pattern in line.partition(":= ")[2].split(",")
)
IMPURE = ("certifier/storage/", "certifier/pages/", "certifier/audit/")
IMPURE_MODULES = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "logging",
    "random",
    "secrets",
    "structlog",
    "time",
}
IMPURE_ATTRIBUTES = {"os.environ", "os.getenv", "os.urandom", "uuid.uuid1", "uuid.uuid4"}
IMPURE_CALLS = {"hash", "input", "open", "print"}

MACHINE_PATH = re.compile(r"(?<![\w.])/(ro[o]t|wor[k]|hom[e]/\w+|User[s]/\w+|op[t]/wheels)(/|\b)")
REGISTRY_HOST = re.compile(
    r"pypi\.or[g]|pythonhoste[d]|deb\.debia[n]|npmj[s]\.|crates\.i[o]|proxy\.golan[g]", re.I
)
ELSEWHERE = re.compile(r"\b(design|notes),? (section \d|[A-Z]\d)|\bsection \d+ of the des")
UNFINISHED = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b")
# A verb of the third person, and none of the nouns and pronouns that end alike.
THIRD_PERSON = re.compile(
    r"(?!(As|Always|Bytes|Class|Is|Its|Items|Keys|Members|Milliseconds|Names|Options|Others|Rows"
    r"|Seconds|Settings|This|Transactions|Values|Versions|Was)$)[A-Z][a-z]*s"
)
NAMELESS = {"what", "how", "who", "when", "why", "those"}
ASSERTING_NAME = re.compile(r"_*(assert|check|expect|raises|warns|run_script)")


Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_purity(source: Source) -> list[str]:
    """The state machines have no clock, no chance, no threads, no input and no output."""
    is_pure = source.is_below("certifier/") and not source.is_below(*IMPURE)
    if not is_pure and not any(fnmatchcase(source.path, pattern) for pattern in PURE):
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
    lowered = source.text.lower()
    nodes = source.nodes() if any(word in lowered for word in SHORTENED_WORDS) else ()
    for node in nodes:
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


def check_verbs(source: Source) -> list[str]:
    """A function's docstring begins with a verb: it says what the function does."""
    # The help of a verb of the command is an imperative, as people are used to from others.
    if source.is_below("tests/", "deploy/") or source.path.startswith("members/commands/cli"):
        return []
    problems = []
    for function in functions(source):
        words = (ast.get_docstring(function) or "").split()
        if (
            words
            and not is_property(function)
            and not THIRD_PERSON.fullmatch(words[0].strip(",.:;"))
        ):
            message = f"{function.name} opens with {words[0]!r}; begin with a verb, as in 'Returns'"
            problems.append(source.problem(function.lineno, message))
        if words[:1] in (["Returns"], ["Yields"]) and words[1] in NAMELESS:
            message = f"{function.name} {words[0].lower()} {words[1]!r}; name the noun"
            problems.append(source.problem(function.lineno, message))
    return problems


def check_any(source: Source) -> list[str]:
    """The certifier knows the type of each of its values."""
    if not source.is_below("certifier/"):
        return []
    return [
        source.problem(line, "imports Any; name the type")
        for line, name in imported_names(source)
        if name == "typing.Any"
    ]


def check_groups(source: Source) -> list[str]:
    """Values stand one by one, not in brackets with a star that only fit them into a line."""
    return [
        source.problem(node.lineno, "a star before values that are written there; list them")
        for node in ast.walk(parse(source.text))
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List)
        if node.value.elts and isinstance(node.ctx, ast.Load)
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
    """No text names a machine's folders, a package registry or a document that is not in the tree,
    or leaves work unfinished.
    """
    rules = (
        (MACHINE_PATH, "is a path of one machine"),
        (REGISTRY_HOST, "names a package registry"),
        (ELSEWHERE, "is nowhere in the tree; name the file, as in members/how-a-group-works.md"),
        (UNFINISHED, "marks work that is not finished"),
    )
    return [
        source.problem(number, f"{found.group()} {what}")
        for pattern, what in rules
        if pattern.search(source.text)
        for number, line in enumerate(source.text.splitlines(), 1)
        if (found := pattern.search(line))
    ]


PYTHON_CHECKS: tuple[Check, ...] = (
    check_purity,
    check_sizes,
    check_names,
    check_docstring,
    check_verbs,
    check_any,
    check_groups,
    check_tests_assert,
)


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


def is_property(function: Function) -> bool:
    """Tells whether a function is read as a value, whose docstring may name that."""
    return any("property" in ast.unparse(each) for each in function.decorator_list)


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


@pytest.mark.parametrize("folder", ["certifier", "applier", "members", "tests", ""])
def test_every_source_passes(folder: str) -> None:
    """One test for all checks: each parses a file anew; the folder without a name is the rest."""
    sources = [each for each in tree() if _folder_of(each) == folder]
    python = [source for source in sources if source.path.endswith(".py")]
    assert python, f"git lists no Python file of {folder or 'the rest'}"
    checks = (*PYTHON_CHECKS, *test_floors.CHECKS)
    problems = [problem for source in python for check in checks for problem in check(source)]
    problems += [problem for source in sources for problem in check_text(source)]
    assert not problems, "\n".join(["", *problems])


def _folder_of(source: Source) -> str:
    folder = source.path.partition("/")[0]
    return folder if folder in {"certifier", "applier", "members", "tests"} else ""


def test_nothing_stands_beside_the_rooms_of_the_house() -> None:
    entries = {source.path.partition("/")[0] for source in tree()}
    odd = sorted(entry for entry in entries - TOP_LEVEL if not entry.startswith("."))
    assert not odd, f"top-level entries that the layout does not have: {', '.join(odd)}"


BROKEN: tuple[tuple[Check, str, str, str], ...] = (
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
    (check_purity, "members/core/views.py", "import random", "imports random in a pure module"),
    (check_sizes, "members/commands/cli.py", "x = 1\n" * 801, "801 lines, 800 at most"),
    (
        check_sizes,
        "members/commands/cli.py",
        "def f():\n" + "    x = 1\n" * 70,
        "f has 71 lines, 70 at most",
    ),
    (check_sizes, "members/commands/cli.py", f"x = '{'x' * 100}'", "106 columns, 100 at most"),
    (check_names, "members/grpc_utils.py", "", "a module called utils"),
    (check_names, "members/commands/cli.py", "\ndef load_txn(): ...", "cli.py:2: load_txn"),
    (check_names, "members/commands/cli.py", "f(trx=1)", "trx: spell out transaction"),
    (check_docstring, "members/commands/cli.py", "x = 1", "opens without a docstring"),
    (check_verbs, "members/cli.py", 'def f():\n    """What it is."""', "opens with 'What'"),
    (check_verbs, "members/cli.py", 'def f():\n    """Keys of a row."""', "opens with 'Keys'"),
    (check_verbs, "members/cli.py", 'def f():\n    """Returns what it is."""', "name the noun"),
    (check_any, "certifier/core.py", "from typing import Any", "imports Any"),
    (check_groups, "members/cli.py", "NAMES = (*('a', 'b'), 'c')", "list them"),
    (check_tests_assert, "tests/test_x.py", "def test_a():\n    f()", "test_a asserts nothing"),
    (check_tests_assert, "tests/test_x.py", "class T:\n  async def test_b(self): ...", "test_b"),
    (check_text, "README.md", "a\nsee /wor" + "k/shared", "README.md:2: /wor" + "k/"),
    (check_text, "deploy/x.txt", "--index-url https://pypi." + "org/simple", "package registry"),
    (check_text, "certifier/core.py", "# see design, " + "section 3", "nowhere in the tree"),
    (check_text, "certifier/core.py", "# (engine notes, " + "A3)", "nowhere in the tree"),
    (check_text, "members/commands/cli.py", "# TO" + "DO: more", "not finished"),
)


@pytest.mark.parametrize(("check", "path", "text", "expected"), BROKEN)
def test_a_broken_rule_is_found(check: Check, path: str, text: str, expected: str) -> None:
    problems = check(Source(path, text))
    assert len(problems) == 1
    assert expected in problems[0]


KEPT: tuple[tuple[Check, str, str], ...] = (
    (check_groups, "members/cli.py", "NAMES = (*OTHERS, *(['a'] if more else []), 'c')"),
    (check_purity, "certifier/storage/store.py", "import time"),
    (check_purity, "members/core/flow_control.py", "SHARE = 0.5"),
    (check_sizes, "members/commands/cli.py", "def f():\n" + "    x = 1\n" * 69),
    (check_names, "members/commands/cli.py", "transaction = database = 1"),
    (check_verbs, "members/cli.py", 'def f():\n    """Returns a row."""\ndef g(): ...'),
    (check_verbs, "members/cli.py", '@property\ndef f(self):\n    """The row."""'),
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
