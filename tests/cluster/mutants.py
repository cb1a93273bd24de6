"""Real members that are wrong on purpose: the simulation's mutants, of which two differ here.

Where the simulated member answers early, here the real one does. What is collected too early is
collected at once: in steps, items would outlive their readers. Only containers of a cluster with
`mutant` have these files, mounted; the image has nothing of them.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from groupcert.certifier.core import CertifierOptions
from groupcert.certifier.records import Outcome, Verdict
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.core.publisher import Submission
from groupcert.members.runtime.runtime import MemberRuntime
from tests.laboratory.mutants import Mutant, mutant
from tests.sim import mutants as sim_mutants

_submit = MemberRuntime.submit


def acknowledge_before_the_log(
    self: MemberRuntime, transactions: Sequence[LoggedTransaction]
) -> "asyncio.Future[Submission]":
    """A member that believes its own transactions to pass, and answers before they are ordered."""
    ordered = _submit(self, transactions)
    if not transactions:
        return ordered
    ordered.add_done_callback(lambda done: done.exception())
    hoped = Submission(transactions, lambda _: None)
    newest_version = self.member.certifier.window.newest_version
    for index in range(len(transactions)):
        hoped.decide(index, Outcome(Verdict.CERTIFIED, version=newest_version + 1 + index))
    hoped.log_sequence = self.member.log_sequence + 1
    answered = asyncio.get_running_loop().create_future()
    answered.set_result(hoped)
    return answered


@contextmanager
def collect_at_once() -> Iterator[None]:
    """The simulation's mutant, in members that collect without steps."""
    defaults = CertifierOptions.__init__.__kwdefaults__ or {}
    with (
        patch.dict(defaults, {"collection_period_transactions": 0}),
        sim_mutants.MUTANTS["collect-one-too-early"].install(),
    ):
        yield


MUTANTS = {
    **sim_mutants.MUTANTS,
    "acknowledge-before-the-log": mutant(MemberRuntime, "submit", acknowledge_before_the_log),
    "collect-one-too-early": Mutant(collect_at_once),
}
