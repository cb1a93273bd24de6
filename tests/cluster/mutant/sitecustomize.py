"""Makes a member in a container wrong on purpose: Python imports this before anything else.

Only containers of a cluster with `mutant` have this folder, mounted; the image has nothing of it.
The rules that are broken are those of the simulation's mutants; the one that acknowledges early
differs, since there the simulated member answers, and here the real one.
"""

import asyncio
import os
from collections.abc import Sequence

from groupcert.certifier.core import CertifierOptions
from groupcert.certifier.records import Outcome, Verdict
from groupcert.members.core.log_records import LoggedTransaction
from groupcert.members.core.publisher import Submission
from groupcert.members.runtime.runtime import MemberRuntime
from tests.sim.mutants import installed

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


_name = os.environ.get("MUTANT")
if _name == "acknowledge-before-the-log":
    MemberRuntime.submit = acknowledge_before_the_log  # type: ignore[method-assign]  # on purpose
elif _name:
    if _name == "collect-one-too-early":  # At once: in steps, items would outlive their readers.
        defaults = CertifierOptions.__init__.__kwdefaults__ or {}
        defaults["collection_period_transactions"] = 0
    installed(_name).__enter__()
