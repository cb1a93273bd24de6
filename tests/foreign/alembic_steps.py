"""Alembic's migrations of an attached database: by itself, and its SQL by `groupcert postgresql
ddl`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tests.foreign.foreign_group import DATABASE, ForeignGroup, query
from tests.foreign.outcomes import REFUSALS

INI = "[alembic]\nscript_location = {folder}\n"
ENVIRONMENT = """
import os
from alembic import context
from sqlalchemy import create_engine
url = os.environ["FOREIGN_URL"]
if context.is_offline_mode():
    context.configure(url=url, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(url).connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
"""
REVISION = """
import sqlalchemy as sa
from alembic import op
revision = "{number}"
down_revision = {former!r}
def upgrade():
    {upgrade}
def downgrade():
    {downgrade}
"""
REVISIONS = {
    "tables": (
        'op.create_table("customer", sa.Column("id", sa.Integer, primary_key=True),'
        ' sa.Column("name", sa.String(40), nullable=False))',
        'op.drop_table("customer")',
    ),
    "column and unique index": (
        'op.add_column("customer", sa.Column("email", sa.String(80)));'
        ' op.create_index("customer_email", "customer", ["email"], unique=True)',
        'op.drop_index("customer_email"); op.drop_column("customer", "email")',
    ),
    "rows": (
        "op.execute(\"UPDATE customer SET email = name || '@shop'\")",
        'op.execute("UPDATE customer SET email = NULL")',
    ),
    "another table": (
        'op.create_table("purchase", sa.Column("id", sa.Integer, primary_key=True),'
        ' sa.Column("customer", sa.Integer, sa.ForeignKey("customer.id")),'
        ' sa.Column("state", sa.Enum("new", "paid", name="state")))',
        'op.drop_table("purchase"); op.execute("DROP TYPE state")',
    ),
    "constraints": (
        'op.create_check_constraint("named", "customer", "name <> \'\'");'
        ' op.alter_column("customer", "name", new_column_name="full_name")',
        'op.alter_column("customer", "full_name", new_column_name="name");'
        ' op.drop_constraint("named", "customer")',
    ),
    "another type": (
        'op.alter_column("customer", "id", type_=sa.BigInteger)',
        'op.alter_column("customer", "id", type_=sa.Integer)',
    ),
    "index beside sessions": (
        'exec("with op.get_context().autocommit_block():\\n'
        " op.create_index('by_name', 'customer', ['full_name'], postgresql_concurrently=True)\")",
        'op.drop_index("by_name")',
    ),
}
STATE = re.compile(r"psycopg\.errors\.(\w+)\) (.*)")


class Alembic:
    """A folder of revisions, and what came of the steps."""

    def __init__(self, folder: Path, packages: Path) -> None:
        self._packages = packages
        self._ini = folder / "alembic.ini"
        scripts = folder / "scripts"
        (scripts / "versions").mkdir(parents=True)
        self._ini.write_text(INI.format(folder=scripts))
        (scripts / "env.py").write_text(ENVIRONMENT)
        self.numbers: list[str] = []
        for number, (upgrade, downgrade) in enumerate(REVISIONS.values(), 1):
            text = REVISION.format(
                number=f"r{number}",
                former=self.numbers[-1] if self.numbers else None,
                upgrade=upgrade,
                downgrade=downgrade,
            )
            (scripts / "versions" / f"r{number}.py").write_text(text)
            self.numbers.append(f"r{number}")

    def run(self, dsn: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs a verb at a server."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._packages),
            "FOREIGN_URL": dsn.replace("postgresql://", "postgresql+psycopg://"),
        }
        command = [sys.executable, "-m", "alembic", "-c", str(self._ini), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def told(done: "subprocess.CompletedProcess[str]") -> str:
    """Returns what a step came to: passed, refused with SQLSTATE, or failed, and what was said."""
    if done.returncode == 0:
        return "passed"
    if found := STATE.search(done.stderr):
        state = getattr(psycopg.errors, found[1]).sqlstate
        kind = "refused" if state in REFUSALS else "failed"
        return f"{kind}: {state} {found[2]}"
    return f"failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}"


def run_steps(group: ForeignGroup, folder: Path, packages: Path) -> dict[str, Any]:
    """Goes through all revisions, up and down."""
    alembic = Alembic(folder, packages)
    first = group.make(DATABASE)
    steps = {"tables, before attach": told(alembic.run(first, "upgrade", "r1"))}
    with psycopg.connect(first) as session:
        session.execute("INSERT INTO customer (name) VALUES ('a'), ('b')")
    group.spread(DATABASE, numbered=True)
    for verb, moves in (("upgrade", _upward(alembic)), ("downgrade", _downward(alembic))):
        for name, former, number in moves:
            steps[f"{verb}: {name}, at one server"] = _alone(alembic, group, verb, (former, number))
            if _current(group) == [number]:
                continue
            script = alembic.run(first, verb, f"{former}:{number}", "--sql").stdout
            steps[f"{verb}: {name}, its SQL by ddl"] = group.change(script) or "passed"
            if _current(group) != [number]:
                steps[f"{verb}: {name}, in parts"] = _in_parts(group, script)
            if _current(group) != [number]:
                steps[f"{verb}: stopped"] = f"{_current(group)}, not {number}"
                return {"steps": steps, "rows differ": group.differences()}
    return {"steps": steps, "rows differ": group.differences(), "schemas differ": _schemas(group)}


def _upward(alembic: Alembic) -> Iterator[tuple[str, str, str]]:
    names = [*REVISIONS]
    for place in range(1, len(names)):
        yield names[place], alembic.numbers[place - 1], alembic.numbers[place]


def _downward(alembic: Alembic) -> Iterator[tuple[str, str, str]]:
    names = [*REVISIONS]
    for place in range(len(names) - 1, 0, -1):
        yield names[place], alembic.numbers[place], alembic.numbers[place - 1]


def _alone(alembic: Alembic, group: ForeignGroup, verb: str, moves: tuple[str, str]) -> str:
    """Runs a revision at the first server alone; undoes it if it went through and should not."""
    former, number = moves
    before = _schemas(group)
    outcome = told(alembic.run(group.dsns[0], verb, number))
    problems = _schemas(group)
    if outcome == "passed" and problems != before:
        outcome = f"passed, but schemas differ: {'; '.join(problems)}"
        back = "downgrade" if verb == "upgrade" else "upgrade"
        outcome += f"; undone: {told(alembic.run(group.dsns[0], back, former))}"
    return outcome


def _in_parts(group: ForeignGroup, script: str) -> str:
    """Runs what changes the schema by ddl, what changes rows by SQL, as an operator would."""
    for part in re.split(r";\s*\n", script):
        statement = "\n".join(
            line for line in part.splitlines() if not line.startswith("--")
        ).strip()
        if not statement or statement in ("BEGIN", "COMMIT"):
            continue
        if statement.startswith(("UPDATE", "INSERT", "DELETE")):
            with closing(psycopg.connect(group.dsns[0], autocommit=True)) as session:
                session.execute(statement.encode())
        elif "CONCURRENTLY" in statement:
            for dsn in group.dsns:
                with closing(psycopg.connect(dsn, autocommit=True)) as session:
                    session.execute(statement.encode())
        elif problem := group.change(statement, rewrite="TYPE" in statement):
            return f"refused: {problem}"
    return "passed"


def _current(group: ForeignGroup) -> list[str]:
    group.differences()
    return sorted(
        {query(dsn, "SELECT version_num FROM alembic_version")[0][0] for dsn in group.dsns}
    )


def _schemas(group: ForeignGroup) -> list[str]:
    """Returns the columns that are not at every server."""
    columns = [
        {
            row[0]
            for row in query(
                dsn,
                "SELECT format('%s.%s %s', table_name, column_name, data_type)"
                " FROM information_schema.columns WHERE table_schema = 'public'",
            )
        }
        for dsn in group.dsns
    ]
    return sorted(set.union(*columns) - set.intersection(*columns))
