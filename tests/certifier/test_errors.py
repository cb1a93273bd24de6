"""The error tree: every leaf has a stable reason, and a message that says what to do."""

from collections.abc import Iterator

import pytest

from applier import errors as applier_errors
from certifier import errors
from certifier.audit import errors as audit_errors
from certifier.errors import GroupcertError
from members import call_errors, membership_errors, recovery_errors, security_errors

CATEGORIES = (errors.InvalidRequest, errors.Unavailable, errors.Fenced, errors.CorruptLog)

EXAMPLES: tuple[tuple[GroupcertError, str], ...] = (
    (
        audit_errors.AuditNotInstalled(missing="pyspark"),
        "the audit needs pyspark: pip install 'groupcert[audit]'",
    ),
    (
        audit_errors.ForeignOutput(path="/out", problem="is a file", advice="name a folder"),
        "/out is a file: name a folder",
    ),
    (
        audit_errors.NoSuitableJava(
            found="JAVA_HOME=/j is Java 11; Spark needs Java 17 or newer", advice="unset JAVA_HOME"
        ),
        "JAVA_HOME=/j is Java 11; Spark needs Java 17 or newer: unset JAVA_HOME",
    ),
    (
        audit_errors.SparkFailed(task="starting", cause="all masters are unresponsive"),
        "Spark failed while starting (all masters are unresponsive): nothing was written; look at "
        "the cluster, or give it more memory, and try again",
    ),
    (
        audit_errors.UnreadableLog(problem="no certification log below /a", advice="name another"),
        "no certification log below /a: name another",
    ),
    (
        membership_errors.AlreadyBootstrapped(group="shop", created="2026-01-01T00:00:00Z"),
        "group shop was bootstrapped before, at 2026-01-01T00:00:00Z: nothing was changed; "
        "start its members without bootstrapping, they find it",
    ),
    (
        membership_errors.ChangedMeanwhile(change="mode"),
        "the group did not take the change (mode), because another one came first: "
        "look at `groupcert status`, and ask again",
    ),
    (
        membership_errors.GroupMissing(group="shop", address="nats://log1:4222"),
        "there is no group shop at nats://log1:4222: make it, once, with `groupcert bootstrap`; "
        "if it was there before, its log is lost: do not make another",
    ),
    (
        membership_errors.NameTaken(member="m2", address="m2:7101"),
        "another process serves as m2, at m2:7101: a name is one member's; "
        "stop one of the two, or give it another name and an empty data folder",
    ),
    (
        membership_errors.NotPrimary(member="m2", primary="m1", address="m1:7101"),
        "m2 takes no transactions, the group is in single-primary mode: send it to m1 m1:7101",
    ),
    (
        membership_errors.OutOfGroup(member="m2", explanation="view 3 is without it"),
        "m2 is out of its group: view 3 is without it",
    ),
    (
        errors.LogRewritten(sequence=7, read="aa", found="bb"),
        "message 7 of the log has hash bb, this member has read one with aa there: the log has "
        "lost its end since and was filled again; save what only this member has, then "
        "`groupcert group rejoin --discard-state`",
    ),
    (
        membership_errors.UnreadableMessage(log_sequence=7, problem="it has format 2"),
        "message 7 of the log cannot be read (it has format 2); where some release reads it, run "
        "that; where none does, have it skipped at all members: `groupcert group skip 7` at this "
        "one, then `groupcert group rejoin --unfence` at each that is fenced",
    ),
    (
        membership_errors.StillFenced(member="m2", explanation="LOG_GAP: 7 after 5"),
        "m2 fenced itself before (LOG_GAP: 7 after 5): when the cause is mended, "
        "`groupcert group rejoin --unfence`; if its state is in doubt, with --discard-state",
    ),
    (
        errors.DomainNotAllowed(session="app", domain_id=7),
        "session 'app' may not set gtid_domain_id 7: "
        "name it in domain_sessions at this member, or leave the domain at 0",
    ),
    (
        security_errors.CallNotAllowed(principal="shop", call="/s/Commit", roles="write"),
        "principal 'shop' may not call /s/Commit, which needs the role write: "
        "grant it in the member's access list, or call as somebody else",
    ),
    (
        security_errors.NotAuthenticated(call="/s/Commit", problem="nobody has its token"),
        "call /s/Commit has no known caller (nobody has its token): "
        "show a token or a certificate that the member's access list has",
    ),
    (
        security_errors.TlsRefused(address="a:1", problem="it speaks without TLS"),
        "no TLS connection to member a:1: it speaks without TLS; "
        "compare tls_authority and the certificates at both ends, and the address",
    ),
    (
        security_errors.MemberNotAllowed(refused="m9", allowed="m1, m2"),
        "member 'm9' is not allowed, members_allowed of the group has 'm1, m2': "
        "add it there, or start the member under one of these names",
    ),
    (
        applier_errors.InvalidBinaryLog(
            path="binlog.000001", offset=4, problem="type 200", expected="a known event"
        ),
        "binary log binlog.000001 at byte 4: type 200; expected a known event",
    ),
    (
        call_errors.InvalidMessage(call="/s/Get", bytes=7, expected="v1.GetRequest"),
        "call /s/Get got 7 bytes that are no message of its own: "
        "expected v1.GetRequest, serialized",
    ),
    (
        call_errors.RequestIncomplete(call="/s/Get", time_ms=20_000),
        "the message of call /s/Get did not come whole within 20000 ms: "
        "send it again, or a smaller one",
    ),
    (
        call_errors.SessionEnded(session_id=7),
        "session 7 is not open here: hold another one, then try again",
    ),
    (
        call_errors.TooManyCalls(open=1_020, open_max=1_024, what="streams", held=500, share=252),
        "1020 streams are open, the limit is 1024: 500 are this caller's, its share is 252; "
        "end those that are not needed, or ask another member",
    ),
    (
        call_errors.TooManySnapshots(open=10, open_max=20, held=10, share=10),
        "10 snapshots are open, the limit is 20: 10 are this caller's, its share is 10; "
        "end transactions that are done, then try again",
    ),
    (
        errors.InvalidGtid(text="x:0", expected="a number"),
        "invalid GTID 'x:0': expected a number",
    ),
    (
        errors.InvalidGtidSet(text="x:0,y", part="0", expected="a number"),
        "invalid GTID set 'x:0,y': found '0', expected a number",
    ),
    (
        errors.InvalidSetting(name="block_size", value=0, expected="1 or more"),
        "setting block_size is '0': expected 1 or more",
    ),
    (
        errors.InvalidTrace(line=7, problem="no member", expected="a member's name"),
        "trace line 7: no member; expected a member's name",
    ),
    (
        errors.InvalidWriteSet(value="float", expected="int"),
        "invalid write set: found 'float', expected int",
    ),
    (
        errors.TransactionTooLarge(bytes=11, bytes_max=10),
        "transaction of 11 bytes, the limit is 10: "
        "split it, or raise the group's transaction size limit",
    ),
    (
        applier_errors.UnsuitableTarget(
            target="postgresql:shop", problem="no table orders", expected="the source's tables"
        ),
        "target postgresql:shop: no table orders; expected the source's tables",
    ),
    (
        errors.WriteSetTooLarge(items=11, items_max=10),
        "write set of 11 items, the limit is 10: "
        "split the transaction, or raise the group's write set limit",
    ),
    (
        errors.DiskFull(path="/data", cause="WAL write"),
        "no space left at /data (WAL write): free some, the member then goes on",
    ),
    (
        errors.LogServerTooOld(version="2.9.10", version_min="2.12.3"),
        "log server has version 2.9.10, the oldest that serves is 2.12.3: upgrade it",
    ),
    (
        errors.LogServerUnavailable(address="127.0.0.1:4222", cause="refused"),
        "log server at 127.0.0.1:4222 does not answer (refused): start it, or correct the address",
    ),
    (
        errors.NotServing(member="m1", state="RECOVERING"),
        "member m1 is RECOVERING, not ONLINE: wait until it is, or ask another member",
    ),
    (
        errors.PortTaken(address="127.0.0.1:7101"),
        "address 127.0.0.1:7101 is in use: stop its user, or choose another port",
    ),
    (
        errors.Overloaded(waiting=65_536, waiting_max=65_536),
        "65536 transactions wait for the log, the limit is 65536: "
        "try again in a moment, or ask another member",
    ),
    (
        errors.SnapshotExpired(snapshot_id=3, lease_ms=60_000),
        "snapshot 3 is not open, or was not used for 60000 ms: begin the transaction again",
    ),
    (
        errors.TooManyKeys(keys=20_000, keys_max=10_000),
        "20000 keys in one call, the limit is 10000: ask for them in several calls",
    ),
    (
        errors.UploadExpired(lease_ms=60_000),
        "no part of a large commit came for 60000 ms, nothing of it is kept: "
        "send it again from the start",
    ),
    (
        applier_errors.TransientFailure(kind="deadlock", text="40P01"),
        "deadlock at the target (40P01): try again",
    ),
    (
        applier_errors.ApplyFailed(worker=3, gtid="u:7", cause="no table orders", gaps="u:8-9"),
        "worker 3 failed at u:7: no table orders; mend the cause and start the replica again"
        "; executed beyond it: u:8-9 (a restart fills the gaps)",
    ),
    (
        applier_errors.ApplyFailed(worker=0, gtid="", cause="disk full", gaps=""),
        "worker 0 failed at a view change: disk full; mend the cause and start the replica again",
    ),
    (
        errors.DigestMismatch(position=5, mine="aa", theirs="bb", member="m2"),
        "digest at position 5 is aa here and bb at member m2: "
        "find out which one is wrong, and let it rejoin with an empty folder",
    ),
    (
        errors.ForeignDataFolder(path="/data", found="group a", expected="group b"),
        "data folder /data belongs to group a, expected group b: name its owner, or another folder",
    ),
    (
        errors.ForeignLog(expected="a", found="b"),
        "log has identity b, expected a: "
        "point the member at its own log, or let it rejoin with an empty folder",
    ),
    (
        errors.GtidsExhausted(source="u", number_max=9),
        "every GTID of u up to 9 is used: give the group a new UUID",
    ),
    (
        errors.LogGap(expected=5, found=8),
        "log goes on at position 8, expected 5: "
        "restore the log, or let the member rejoin with an empty folder",
    ),
    (
        applier_errors.PurgedAtSource(source="m1", missing="u:1-4"),
        "source m1 has purged 'u:1-4', which the replica needs: "
        "follow a member that has it, or start from a newer copy of the data",
    ),
    (
        applier_errors.ReplicaAhead(source="m1", extra="u:9"),
        "replica has 'u:9', which source m1 has not: "
        "follow the group that they come from, or wait until the source has caught up",
    ),
    (
        errors.UnsupportedFormat(what="the store", found="3", supported="1 to 2"),
        "the store has format 3, this release reads 1 to 2: run a release that reads it",
    ),
    (
        errors.CorruptRecord(position=4, problem="truncated"),
        "record at position 4 is corrupt (truncated): "
        "restore the log from a server that has it whole",
    ),
    (
        errors.CorruptStore(path="/data", problem="no position"),
        "store at /data is corrupt (no position): move the folder away and let the member rejoin",
    ),
    (
        recovery_errors.CopyExpired(copy_id="ab", lease_seconds=60),
        "copy 'ab' is not open, or was not read for 60 s: open another one",
    ),
    (
        recovery_errors.LogTooLong(messages=9, messages_max=5),
        "log has 9 messages that this member lacks, it reads 5 at most where it has a donor: "
        "let it copy the donor's state, or raise recovery_log_messages_max",
    ),
    (
        recovery_errors.LogTrimmed(expected=3, first=8),
        "log begins at position 8, this member needs 3: "
        "set seeds to addresses of members that it can copy, or restore a backup",
    ),
    (
        recovery_errors.NoDonor(asked="a:1", cause="a:1 is UNREACHABLE"),
        "no donor among a:1 (a:1 is UNREACHABLE): "
        "start one of them, set seeds to members that are ONLINE, or restore a backup",
    ),
    (
        recovery_errors.TooManyCopies(open=2, open_max=2),
        "2 copies are open, the limit is 2: ask another member, or try again when one is done",
    ),
    (
        recovery_errors.ExtraTransactions(member="m3", lacking="donor m1", extra="u:7"),
        "member m3 has executed 'u:7', which donor m1 has not: save what you need of them, "
        "then `groupcert group rejoin --discard-state`",
    ),
    (
        recovery_errors.LogCutShort(last_sequence=9, member="m2", log_sequence=12),
        "the log ends at 9, before what member m2 has read, 12: restore the disk of the log's "
        "server, or, to go on without what is lost, save what only m2 has and "
        "`groupcert group rejoin --discard-state` there; then `groupcert group rejoin --unfence` "
        "where a member is fenced",
    ),
    (
        recovery_errors.CorruptCopy(path="/backup", problem="file a is missing"),
        "copy /backup is corrupt (file a is missing): take another one",
    ),
)


def leaves(root: type[GroupcertError] = GroupcertError) -> Iterator[type[GroupcertError]]:
    """Yield the classes that are raised."""
    for child in root.__subclasses__():
        if child.__subclasses__():
            yield from leaves(child)
        else:
            yield child


def test_reasons_are_unique_and_none_was_renamed() -> None:
    assert sorted(leaf.reason for leaf in leaves()) == [
        "ALREADY_BOOTSTRAPPED",
        "APPLY_FAILED",
        "AUDIT_NOT_INSTALLED",
        "CALL_NOT_ALLOWED",
        "CHANGED_MEANWHILE",
        "COPY_EXPIRED",
        "CORRUPT_COPY",
        "CORRUPT_RECORD",
        "CORRUPT_STORE",
        "DIGEST_MISMATCH",
        "DISK_FULL",
        "DOMAIN_NOT_ALLOWED",
        "EXTRA_TRANSACTIONS",
        "FOREIGN_DATA_FOLDER",
        "FOREIGN_LOG",
        "FOREIGN_OUTPUT",
        "GROUP_MISSING",
        "GTIDS_EXHAUSTED",
        "INVALID_BINARY_LOG",
        "INVALID_GTID",
        "INVALID_GTID_SET",
        "INVALID_MESSAGE",
        "INVALID_SETTING",
        "INVALID_TRACE",
        "INVALID_WRITE_SET",
        "LOG_CUT_SHORT",
        "LOG_GAP",
        "LOG_REWRITTEN",
        "LOG_SERVER_TOO_OLD",
        "LOG_SERVER_UNAVAILABLE",
        "LOG_TOO_LONG",
        "LOG_TRIMMED",
        "MEMBER_NOT_ALLOWED",
        "NAME_TAKEN",
        "NOT_AUTHENTICATED",
        "NOT_PRIMARY",
        "NOT_SERVING",
        "NO_DONOR",
        "NO_SUITABLE_JAVA",
        "OUT_OF_GROUP",
        "OVERLOADED",
        "PORT_TAKEN",
        "PURGED_AT_SOURCE",
        "REPLICA_AHEAD",
        "REQUEST_INCOMPLETE",
        "SESSION_ENDED",
        "SNAPSHOT_EXPIRED",
        "SPARK_FAILED",
        "STILL_FENCED",
        "TLS_REFUSED",
        "TOO_MANY_CALLS",
        "TOO_MANY_COPIES",
        "TOO_MANY_KEYS",
        "TOO_MANY_SNAPSHOTS",
        "TRANSACTION_TOO_LARGE",
        "TRANSIENT_FAILURE",
        "UNREADABLE_LOG",
        "UNREADABLE_MESSAGE",
        "UNSUITABLE_TARGET",
        "UNSUPPORTED_FORMAT",
        "UPLOAD_EXPIRED",
        "WRITE_SET_TOO_LARGE",
    ]


def test_each_error_belongs_to_one_who_must_act() -> None:
    for leaf in leaves():
        assert len([category for category in CATEGORIES if issubclass(leaf, category)]) == 1, leaf


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn = [
        line.split()
        for module in (
            errors,
            applier_errors,
            audit_errors,
            call_errors,
            membership_errors,
            recovery_errors,
            security_errors,
        )
        for line in (module.__doc__ or "").splitlines()
        if "── " in line
    ]
    named = {words[-2]: words[-1] for words in drawn if words[-1].isupper()}
    assert named == {leaf.__name__: leaf.reason for leaf in leaves()}


@pytest.mark.parametrize(("error", "message"), EXAMPLES)
def test_message_names_values_limit_and_next_step(error: GroupcertError, message: str) -> None:
    assert str(error) == message


def test_every_error_has_an_example() -> None:
    assert {type(error) for error, _ in EXAMPLES} == set(leaves())


def test_long_text_is_shortened_in_messages_and_kept_in_the_field() -> None:
    error = errors.InvalidGtid(text="x" * 1_000, expected="a UUID")
    assert str(error) == f"invalid GTID '{'x' * 80}'… (1000 characters): expected a UUID"
    assert error.text == "x" * 1_000
