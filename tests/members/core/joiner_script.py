"""The commands of scripts about a joiner: what others say of the log, and what that has it do; from
the log or from a copy, and whose.
"""

from groupcert.certifier.errors import GroupcertError
from groupcert.members.core.recovery_plan import (
    Candidate,
    Needs,
    check_start,
    choose_donor,
    plan_recovery,
    why_none,
)
from groupcert.members.core.views import View
from groupcert.members.core.witnesses import Progress, Witnesses
from groupcert.members.total_order.port import Continuation, LogIdentity, LogState
from tests.datadriven import Command, parse_command
from tests.members.core.message_text import run_named, words_of

LOG = LogIdentity(name="g", created="today")
DIGESTS = {0: b"\x01", 9: b"\x01"}
"""Of the joiner, after messages of the log."""
BEGAN_MS = 1_000


def log_of(first: int, last: int, replicas: int = 1, continues: int | None = None) -> LogState:
    """Returns what a log says of itself."""
    return LogState(
        identity=LOG,
        first_sequence=first,
        last_sequence=last,
        replicas=replicas,
        durable=True,
        message_bytes_max=1,
        continues=None
        if continues is None
        else Continuation(
            log=LogIdentity(name="g", created="before"),
            member="m1",
            log_sequence=continues,
            digest="01",
            last_sequence=continues,
        ),
    )


class JoinerScript:
    """Member m3, which has read a log of nine messages, in its second run."""

    def __init__(self) -> None:
        self.view = View()
        self.witnesses: Witnesses
        self.handlers = {
            "joiner": self.joiner,
            "says": self.says,
            "judge": self.judge,
            "plan": self.plan,
            "donor": self.donor,
        }

    def joiner(self, command: Command) -> str:
        """joiner [view=<members>] [replicas=] [seeds=] [rebuilt=<sequence>]: another joiner, and
        whom it asks; `rebuilt`: the log goes on from that message of an earlier one.
        """
        view, replicas, seeds, rebuilt = command.take("view", "replicas", "seeds", "rebuilt")
        members = tuple(map(run_named, view.split(","))) if view else ()
        self.view = View(view_id=len(members), members=members)
        continues = int(rebuilt) if rebuilt else None
        log = log_of(1 + (continues or 0), 9, int(replicas or 1), continues)
        self.witnesses = Witnesses(run_named("m3.1"), "g", log, BEGAN_MS)
        asked = self.witnesses.addresses(self.view, seeds.split(",") if seeds else ())
        return f"asks {', '.join(asked) or 'nobody'}"

    def says(self, command: Command) -> str:
        """says <member> <why it does not answer> | [log=] [digest=] [identity=] [group=] [empty]"""
        name, *words = words_of(command)
        values = command.arguments
        address = run_named(name).address
        if words and words != ["empty"]:
            self.witnesses.note(address, words[0])
            return ""
        identity = {"": str(LOG), "none": ""}.get(values.get("identity", ""), "g created before")
        digest = {"none": ""}.get(values.get("digest", "01"), values.get("digest", "01"))
        answer = Progress(
            name,
            values.get("group", "g"),
            identity,
            int(values.get("log", 9)),
            bytes.fromhex(digest),
            words != ["empty"],
        )
        self.witnesses.note(address, answer)
        return ""

    def judge(self, command: Command) -> str:
        """judge [last=<number>|none] [read=] [after=<ms>]: with the log's end, and what is read."""
        last, read, after = command.take("last", "read", "after")
        try:
            step, reason = self.witnesses.judge(
                self.view,
                last_sequence=None if last == "none" else int(last or 9),
                log_sequence=int(read or 9),
                digest_at=lambda sequence: DIGESTS.get(sequence, b""),
                now_ms=BEGAN_MS + int(after or 0),
            )
        except GroupcertError as error:
            return f"{type(error).__name__}: {error}"
        return f"{step.name}{': ' if reason else ''}{reason}"

    def plan(self, command: Command) -> str:
        """plan log=<first>-<last> has=<number> [max=] [alone]: where it takes what it lacks from,
        and whether it starts so; `alone`: it knows nobody to ask for a copy.
        """
        log, has, most, alone = command.take("log", "has", "max", "alone")
        assert log and has
        first, last = map(int, log.split("-"))
        limits = {"messages_max": int(most or 100), "knows_members": alone is None}
        plan = plan_recovery(first, last, int(has), **limits)  # type: ignore[arg-type]  # as above
        lines = [f"{'copy' if plan.copy else 'log'}: {plan.reason}"]
        try:
            state = log_of(first, last)
            assert plan.reason == check_start(state, int(has), **limits)  # type: ignore[arg-type]
        except GroupcertError as error:
            lines.append(f"{type(error).__name__}: {error}")
        return "\n".join(lines)

    def donor(self, command: Command) -> str:
        """donor [failed=<members>] [server=<version>] [no-rows]: members a line each, `<name>
        [<state>] [certified=] [lacks=] [relay=<first version>] [rows=none]`; m3 asks, whose server
        is at a version, or which keeps no rows.
        """
        failed, server, no_rows = command.take("failed", "server", "no-rows")
        needs = Needs("m3", int(server) if server else None, no_rows is not None)
        addresses = [run_named(name).address for name in failed.split(",")] if failed else []
        candidates = [candidate_of(parse_command(line)) for line in command.body]
        choices = {
            choose_donor(order, needs, addresses) for order in (candidates, candidates[::-1])
        }
        [choice] = choices
        if choice is None:
            failures = dict.fromkeys(addresses, "it died")
            return why_none(candidates, needs, failures)
        return f"{choice.donor.name}: {choice.reason}"


def candidate_of(command: Command) -> Candidate:
    """Returns the member that a line describes."""
    certified = int(command.arguments.get("certified", 10))
    lacks = int(command.arguments.get("lacks", 0))
    [state] = words_of(command) or ["ONLINE"]
    address = run_named(command.name).address
    relay = int(command.arguments.get("relay", 0))
    without_rows = command.arguments.get("rows") == "none"
    return Candidate(
        command.name, address, state, certified, certified - lacks, relay, without_rows
    )
