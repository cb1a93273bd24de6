"""`groupcert log rebuild`: shows what a new log would go on from, and makes it.

The rule it keeps: data folders are only read; and the log is made by the same plan that was shown,
while no member can start on any of them.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from ...certifier.errors import InvalidSetting
from ...certifier.gtid_set import GtidSet
from ..host.private_files import keep_private
from ..host.progress_bar import Progress, progress
from ..process.serve import log_options
from ..rebuild.contradictions import Contradiction
from ..rebuild.holding import Holding, holding
from ..rebuild.new_log import Left, left_of_log, make_log
from ..rebuild.plan import MemberPart, Plan, plan_of
from ..settings.member import MemberConfig
from ..total_order.embedded_server import LogServer
from ..total_order.log_options import LogOptions
from .verb_options import FINDING, FINE

if TYPE_CHECKING:
    from ..rebuild.history_parts import HistoryPart

ENTRIES = "{:,.0f} entries".format


class Given(NamedTuple):
    """What an operator gives. `without`: names of members that are given up; `log_folder`: of an
    embedded log server, which runs meanwhile; None: the log is at the settings' servers.
    """

    data_folders: Sequence[Path]
    without: Sequence[str]
    certification_logs: Sequence[Path]
    log_folder: Path | None


class _Shown(NamedTuple):
    """All that is printed about a plan."""

    plan: Plan
    histories: "Sequence[HistoryPart]"
    left: Left | None

    @property
    def contradictions(self) -> list[Contradiction]:
        """Places at which only one of two members can be right."""
        told = (each.contradiction for each in self.histories)
        return [*self.plan.contradictions, *filter(None, told)]

    @property
    def lost(self) -> GtidSet:
        """GTIDs of transactions that the group goes on without."""
        lost = self.plan.tail.lost.copy()
        for each in self.histories:
            lost |= each.lacking
        return lost


def rebuild_log(given: Given, config: MemberConfig, *, makes: bool, as_json: bool) -> int:
    """Shows what a new log would go on from, and makes it if asked to; returns the exit code.

    Raises:
        FolderInUse, InvalidSetting, MembersDiffer, MembersMissing: The members are not those of
            one group that is down.
        CorruptStore, DamagedHistory, UnsupportedFormat: What they have cannot be read.
        LogIsWhole, LogServerUnavailable: The log is there, or cannot be asked.
    """
    keep_private([given.log_folder])
    with ExitStack() as opened:
        holdings: list[Holding] = []
        with progress("reading data folders", number=ENTRIES) as state:
            for folder in given.data_folders:
                state.step(f"reading {folder}", number=ENTRIES)
                holdings.append(opened.enter_context(holding(folder, state.advance)))
            state.step("comparing members")
            plan = plan_of(holdings, given.without, config.group)
            state.step("reading certification logs", number=ENTRIES)
            shown = _Shown(plan, list(_histories(given, plan, state)), None)
        if shown.contradictions:
            return _tell(shown, "contradiction", as_json=as_json)
        options = opened.enter_context(_log(config, given.log_folder))
        shown = shown._replace(left=asyncio.run(left_of_log(options, plan)))
        if makes:
            asyncio.run(make_log(options, plan, replaces=shown.left is not None))
        return _tell(shown, "rebuilt" if makes else "planned", as_json=as_json)


def _histories(given: Given, plan: Plan, state: Progress) -> "Iterator[HistoryPart]":
    """Yields the statements of certification logs."""
    if not given.certification_logs:
        return
    # Who gives none does without the time that Parquet takes to load.
    from ..rebuild.history_parts import compare_history, histories_in

    for name, files in histories_in(given.certification_logs).items():
        yield compare_history(plan.longest, name, files, state.advance)


@contextmanager
def _log(config: MemberConfig, folder: Path | None) -> Iterator[LogOptions]:
    """Yields the options to reach the log: at the settings' servers, or at one in a folder that
    runs within the block.
    """
    if folder is None:
        yield log_options(config, config.log_servers, config.log_monitors)
        return
    if folder.exists() and not folder.is_dir():
        expected = "the folder of a log server, or one that is not there"
        raise InvalidSetting(name="--log-folder", value=str(folder), expected=expected)
    server = LogServer(folder)
    server.start()
    try:
        yield log_options(config, (server.address,), (server.monitor,))
    finally:
        server.stop()


def _tell(shown: _Shown, result: str, *, as_json: bool) -> int:
    """Prints a plan, and what was done; returns the exit code."""
    typer.echo(
        json.dumps(_document(shown, result)) if as_json else "\n".join(_lines(shown, result))
    )
    return FINDING if shown.contradictions else FINE


def _document(shown: _Shown, result: str) -> dict[str, object]:
    plan, base = shown.plan, shown.plan.base
    return {
        "result": result,
        "group": base.group,
        "log": str(base.log),
        "from_member": base.name,
        "log_sequence": base.log_sequence,
        "version": base.version,
        "rebuilt_messages": len(plan.tail.messages),
        "rebuilt_gtids": str(plan.tail.rebuilt),
        "gtid_executed": str(plan.executed),
        "replaces": _replaced(shown.left),
        "members": [_member(shown, each) for each in plan.members],
        "certification_logs": [_history(each) for each in shown.histories],
        "without": list(plan.without),
        "lost_gtids": str(shown.lost),
        "lost": list(_lost(shown)),
        "contradictions": [
            {"members": list(each[:2]), "log_sequence": each.log_sequence, "what": each.what}
            for each in shown.contradictions
        ],
    }


def _replaced(left: Left | None) -> dict[str, object] | None:
    if left is None:
        return None
    state = left.state
    return {
        "log": str(state.identity),
        "first_sequence": state.first_sequence,
        "last_sequence": state.last_sequence,
        "differs_at": left.differs_at or None,
    }


def _member(shown: _Shown, part: MemberPart) -> dict[str, object]:
    held = part.holding
    return {
        "member": held.name,
        "data_folder": str(held.folder),
        "log_sequence": held.log_sequence,
        "version": held.last_version,
        "compared": part.compared,
        "fence": held.fence or None,
        "next": _next(shown, part),
    }


def _history(part: "HistoryPart") -> dict[str, object]:
    return {
        "member": part.observer,
        "history": part.history,
        "log_sequence": part.log_sequence,
        "compared": part.compared,
        "lacking_gtids": str(part.lacking),
    }


def _next(shown: _Shown, part: MemberPart) -> str:
    """Returns a sentence on a member's next start."""
    if shown.contradictions:
        return "nothing: members contradict each other"
    steps = []
    if part.holding.is_in_doubt:
        steps.append("`groupcert group rejoin --unfence` once it runs")
    if part.extra:
        steps.append(
            f"is fenced, as it has {part.extra}, which the log has not: `rejoin --discard-state`"
        )
    elif part.reads_on:
        steps.append("goes on by itself")
    else:
        steps.append("copies another member")
    return ", then ".join(steps)


def _lost(shown: _Shown) -> Iterator[str]:
    """Yields sentences on what is not in the new log."""
    plan, left = shown.plan, shown.left
    yield (
        f"messages after {plan.reach:,} that the lost log may have had: none of these members has "
        "read one, so no client has had an answer"
    )
    if left is not None and left.differs_at:
        first, last = left.differs_at, left.state.last_sequence
        yield (
            f"messages {first:,} to {last:,} of the log that is replaced: these members have read "
            "others there, or none"
        )
    told = {each.observer for each in shown.histories}
    for name in plan.without:
        how = "its certification log says which, as far as that was written"
        yield f"what {name} alone has: {how if name in told else 'it was not asked'}"
    for each in shown.histories:
        if each.lacking:
            yield f"transactions {each.lacking}: {each.observer} had certified them, nobody else"
    if plan.tail.lost:
        yield f"transactions {plan.tail.lost}: their rows are there, their changes are not"
    if plan.tail.rebuilt:
        yield (
            f"the clients' ids of transactions {plan.tail.rebuilt}, which are made again from a "
            "binary log: a client that asks for one again is not recognized"
        )


def _lines(shown: _Shown, result: str) -> Iterator[str]:
    plan, base, left = shown.plan, shown.plan.base, shown.left
    if shown.contradictions:
        yield from map(str, shown.contradictions)
        yield (
            "no log was made: find out which one is right, and give the others up, without their "
            "folders and with --without their names"
        )
        return
    yield (
        f"group {base.group}: the log goes on from what {base.name} has, message "
        f"{base.log_sequence:,}, {base.version:,} transactions"
    )
    if plan.tail.messages:
        yield f"messages made again: {len(plan.tail.messages):,}, with {plan.tail.rebuilt}"
    if left is not None:
        first, last = left.state.first_sequence, left.state.last_sequence
        yield f"replaces: {left.state.identity}, messages {first:,} to {last:,}"
    for part in plan.members:
        held = part.holding
        compared = "" if part.compared is None else f", {part.compared:,} of them compared"
        yield (
            f"{held.name}: message {held.log_sequence:,}, {held.last_version:,} transactions"
            f"{compared}; {_next(shown, part)}"
        )
    for each in shown.histories:
        yield (
            f"certification log of {each.observer}: to message {each.log_sequence:,}, "
            f"{each.compared:,} transactions compared"
        )
    yield from (f"lost: {each}" for each in _lost(shown))
    made = "the log is made: start the members" if result == "rebuilt" else ""
    yield made or "nothing was changed: with --yes the log is made"
