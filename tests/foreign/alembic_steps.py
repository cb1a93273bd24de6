"""Alembic's migrations of an attached database: by itself, and its SQL by `groupcert postgresql
ddl`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg

from tests.foreign.foreign_group import DATABASE, ForeignGroup, query
from tests.foreign.outcomes import Outcomes

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
STATE = re.compile(r"psycopg\.errors\.(\w+)\) .*")


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


def run_steps(group: ForeignGroup, folder: Path, packages: Path) -> Outcomes:
    """Goes through all revisions, up and down."""
    alembic = Alembic(folder, packages)
    outcomes = Outcomes("alembic")
    first = group.make(DATABASE)
    _note(outcomes, "tables, before attach", alembic.run(first, "upgrade", "r1"))
    with psycopg.connect(first) as session:
        session.execute("INSERT INTO customer (name) VALUES ('a'), ('b')")
    group.spread(DATABASE, numbered=True)
    moves = [*zip([*REVISIONS][1:], alembic.numbers, alembic.numbers[1:], strict=False)]
    upward = [("upgrade", *move) for move in moves]
    downward = [("downgrade", name, number, former) for name, former, number in reversed(moves)]
    for verb, name, former, number in upward + downward:
        step = f"{verb}: {name}"
        _alone(outcomes, alembic, group, step, (former, number))
        if _current(group) != [number]:
            script = alembic.run(first, verb, f"{former}:{number}", "--sql").stdout
            _by_ddl(outcomes, group, step, script)
        if _current(group) != [number]:
            outcomes.differ([f"revisions: {_current(group)}, not {number}, after {step}"])
            return outcomes
    outcomes.differ(group.differences())
    outcomes.differ(_schemas(group))
    return outcomes


def _note(outcomes: Outcomes, step: str, done: "subprocess.CompletedProcess[str]") -> None:
    """Counts a step of Alembic."""
    if done.returncode == 0:
        outcomes.passed += 1
    elif found := STATE.search(done.stderr):
        outcomes.fails(step, [(getattr(psycopg.errors, found[1]).sqlstate, found[0])])
    else:
        outcomes.fails(step, [(None, (done.stderr or done.stdout).strip().splitlines()[-1])])


def _alone(
    outcomes: Outcomes, alembic: Alembic, group: ForeignGroup, step: str, moves: tuple[str, str]
) -> None:
    """Runs a revision at the first server alone; undoes what went through and stays there."""
    former, number = moves
    verb = step.partition(":")[0]
    before = _schemas(group)
    done = alembic.run(group.dsns[0], verb, number)
    if (problems := _schemas(group)) == before:
        _note(outcomes, f"{step}, at one server", done)
        return
    outcomes.fails(f"{step}, at one server", [(None, f"stays there: {'; '.join(problems)}")])
    back = "downgrade" if verb == "upgrade" else "upgrade"
    _note(outcomes, f"{step}, undone", alembic.run(group.dsns[0], back, former))


def _by_ddl(outcomes: Outcomes, group: ForeignGroup, step: str, script: str) -> None:
    """Runs what changes the schema by ddl, what changes rows by SQL, as an operator would."""
    changes, rows = [], []
    for part in re.split(r";\s*\n", script):
        lines = (line for line in part.splitlines() if not line.startswith("--"))
        statement = "\n".join(lines).strip()
        if statement.startswith(("UPDATE", "INSERT", "DELETE")):
            rows.append(statement)
        elif statement not in ("", "BEGIN", "COMMIT"):
            changes.append(statement)
    if problem := group.change(";\n".join(changes), rewrite=" TYPE " in script):
        outcomes.fails(f"{step}, by ddl", [(None, problem)])
        return
    with psycopg.connect(group.dsns[0]) as session:
        for statement in rows:
            session.execute(statement.encode())
    outcomes.passed += 1


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
