"""The commands of the scripts in tests/testdata/members: a group of members that read one log.

Method: members are the state machines as they are; a script orders their messages, and adds some
of its own. Each message is drawn with what follows from it, and at whom. After each message all
that have read it must agree on what they store, and one that was skipped must have changed nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial

from groupcert.certifier.errors import GroupcertError
from groupcert.members.core.effects import Delivered
from groupcert.members.core.log_records import LogBatch, Message
from groupcert.members.core.member import Member
from groupcert.members.core.member_options import MemberOptions
from groupcert.members.core.noted_decisions import Decisions
from groupcert.members.core.publisher import BatchLimits, Submission, Upload
from groupcert.members.core.views import MemberState
from tests.datadriven import Command, parse_command
from tests.members.core.group_drawing import effects, facts_of, status_of, stored_of, view_text
from tests.members.core.message_text import (
    digests_of,
    incarnation_in,
    message_of,
    message_text,
    run_named,
    settings_of,
    short,
    transaction_of,
    words_of,
)
from tests.members.state_machines import SETTINGS, restored_from

BATCH_LIMITS = {each.name for each in fields(BatchLimits)}
MEMBER_OPTIONS = {each.name for each in fields(MemberOptions)}
MESSAGES_MAX = 100
"""Messages that one command may cause."""

Lines = list[tuple[str, str]]
"""What follows from a message, and the member where it does."""


class GroupScript:
    """One script's members, its log, and the names that the script gave to things."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.reading: list[str] = []
        self.log: list[Message] = []
        self.held: dict[str, Message] = {}
        self.submissions: dict[str, Submission] = {}
        self.uploads: dict[str, Upload] = {}
        self.events: Lines = []
        self.now_ms = 0
        self.handlers: dict[str, Callable[[Command], str]] = {
            "start": self.start,
            "restart": self.restart,
            "members": self.online,
            "caught_up": self.caught_up,
            "pause": self.pause,
            "read": self.read,
            "publish": self.publish,
            "log": self.publish_all,
            "deliver": self.deliver,
            "submit": self.submit,
            "upload": self.upload,
            "abandon": self.abandon,
            "ask": self.ask,
            "tick": self.tick,
            "report": self.report,
            "committed": self.committed,
            "credit": self.credit,
            "digest": self.digest,
            "compare": self.compare,
            "status": self.status,
        }

    def start(self, command: Command) -> str:
        """start <run>... [history] [<option of members, batches or the group>=]: members that read
        the log so far, which is not drawn.
        """
        words = words_of(command)
        options: dict[str, int] = {}
        limits: dict[str, int] = {}
        settings: dict[str, str] = {}
        for key, value in command.arguments.items():
            if key in MEMBER_OPTIONS:
                options[key] = int(value)
            elif key in BATCH_LIMITS:
                limits[key] = int(value)
            elif value:
                settings[key] = value
        for run in (word for word in words if word != "history"):
            made = MemberOptions(
                me=run_named(run),
                settings=settings_of(Command(name="", arguments=settings, body=()), SETTINGS, 1),
                batches=BatchLimits(**limits),
                **options,  # type: ignore[arg-type]  # all others are numbers
            )
            self._begin(Member(made, Decisions(made.me.name, is_on="history" in words)))
        return ""

    def restart(self, command: Command) -> str:
        """restart <run> [<member>]: another run, which goes on from what its earlier one, or the
        other member, has stored.
        """
        run, *donor = words_of(command)
        me = run_named(run)
        self._begin(restored_from(self.members[donor[0] if donor else me.name], me))
        return ""

    def online(self, command: Command) -> str:
        """members <run>... [<option>=]: these start and join, one after the other; not drawn."""
        options = {key: value for key, value in command.arguments.items() if key[0] != "m"}
        for run in (word for word in words_of(command) if word[0] == "m"):
            self.start(Command(name="start", arguments={run: "", **options}, body=()))
            self.members[run_named(run).name].caught_up()
            self._publish_all(self.reading)
        [view] = {view_text(member.view) for member in self.members.values()}
        return view

    def caught_up(self, command: Command) -> str:
        """caught_up <member>...: the members have read all that the log held at their start."""
        return "\n".join(self._each(words_of(command), Member.caught_up))

    def pause(self, command: Command) -> str:
        """pause <member>...: they read nothing more."""
        self.reading = [each for each in self.reading if each not in words_of(command)]
        return ""

    def read(self, command: Command) -> str:
        """read <member> [skip=<message>]: it reads on, and skips what nobody can read."""
        [name] = words_of(command)
        self.members[name].skip_sequence = int(command.arguments.get("skip", 0))
        self.reading.append(name)
        return "\n".join(_drawn(self._read(name)))

    def publish(self, command: Command) -> str:
        """publish <member> [as=<name>] [credit=<number>|own] [lingers] [is_taken]: a message,
        which comes into the log now, or under the name later.
        """
        name, *flags = words_of(command)
        member, credit = self.members[name], command.arguments.get("credit")
        how: dict[str, int] = {"lingered": "lingers" not in flags, "is_taken": "is_taken" in flags}
        if credit:
            how["credit"] = member.credit(self.now_ms) if credit == "own" else int(credit)
        batch = self._next_batch(name, **how)
        if batch is None:
            return "nothing"
        if "as" not in command.arguments:
            return "\n".join(self._append(batch))
        self.held[command.arguments["as"]] = batch
        return message_text(batch)

    def publish_all(self, command: Command) -> str:
        """log [<member>...]: all that publishers have to send, in turns."""
        names = words_of(command) or list(self.reading)
        return "\n".join(line for each in self._publish_all(names) for line in each) or "nothing"

    def deliver(self, command: Command) -> str:
        """Messages of the log, a line each: as `message_of` reads them, or the name of one that was
        held back.
        """
        command.take()
        lines = (each for line in command.body for each in self._append(self._message(line)))
        return "\n".join(lines)

    def submit(self, command: Command) -> str:
        """submit <member> <name> [locked_since=]: transactions, a line each; none: a mark."""
        member, name = words_of(command)
        run, newest = self.members[member].me.incarnation, self._newest(member)
        writes = [transaction_of(parse_command(line), run, newest) for line in command.body]
        submission = Submission(writes, lambda ended: None)
        submission.locked_since = int(command.arguments.get("locked_since", 0))
        self.submissions[name] = submission
        self.members[member].publisher.submit(submission)
        return ""

    def upload(self, command: Command) -> str:
        """upload <member> <name> [<place>...] [ends|submitted]: fragments of a transaction."""
        member, name, *words = words_of(command)
        publisher = self.members[member].publisher
        if name not in self.uploads:
            changed = partial(self._changed, member, name)
            self.uploads[name] = publisher.begin_upload(changed)
        for place in filter(str.isdigit, words):
            publisher.fragment(self.uploads[name], int(place), b"x")
        if {"ends", "submitted"} & set(words):
            publisher.end_upload(self.uploads[name], submitted="submitted" in words)
        return f"number {self.uploads[name].number}"

    def abandon(self, command: Command) -> str:
        """abandon <member>: gives up all that is not decided."""
        [name] = words_of(command)
        given_up = self._names(self.members[name].publisher.abandon())
        return "\n".join(_drawn([*self._noted(), (name, f"gives up {given_up or 'nothing'}")]))

    def ask(self, command: Command) -> str:
        """ask <member> leave | turn_away | expel <name> | forget <name> | appoint <name> |
        settings <name>= | fail <state>
        """
        name, verb, *words = words_of(command)
        values = {key: value for key, value in command.arguments.items() if value}

        def act(member: Member) -> None:
            if verb == "settings":
                changed = Command(name=verb, arguments=values, body=())
                member.change_settings(settings_of(changed, member.settings, 0))
            elif verb == "fail":
                member.fail(MemberState[words[0]], "as it was told")
            elif verb == "turn_away":
                member.publisher.turn_away()
            elif verb == "leave":
                member.leave()
            else:
                {"expel": member.expel, "forget": member.forget, "appoint": member.appoint}[verb](
                    *words or [name]
                )

        return "\n".join(self._each([name], act))

    def tick(self, command: Command) -> str:
        """tick <ms> [<member>...] [times=] [report] [stands_still]: time passes, so many times;
        with `report` all report where it is due; messages that nothing follows from are not drawn.
        """
        passed, *words = words_of(command)
        names = [word for word in words if word in self.members] or list(self.reading)
        found: list[str] = []
        for _ in range(int(command.arguments.get("times", 1))):
            self.now_ms += int(passed)
            now = partial(Member.tick, now_ms=self.now_ms, reads="stands_still" not in words)
            lines = self._each(names, now)
            if "report" in words:
                for member in map(self.members.__getitem__, names):
                    member.report_if_due(self.now_ms, member.applied_version)
                published = self._publish_all(names)
                lines += (line for each in published if len(each) > 1 for line in each)
            found += (f"{self.now_ms} ms: {line}" for line in lines)
        return "\n".join(found)

    def report(self, command: Command) -> str:
        """report <member> [stable=] [history=<place>]: its report is to be sent, if it is due."""
        [name] = words_of(command)
        member = self.members[name]
        place = int(command.arguments.get("history", 0))
        member.history_cursor = member.history_cursor._replace(place=place, chain=b"chain")
        stable = int(command.arguments.get("stable", member.applied_version))
        return "due" if member.report_if_due(self.now_ms, stable) else "not due"

    def committed(self, command: Command) -> str:
        """committed <member> <version>: it is visible there."""
        name, version = words_of(command)
        self.members[name].committed(int(version))
        return ""

    def credit(self, command: Command) -> str:
        """credit <member>: what it may send, and who slows the group."""
        [name] = words_of(command)
        member = self.members[name]
        credit, flow = member.credit(self.now_ms), member.flow
        return f"{credit}, held {flow.held_ms} ms {flow.explanation()}".rstrip()

    def digest(self, command: Command) -> str:
        """digest <member> [<row>...] [at=<position>] [tables=<number>]: it has these rows, by
        default there where the last comparison is; a row's first letter says which range it is in.
        """
        name, *rows = words_of(command)
        member = self.members[name]
        at = int(command.arguments.get("at", member.comparisons.position))
        tables = int(command.arguments.get("tables", 0))
        member.rows_digested(digests_of(rows, at)._replace(tables=tables))
        doubt = member.comparisons.why_doubted()
        return f"doubted: {doubt}" if doubt else ""

    def compare(self, command: Command) -> str:
        """compare <member> [period=<ms>]: it asks for a comparison, with a period if one is due."""
        [name] = words_of(command)
        member, now_us = self.members[name], 1_000 * self.now_ms
        if "period" in command.arguments:
            is_due = member.compare_if_due(now_us, 1_000 * int(command.arguments["period"]))
            return "due" if is_due else "not due"
        return "\n".join(self._each([name], lambda asker: asker.compare(now_us)))

    def status(self, command: Command) -> str:
        """status <member>...: its state, and what of its parts is not as at the start."""
        members = (self.members[name] for name in words_of(command))
        return "\n".join(line for member in members for line in status_of(member))

    def _newest(self, member: str) -> int:
        return self.members[member].certifier.window.newest_version

    def _changed(self, member: str, name: str) -> None:
        """Notes a change of an upload."""
        upload = self.uploads[name]
        refused = "refused, " if upload.is_refused else ""
        self.events.append((member, f"upload {name} {refused}{upload.undelivered} undelivered"))

    def _begin(self, member: Member) -> None:
        """Has a member read the log so far."""
        name = member.me.name
        self.members[name] = member
        self.reading = [*(each for each in self.reading if each != name), name]
        lines = _drawn(self._read(name))
        assert name in self.reading, lines[-1]

    def _each(self, names: Iterable[str], act: Callable[[Member], object]) -> list[str]:
        """Lines of what becomes of members that do something which is no message."""
        lines: Lines = []
        for name in names:
            member, before = self.members[name], facts_of(self.members[name])
            try:
                act(member)
            except GroupcertError as error:
                lines.append((name, f"{type(error).__name__}: {short(str(error))}"))
            lines += [*self._noted(), *((name, each) for each in before.changes(member))]
        return _drawn(lines)

    def _publish_all(self, names: Iterable[str]) -> list[list[str]]:
        """Appends what publishers have to send, in turns; lines for each message."""
        found: list[list[str]] = []
        while batches := [batch for name in names if (batch := self._next_batch(name))]:
            found += map(self._append, batches)
            assert len(found) < MESSAGES_MAX, "no end of messages"
        return found

    def _next_batch(self, name: str, **how: int) -> LogBatch | None:
        publisher = self.members[name].publisher
        batch = publisher.next_batch(**how)  # type: ignore[arg-type]  # bool is a number
        if batch is None:
            return None
        encoded = message_text(batch).encode()
        written = self.members[name].view.format_version
        publisher.note_encoded(batch.batch_number, encoded)
        return batch._replace(encoded=encoded, format_version=written)

    def _message(self, line: str) -> Message:
        if line in self.held:
            return self.held[line]
        reader = max(self.members.values(), key=lambda each: each.log_sequence)
        sent = [each.batch_number for each in self.log if each.incarnation == incarnation_in(line)]
        return message_of(line, reader, max(sent, default=0) + 1)

    def _append(self, message: Message) -> list[str]:
        """Adds a message to the log, and returns it with what follows from it."""
        self.log.append(message)
        readers = list(self.reading)
        lines = [line for name in readers for line in self._read(name)]
        self._check_agreement()
        return [f"{len(self.log)} {message_text(message)}", *_drawn(lines, readers)]

    def _read(self, name: str) -> Lines:
        """Has a member read to the log's end, or to an error; what follows from that."""
        member, lines = self.members[name], self._noted()
        while member.log_sequence < len(self.log) and name in self.reading:
            message, before = self.log[member.log_sequence], facts_of(member)
            into = Delivered(decided_us=self.now_ms * 1_000)
            try:
                member.deliver(member.log_sequence + 1, message, into)
            except GroupcertError as error:
                lines.append((name, f"{type(error).__name__}: {short(str(error))}"))
                self.reading.remove(name)
            for ended in into.ended:
                ended.end()
            after = [*before.changes(member), *effects(member, into, self._names)]
            lines += [*((name, each) for each in after), *self._noted()]
        return lines

    def _check_agreement(self) -> None:
        """All that have read as far agree on what they store."""
        reading = [self.members[name] for name in self.reading]
        stored = [stored_of(each) for each in reading if each.log_sequence == len(self.log)]
        assert all(each == stored[0] for each in stored), "members differ"

    def _names(self, submissions: Iterable[Submission]) -> str:
        found = {id(each): name for name, each in self.submissions.items()}
        return " ".join(found[id(each)] for each in submissions)

    def _noted(self) -> Lines:
        """Takes what callbacks have noted."""
        noted, self.events = self.events, []
        return noted


def _drawn(lines: Lines, everybody: Sequence[str] = ()) -> list[str]:
    """Lines, each once with all whom it is of; those that follow from a message are indented."""
    whose: dict[str, list[str]] = {}
    for name, line in lines:
        whose.setdefault(line, []).append(name)
    indent = "  " if everybody else ""
    return [
        f"{indent}{'all' if names == everybody and len(names) > 1 else ' '.join(names)}: {line}"
        for line, names in whose.items()
    ]
