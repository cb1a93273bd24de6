"""READMEs lead somewhere and say what the code says: their links, and the tables made of the code.

Tables between `<!-- name -->` and `<!-- end -->`, and the sentences that packages' READMEs open
with, are renewed by `pytest --rewrite`.
"""

import ast
import inspect
import json
import os
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest
from google.protobuf.message import Message
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import groupcert
from groupcert.certifier.core import Certifier, CertifierOptions
from groupcert.certifier.history import schema
from groupcert.certifier.history.recorder import HistoryRecorder, Report
from groupcert.certifier.position import position_of
from groupcert.certifier.records import Transaction
from groupcert.members.services.metrics import measurements
from groupcert.members.settings.member import MemberConfig
from groupcert.members.settings.replica import ReplicaConfig
from groupcert.members.settings.security import SecuritySettings
from groupcert.members.wire import statuses
from groupcert.v1.applier_pb2 import GetApplierStatusResponse
from groupcert.v1.error_pb2 import Reason, RetryAdvice
from groupcert.v1.group_pb2 import GroupStatus
from groupcert.v1.postgresql_pb2 import PostgresqlStatus
from tests.audit.histories import GROUP
from tests.bench import whatif_targets
from tests.certifier.history.chained_json import as_json
from tests.sources import ROOT, Source, tree
from tests.test_floors import FLOORS
from tests.test_readmes import READMES, without_blocks

DOCUMENTS = {each.path: each for each in tree() if each.path.endswith(".md")}


def check_links(source: Source) -> list[str]:
    """Relative links lead to files of the tree, and their anchors to headings."""
    problems = []
    for found in re.finditer(r"\]\(([^)\s]+)\)", without_blocks(source.text)):
        target, _, anchor = found[1].partition("#")
        if re.match(r"\w+:", target):
            continue
        line = source.text.count("\n", 0, source.text.index(found[0])) + 1
        path = os.path.normpath(PurePosixPath(source.path).parent / target) if target else ""
        path = path or source.path
        if not (ROOT / path).exists():
            problems.append(source.problem(line, f"{found[1]} is not there"))
        elif anchor and anchor not in anchors((ROOT / path).read_text()):
            problems.append(source.problem(line, f"{path} has no heading #{anchor}"))
    return problems


def check_mentions(source: Source) -> list[str]:
    """A README that is named by its path is there."""
    return [
        source.problem(source.text.count("\n", 0, found.start()) + 1, f"no {found[0]}")
        for found in re.finditer(r"(?<![\w/.\"-])(?:[\w-]+/)+README\.md", source.text)
        if not (ROOT / found[0]).is_file()
        and not ((ROOT / source.path).parent / found[0]).is_file()
    ]


def check_files(source: Source) -> list[str]:
    """A file of the tree that a document names in code is there, by its path or the end of it."""
    named = re.compile(r"`([\w./-]+\.(?:py|toml|ya?ml|html|proto|conf))`")
    return [
        source.problem(source.text.count("\n", 0, found.start()) + 1, f"no {found[1]}")
        for found in named.finditer(source.text)
        if not any(each.path == found[1] or each.path.endswith(f"/{found[1]}") for each in tree())
    ]


def anchors(text: str) -> set[str]:
    """Returns what GitHub makes of headings.

    >>> anchors("## What is `wrong`?")
    {'what-is-wrong'}
    """
    headings = re.findall(r"^#+ (.*)$", without_blocks(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("path", DOCUMENTS)
def test_no_link_is_broken(path: str) -> None:
    assert check_links(DOCUMENTS[path]) == []


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_file_that_is_named_is_there(path: str) -> None:
    assert check_files(DOCUMENTS[path]) == []


def test_every_public_name_that_is_mentioned_is_there() -> None:
    named = {
        each for s in READMES.values() for each in re.findall(r"groupcert\.([A-Z]\w+)", s.text)
    }
    assert "Client" in named
    assert [name for name in named if not hasattr(groupcert, name)] == []


def test_every_readme_that_is_mentioned_is_there() -> None:
    own = "tests/test_readme_links.py"
    assert [each for s in tree() if s.path != own for each in check_mentions(s)] == []


@pytest.mark.parametrize(
    "text", ["see [it](nowhere/README.md)", "[it](README.md#no-such)", "[it](#nor-this)"]
)
def test_a_broken_link_is_found(text: str) -> None:
    assert check_links(Source("CHANGELOG.md", text))


def test_a_mention_of_no_file_is_found() -> None:
    assert check_mentions(Source("Makefile", "# members/nowhere/README.md says more"))
    assert check_files(Source("README.md", "see `core/nothing_such.py`"))
    assert not check_files(Source("README.md", "see `core/member.py` and `pyproject.toml`"))


def charter(package: str) -> str:
    """Returns the sentence that a package's `__init__.py` opens with."""
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    return docstring.partition("\n\n")[0].replace("\n", " ")


def packages_table() -> str:
    """Returns the table of the packages of members, in the order of their floors."""
    rows = ["| package | what is in it |", "| --- | --- |"]
    for room in (room for rooms in FLOORS for room in rooms):
        if room.startswith("members/") and room != "members/":
            name = room.removeprefix("members/")
            page = f"{name}README.md" if f"{room}README.md" in READMES else name
            rows.append(f"| [`{name}`]({page}) | {charter(room)} |")
    return "\n".join(rows)


def settings_table(model: type[BaseModel], *, own: bool = True) -> str:
    """Returns the table of a model's settings; `own`: without those that models share."""
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    shared = SecuritySettings.model_fields if own else {}
    for name, field in model.model_fields.items():
        if name not in shared:
            text = inspect.cleandoc(field.description or "").replace("\n", " ")
            rows.append(f"| `{name}` | {shown_default(field)} | {text} |".replace("|  |", "| |"))
    return "\n".join(rows)


def shown_default(field: Any) -> str:
    """Returns a default as a TOML file would have it; empty: none, or made of other settings."""
    default = field.default
    if default is PydanticUndefined:
        return "" if field.default_factory else "needed"
    if default is None or default == ():
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def advice_table() -> str:
    """Returns the table of what callers of failed calls are advised, and for which reasons."""
    reasons: dict[int, list[str]] = {number: [] for number in RetryAdvice.values()}
    for kind in sorted(statuses.leaves(), key=lambda kind: kind.reason):
        if f"REASON_{kind.reason}" in Reason.keys():
            advice = next(statuses.ADVICE[each] for each in kind.__mro__ if each in statuses.ADVICE)
            reasons[advice].append(f"`{kind.reason}`")
    rows = ["| advice | reasons |", "| --- | --- |"]
    for name, number in RetryAdvice.items():
        short = name.removeprefix("RETRY_ADVICE_")
        rows.append(f"| `{short}` | {', '.join(reasons[number])} |")
    return "\n".join(rows)


def metrics_table(status: Message) -> str:
    """Returns the table of the metrics of a status."""
    rows = ["| metric | |", "| --- | --- |"]
    for name, text, _, label, is_counter in measurements(status):
        by = f", by `{label}`" if label else ""
        rows.append(f"| `{name}{'_total' * is_counter}` | {text}{by} |")
    return "\n".join(rows)


def columns_table() -> str:
    """Returns the table of the columns of a certification log."""
    rows = ["| number | column | type | meaning |", "| --- | --- | --- | --- |"]
    for number, (name, kind, meaning) in enumerate(schema.COLUMNS):
        shown = "" if name == "chain" else number
        rows.append(f"| {shown} | `{name}` | {kind} | {meaning} |".replace("|  |", "| |"))
    return "\n".join(rows)


def chained_rows() -> str:
    """Returns rows of a certification log with their chains, as other tools may check them."""
    certifier = Certifier(CertifierOptions(group_source=GROUP))
    recorder = HistoryRecorder(certifier, "m1", schema.Source.MEMBER, "7f")
    sent = Transaction(position_of(1, 0), "m2", 0, [2**64 - 1, 7])
    told = Report(
        1,
        1,
        bytes(range(8)),
        schema.place_of(sent.position, schema.RecordKind.TRANSACTION),
        b"\xab",
    )
    rows = [
        recorder.start(position_of(0, 0)),
        *recorder.transaction(sent, certifier.certify(sent), {"write_keys": ["\u00e9,", ""]}),
        recorder.report(position_of(2, 0), "m2", "1", told),
    ]
    return "\n".join(["```json", *map(json.dumps, as_json(rows)), "```"])


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "metrics of members": ("members/services/README.md", lambda: metrics_table(GroupStatus())),
    "metrics of appliers": (
        "members/services/README.md",
        lambda: metrics_table(GetApplierStatusResponse()),
    ),
    "metrics of servers": (
        "members/postgresql/README.md",
        lambda: metrics_table(PostgresqlStatus()),
    ),
    "advice": ("members/wire/README.md", advice_table),
    "packages": ("members/README.md", packages_table),
    "settings of members": (
        "members/settings/README.md",
        lambda: settings_table(MemberConfig),
    ),
    "settings of replicas": (
        "members/settings/README.md",
        lambda: settings_table(ReplicaConfig),
    ),
    "settings of both": (
        "members/settings/README.md",
        lambda: settings_table(SecuritySettings, own=False),
    ),
    "columns of a certification log": ("certifier/history/README.md", columns_table),
    "kinds of rows": (
        "certifier/history/README.md",
        lambda: ", ".join(f"`{kind}`" for kind in schema.RecordKind) + ".",
    ),
    "a chain": ("certifier/history/README.md", chained_rows),
    "predictions": ("applier/whatif/README.md", whatif_targets.table),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_made_of_the_code(name: str, rewrite: bool) -> None:
    path, make = TABLES[name]
    text = (ROOT / path).read_text()
    begin, end = f"<!-- {name} -->\n", "<!-- end -->"
    before, _, rest = text.partition(begin)
    shown, _, after = rest.partition(end)
    if rewrite:
        (ROOT / path).write_text(f"{before}{begin}{make()}\n{end}{after}")
    else:
        assert shown.strip() == make(), "renew it: pytest --rewrite tests/test_readme_links.py"


@pytest.mark.parametrize(
    "path", [path for path in READMES if re.fullmatch(r"members/\w+/README.md", path)]
)
def test_a_packages_readme_opens_with_its_charter(path: str, rewrite: bool) -> None:
    heading, _, rest = (ROOT / path).read_text().partition("\n\n")
    shown, _, after = rest.partition("\n\n")
    if rewrite:
        opening = charter(str(PurePosixPath(path).parent))
        (ROOT / path).write_text(f"{heading}\n\n{opening}\n\n{after}")
    else:
        assert shown == charter(str(PurePosixPath(path).parent))
