"""Scripts in tests/testdata/certifier: the certifier's rule as stories, most of them from WL#8440.

Method: one handler a command; every answer draws what became of each transaction, then the
certification info and the window's edge. `UUID1` stands for the group's source, `UUID2` and so on
for others.
"""

import re
from pathlib import Path

import pytest

from groupcert.certifier.core import Certifier, CertifierOptions, in_words
from groupcert.certifier.gtid import parse_gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.certifier.position import position_of
from groupcert.certifier.records import (
    Collected,
    Conflict,
    ExecutedElsewhere,
    GarbageCollection,
    Outcome,
    Transaction,
    Verdict,
    ViewChange,
)
from groupcert.certifier.write_set import item_from_text
from tests.datadriven import Command, parse_command, run_script, table

SCRIPTS = sorted((Path(__file__).parent.parent / "testdata" / "certifier").glob("*.txt"))
UUID = "{}0000000-0000-0000-0000-000000000000"


def full(text: str) -> str:
    """Returns a text with the UUIDs that a script's short names stand for."""
    return re.sub(r"UUID(\d)", lambda found: UUID.format(found[1]), text)


def short(text: str) -> str:
    """Returns a text with a script's short names for UUIDs."""
    return re.sub(r"(\d)0000000-0000-0000-0000-000000000000", r"UUID\1", text)


class Script:
    """One script's certifier, and the names that the script gave to things."""

    def __init__(self) -> None:
        self.certifier = Certifier(CertifierOptions(group_source=UUID.format(1)))
        self.names: dict[int, str] = {0: "-"}
        self.keys: dict[int, str] = {}
        self.conflicts: dict[str, Conflict] = {}
        self.records = 0
        self.handlers = {
            "new": self.new,
            "certify": self.certify,
            "collect": self.collect,
            "step": self.step,
            "view_change": self.view_change,
            "elsewhere": self.elsewhere,
            "explain": self.explain,
        }

    def new(self, command: Command) -> str:
        """new [gc_window=] [block_size=] [period=] [step=] [lag_max=] [learn]"""
        gc_window, block_size, period, step, lag_max, learn = command.take(
            "gc_window", "block_size", "period", "step", "lag_max", "learn"
        )
        self.certifier = Certifier(
            CertifierOptions(
                group_source=UUID.format(1),
                gtid_assignment_block_size=int(block_size or 1),
                gc_window=gc_window or "close",
                collection_period_transactions=int(period or 0),
                collection_step_transactions=int(step or 64),
                snapshot_lag_max=int(lag_max or 65_536),
                learn_snapshots=learn is not None,
            )
        )
        return self.draw()

    def certify(self, command: Command) -> str:
        """A transaction a line: name [from=] [snapshot=] [write=] [read=] [gtid=] [local]; the
        snapshot is everything before where none is given.
        """
        rows = [self._row(line) for line in command.body]
        return self.draw(*table(("trx", "verdict", "gtid", "version", "LC", "SN"), rows))

    def collect(self, command: Command) -> str:
        """collect stable=<version or GTID set>"""
        [stable] = command.take("stable")
        assert stable is not None
        version = int(stable) if stable.isdigit() else GtidSet.parse(full(stable))
        collected = self.certifier.deliver(GarbageCollection(self._position(), version))
        assert isinstance(collected, Collected)
        assert collected.last_committed_global == self.certifier.clock.last_committed_global
        return self.draw(f"purged {collected.purged}")

    def step(self, command: Command) -> str:
        """A step of a pending collection, as certified transactions take it."""
        command.take()
        before = self.certifier.purged_total
        self.certifier.collect()
        pending = ", more to come" if self.certifier.collection_pending else ""
        return self.draw(f"purged {self.certifier.purged_total - before}{pending}")

    def view_change(self, command: Command) -> str:
        """view_change [joined]: with `joined`, the observer is the one that joined."""
        [joined] = command.take("joined")
        stamps = self.certifier.deliver(ViewChange(self._position(), joined is not None))
        return self.draw(f"LC, SN = {stamps}")

    def elsewhere(self, command: Command) -> str:
        """elsewhere gtids=<GTID set>: executed before this history, or beside it."""
        [gtids] = command.take("gtids")
        assert gtids is not None
        record = ExecutedElsewhere(self._position(), GtidSet.parse(full(gtids)))
        assert self.certifier.deliver(record) is None
        return self.draw()

    def explain(self, command: Command) -> str:
        """explain trx=<name>: why it lost, in words."""
        [name] = command.take("trx")
        assert name is not None
        conflict = self.conflicts[name]
        return short(in_words(conflict, self.keys[conflict.item]))

    def draw(self, *lines: str) -> str:
        """The lines of an answer, and the state after it."""
        self.certifier.check_invariants()
        entries = sorted(
            f"{self.keys[item]} by {self.names[writer]} ({self._sequence_number(writer)})"
            for item, writer in self.certifier.info.entries()
        )
        clock = self.certifier.clock
        return "\n".join(
            (
                *lines,
                f"certification info: {', '.join(entries) or 'empty'}",
                f"executed: {short(str(self.certifier.executed())) or 'nothing'}",
                f"edge {clock.last_committed_global}, next {clock.sequence_number}",
            )
        )

    def _row(self, line: str) -> tuple[object, ...]:
        """Certifies the transaction of a line; its row in the answer."""
        described = parse_command(line)
        origin, snapshot, write, read, gtid, local = described.take(
            "from", "snapshot", "write", "read", "gtid", "local"
        )
        outcome = self.certifier.deliver(
            Transaction(
                position=self._position(),
                origin=origin or "m1",
                snapshot=self._snapshot(snapshot),
                write_set=self._items(write),
                read_set=self._items(read),
                gtid=parse_gtid(full(gtid)) if gtid else None,
                local=local is not None,
            )
        )
        assert isinstance(outcome, Outcome)
        verdict = outcome.verdict.name
        if outcome.verdict is Verdict.CERTIFIED:
            self.names[outcome.version] = described.name
            stamps = (outcome.last_committed, outcome.sequence_number)
            shown = ("-" if stamp is None else stamp for stamp in stamps)
            return described.name, verdict, short(str(outcome.gtid)), outcome.version, *shown
        assert outcome.version == 0
        detail = outcome.reason.partition(": take")[0]
        if outcome.conflict:
            self.conflicts[described.name] = outcome.conflict
            winner = self.names[outcome.conflict.winner_version]
            detail = f"{self.keys[outcome.conflict.item]} by {winner}"
        return described.name, f"{verdict}: {short(detail)}", "-", "-", "-", "-"

    def _sequence_number(self, version: int) -> int | str:
        """What the items of a version hold: nothing where this observer did not stamp it."""
        held = version > self.certifier.unstamped_version
        return (self.certifier.window.sequence_number(version) if held else 0) or "-"

    def _snapshot(self, text: str | None) -> int | GtidSet:
        if text is None:
            return self.certifier.window.newest_version
        return int(text) if text.isdigit() else GtidSet.parse(full(text))

    def _items(self, text: str | None) -> list[int]:
        keys = text.split(",") if text else []
        self.keys |= {item_from_text(key): key for key in keys}
        return [item_from_text(key) for key in keys]

    def _position(self) -> int:
        self.records += 1
        return position_of(self.records, 0)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_gives_its_answers(path: Path, rewrite: bool) -> None:
    run_script(path, Script().handlers, rewrite=rewrite)
