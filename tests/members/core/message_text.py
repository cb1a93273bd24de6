"""Messages of the log as text, as the scripts in tests/testdata/members write and draw them.

`m2#4: write a b snapshot=1; report applied=1 stable=1` is batch 4 of member m2. `m2.1` is the run
of m2 after its first, `m2*90` has weight 90, `m2!3` announces format 3, `m2~z` has the name z,
`m2@b:1` another address; `G` is the group's UUID.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from groupcert.applier.queue.fragment_references import FragmentSet, is_reference
from groupcert.certifier.gtid import parse_gtid
from groupcert.certifier.gtid_set import GtidSet
from groupcert.members.core.log_records import (
    RANGE_BYTES,
    RANGES,
    Abandonment,
    Appointment,
    Comparison,
    Control,
    Forgetting,
    Fragment,
    GroupSettings,
    LogBatch,
    LoggedTransaction,
    MemberReport,
    Message,
    RowDigests,
    Skip,
    Unreadable,
    ViewProposal,
)
from groupcert.members.core.member import Member
from groupcert.members.core.members import CAUSES, Cause
from groupcert.members.core.views import WEIGHT, ViewMember
from tests.datadriven import Command, parse_command
from tests.members.state_machines import SETTINGS, run_of

WRONG_DIGEST = b"\x01" * 8


def full(text: str) -> str:
    """Returns a text with the UUID that `G` stands for."""
    return re.sub(r"\bG:", f"{SETTINGS.group_uuid}:", text)


def short(text: str) -> str:
    """Returns a text with `G` for the group's UUID."""
    return text.replace(SETTINGS.group_uuid, "G")


def words_of(command: Command) -> list[str]:
    """Returns the words of a command that are not `key=value`."""
    return [word for word, value in command.arguments.items() if not value]


def run_named(text: str) -> ViewMember:
    """Returns the run that a text such as `m2`, `m2.1`, `m2*90`, `m2@b:1` or `m2_`, which keeps no
    rows, names.
    """
    shape = r"m(\d+)(?:\.(\d+))?(?:\*(\d+))?(?:!(\d+))?(_)?(?:~([^@]*))?(?:@(.*))?"
    found = re.fullmatch(shape, text)
    assert found, f"{text} names no member"
    number, run, weight, newest, no_rows, name, address = found.groups()
    member = replace(run_of(int(number), int(run or 0)), weight=int(weight or WEIGHT))
    if newest:
        member = replace(member, format_version=int(newest), release=f"{newest}.0")
    member = replace(member, name=name or member.name, without_rows=bool(no_rows))
    return member if address is None else replace(member, address=address)


def run_text(member: ViewMember) -> str:
    """Returns the text that `run_named` reads."""
    run, number = divmod(member.incarnation, 10)
    weight = "" if member.weight == WEIGHT else f"*{member.weight}"
    newest = f"!{member.format_version}" if member.format_version else ""
    no_rows = "_" if member.without_rows else ""
    return f"m{number}" + (f".{run}" if run else "") + weight + newest + no_rows


def item_of(key: str) -> int:
    """Returns the item of a row that a script names by letters."""
    return int.from_bytes(key.encode(), "big")


def key_of(item: int) -> str:
    """Returns the name of an item's row."""
    return item.to_bytes(8, "big").lstrip(b"\0").decode()


def transaction_of(command: Command, incarnation: int, newest: int = 0) -> LoggedTransaction:
    """Returns the transaction that `write <rows> [read=] [snapshot=] [id=] [gtid=] [domain=] [asks]
    [large=<number>/<fragments>]` describes.

    Args:
        command: The description.
        incarnation: The run whose fragments a large one has.
        newest: Its snapshot where it says none.
    """
    values = command.arguments
    snapshot, payload = values.get("snapshot", str(newest)), b""
    if "large" in values:
        number, pieces = map(int, values["large"].split("/"))
        payload = FragmentSet(incarnation, number, pieces, pieces, bytes(16)).reference()
    return LoggedTransaction(
        values.get("id", "").encode(),
        int(snapshot) if snapshot.isdigit() else GtidSet.parse(full(snapshot)),
        [item_of(word) for word in words_of(command) if word != "asks"],
        [item_of(word) for word in values.get("read", "").split(",") if word],
        parse_gtid(full(values["gtid"])) if "gtid" in values else None,
        payload or values.get("payload", "").encode(),
        "asks" in values,
        int(values.get("domain", 0)),
    )


def settings_of(command: Command, present: GroupSettings, version: int) -> GroupSettings:
    """Returns settings with the values that `settings <name>=<value>` gives, others as at present;
    `version`: which version they have where none is given.
    """
    values: dict[str, object] = {"settings_version": version}
    for name, text in command.arguments.items():
        key = "settings_version" if name == "version" else name
        before = getattr(present, key)
        if isinstance(before, tuple):
            values[key] = tuple(text.split(","))
        else:
            values[key] = text == "yes" if isinstance(before, bool) else type(before)(text)
    return present._replace(**values)  # type: ignore[arg-type]  # of the fields' types


def control_of(command: Command, reader: Member) -> Control:
    """Returns the control record that a command describes; `reader` has read the log so far, which
    gives a view's predecessor, a report's place and digest where the command does not.
    """
    values, [*words] = command.arguments, words_of(command)
    match command.name:
        case "view":
            after = int(values.get("after", reader.view.view_id))
            cause = values.get("cause", "UNKNOWN")
            number = int(cause) if cause.isdigit() else Cause[cause].value
            members = tuple(run_named(word) for each in words for word in each.split(","))
            return ViewProposal(after, members, number, int(values.get("at_us", 0)))
        case "report":
            digest = values.get("digest", reader.certifier.digest())
            return MemberReport(
                int(values.get("applied", 0)),
                int(values.get("stable", 0)),
                int(values.get("at", reader.log_sequence)),
                digest if isinstance(digest, bytes) else WRONG_DIGEST * int(digest),
                int(values.get("durable", 0)),
                int(values.get("history", 0)),
                bytes(int(values.get("chain", 0))),
            )
        case "settings":
            return settings_of(command, SETTINGS, reader.settings.settings_version + 1)
        case "appoint":
            return Appointment(values.get("name") or words[0])
        case "forget":
            return Forgetting(words[0])
        case "abandon":
            return Abandonment(int(words[0]))
        case "compare":
            return Comparison(int(values.get("at_us", 0)))
        case "rows":
            return digests_of(words, int(values.get("at", reader.comparisons.position)))
    assert command.name == "skip", f"no record {command.name}"
    return Skip(int(words[0]))


def digests_of(words: Sequence[str], position: int) -> RowDigests:
    """Returns digests of rows of which each word is one: its first letter says which range."""
    sums = [0] * RANGES
    for word in words:
        sums[ord(word[0])] += item_of(word)
    return RowDigests(position, len(words), b"".join(each.to_bytes(RANGE_BYTES) for each in sums))


def incarnation_in(line: str) -> int:
    """Returns the incarnation of the run whose message a line describes."""
    return run_named(re.split(r"[# :]", line)[0]).incarnation


def message_of(line: str, reader: Member, next_number: int) -> Message:
    """Returns the message that a line `<run>[#<number>] [as=<name>]: <part>; ...` describes.

    Args:
        line: Parts are `write`, `fragment` and control records; or `unreadable [format=]`. Flags
            are `as=<name>`, `bytes=` and `format=`.
        reader: It has read the log so far.
        next_number: The batch's number where the line has none.
    """
    head, _, body = line.partition(": ")
    run, *flags = head.rstrip(":").split()
    name, _, number = run.partition("#")
    sender = run_named(name)
    claims = parse_command(f"head {' '.join(flags)}").arguments
    member, incarnation = claims.get("as", sender.name), sender.incarnation
    batch_number = int(number or next_number)
    encoded = claims.get("bytes", "").encode()
    commands = [parse_command(part) for part in body.split("; ") if part]
    if commands and commands[0].name == "unreadable":
        version = int(commands[0].arguments.get("format", 0))
        return Unreadable("it is junk", member, incarnation, batch_number, version, encoded)
    version = int(claims.get("format", 0))
    writes: list[LoggedTransaction] = []
    controls: list[Control] = []
    fragments: list[Fragment] = []
    for each in commands:
        if each.name == "write":
            writes.append(transaction_of(each, incarnation))
        elif each.name == "fragment":
            fragments += map(fragment_of, words_of(each))
        else:
            controls.append(control_of(each, reader))
    return LogBatch(
        member, incarnation, batch_number, writes, controls, fragments, encoded, version
    )


def fragment_of(word: str) -> Fragment:
    """Returns the fragment that `<number>/<place>` names."""
    number, place = map(int, word.split("/"))
    return Fragment(number, place, b"x")


def message_text(message: Message) -> str:
    """Returns a message as a line that `message_of` reads."""
    run, number = divmod(message.incarnation, 10)
    head = f"m{number}" + (f".{run}" if run else "") + f"#{message.batch_number}"
    version = f" format={message.format_version}" if message.format_version else ""
    if isinstance(message, Unreadable):
        return f"{head}: unreadable{version}"
    parts = [transaction_text(each) for each in message.transactions]
    parts += [control_text(each) for each in message.controls]
    parts += [f"fragment {each.number}/{each.place}" for each in message.fragments]
    return f"{head}{version}: {'; '.join(parts) or 'nothing'}"


def transaction_text(logged: LoggedTransaction) -> str:
    """Returns a transaction as `write` and what is not as usual."""
    words = ["write", *map(key_of, logged.write_set)]
    words += [f"snapshot={short(str(logged.snapshot))}"] if logged.snapshot else []
    words += [f"id={logged.transaction_id.decode()}"] if logged.transaction_id else []
    if is_reference(logged.payload):
        large = FragmentSet.of(logged.payload)
        words.append(f"large={large.number}/{large.pieces}")
    return " ".join(words)


def control_text(control: Control) -> str:
    """Returns a control record as it is written; of a report only what is not zero, no digest."""
    match control:
        case ViewProposal(after, members, cause, at_us):
            words = [run_text(each) for each in members]
            words += [f"after={after}", *([f"cause={_cause_text(cause)}"] if cause else [])]
            return " ".join(["view", *words, *([f"at_us={at_us}"] if at_us else [])])
        case MemberReport(applied, stable, at, _, durable, history):
            more = {"durable": durable, "history": history}
            words = [f"{name}={value}" for name, value in more.items() if value]
            return " ".join([f"report applied={applied} stable={stable} at={at}", *words])
        case GroupSettings():
            return f"settings {settings_text(control)}"
        case Appointment(name) | Forgetting(name):
            return f"{'appoint' if isinstance(control, Appointment) else 'forget'} {name}"
        case Abandonment(number) | Skip(number):
            return f"{'abandon' if isinstance(control, Abandonment) else 'skip'} {number}"
        case Comparison(at_us):
            return f"compare at_us={at_us}"
        case RowDigests(position, rows):
            used = [control.of_range(each).strip(b"\0") for each in range(RANGES)]
            sums = "+".join(key_of(int.from_bytes(each)) for each in used if each)
            tables = f" tables={control.tables}" if control.tables else ""
            return f"rows {sums or 'none'} ({rows}) at={position}{tables}"


def _cause_text(cause: int) -> str:
    return CAUSES[cause].name if cause in CAUSES else str(cause)


def settings_text(settings: GroupSettings) -> str:
    """Returns the version of settings, and what is not as in the tests' usual ones."""
    fields = zip(settings._fields[1:], settings[1:], SETTINGS[1:], strict=True)
    words = [f"{name}={_value(value)}" for name, value, usual in fields if value != usual]
    return " ".join([f"version={settings.settings_version}", *words])


def _value(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return str(value).replace("True", "yes")
