-- What `groupcert postgresql attach` installs, beside two triggers for each attached table.
--
-- A commit of the server goes through here in three steps, all at COMMIT:
--   1. each changed row fires `note`, a deferred trigger: rows of savepoints that were rolled back
--      fire none;
--   2. the first of them takes an advisory lock, by which others see that the transaction is at its
--      COMMIT, and when that has ended; and it puts a row into `groupcert.commits`, whose own deferred trigger therefore
--      fires behind all of them, and behind every deferred foreign key;
--   3. `decide` hands the rows to the companion and waits for the verdict and the turn.

CREATE SCHEMA groupcert;
REVOKE ALL ON SCHEMA groupcert FROM PUBLIC;

-- One row: how the triggers reach the companion, and what `detach` has to undo.
CREATE TABLE groupcert.settings (
    socket_path text NOT NULL,
    token text NOT NULL,
    created_language boolean NOT NULL,
    isolation_before text,
    sets_isolation boolean NOT NULL,
    patterns text[] NOT NULL,
    -- Of which database: place.sql tells a copy of it by them.
    system_identifier bigint NOT NULL,
    database_oid oid NOT NULL,
    data_directory text NOT NULL,
    sequence_offset bigint,
    sequence_increment bigint,
    -- Why the server is out of its group, and what standing.sql notes meanwhile.
    out_of_group text,
    read_only_before text,
    read_only_from timestamptz,
    read_only_until timestamptz
);

-- Sequences that give this server's own numbers, and the steps that they had before.
CREATE TABLE groupcert.sequences (sequence regclass PRIMARY KEY, step bigint NOT NULL);

-- What is executed here: each commit inserts its GTID, the companion folds them into one set. The
-- largest version is never folded away: a snapshot's version is max(version).
CREATE TABLE groupcert.executed (
    version bigint PRIMARY KEY,
    source text NOT NULL,
    number bigint NOT NULL
);
CREATE TABLE groupcert.executed_set (gtid_set text NOT NULL);
INSERT INTO groupcert.executed_set VALUES ('');

CREATE UNLOGGED TABLE groupcert.commits (transaction_id text);

-- Notes a row at COMMIT. The arguments are the columns of its keys: of the row before no other is
-- needed. What is noted is of one transaction; an earlier one may have failed at its COMMIT.
CREATE FUNCTION groupcert.note() RETURNS trigger
LANGUAGE plpython3u SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres'
SET timezone = 'UTC' SET bytea_output = 'hex' AS $$
plans = SD.get("plans")
if plans is None:
    plans = SD["plans"] = {
        "id": plpy.prepare("SELECT pg_current_xact_id()::text AS id"),
        "begin": plpy.prepare(
            "INSERT INTO groupcert.commits VALUES (pg_current_xact_id()::text)"
            " RETURNING transaction_id AS id, pg_advisory_xact_lock(1735156336,"
            " (transaction_id::bigint & 2147483647)::int), pg_backend_pid() AS pid,"
            " current_setting('transaction_isolation') AS isolation,"
            " coalesce((SELECT max(version) FROM groupcert.executed), 0) AS version,"
            r" current_query() ~* '^\s*(set\s+constraints|prepare\s+transaction)' AS is_early,"
            " set_config('synchronous_commit', 'off', true),"
            " set_config('lock_timeout', '0', true)"
        ),
    }
noted = GD.get("groupcert_noted")
try:
    is_known = noted is not None and not noted["is_decided"]
    if not is_known or noted["state"]["id"] != plans["id"].execute()[0]["id"]:
        GD["groupcert_noted"] = None  # `decide` must not begin before this ends.
        state = plans["begin"].execute()[0]
        if noted is None or noted["state"]["id"] != state["id"]:
            noted = {"state": state, "rows": [], "is_decided": False}
        GD["groupcert_noted"] = noted
except plpy.spiexceptions.QueryCanceled:
    plpy.error(
        "could not serialize access: the transaction was cancelled at its COMMIT",
        sqlstate="40001",
        detail="A transaction that another server committed first needs its rows.",
        hint="Run the transaction again.",
    )
if noted["is_decided"]:
    plpy.error(
        "a row was changed after the group had certified the transaction",
        sqlstate="0A000",
        hint="A deferred trigger that changes rows cannot run on a server of a group.",
    )
before = TD["old"]
if before is not None:
    before = {column: before[column] for column in TD["args"]}
noted["rows"].append([TD["table_schema"] + "." + TD["table_name"], before, TD["new"]])
$$;

-- Returns NULL once the transaction may commit, else SQLSTATE, message, DETAIL and HINT. The row of
-- `executed` is written before it waits for its turn: whoever is next waits for as little as may be.
CREATE FUNCTION groupcert.decide() RETURNS text[]
LANGUAGE plpython3u AS $$
import json
import socket
import struct

UNKNOWN = [
    "08007",
    "it is not known whether the group has certified the transaction",
    None,
    "If it has, its rows appear here: look for them before you run it again.",
]
UNREACHABLE = "25006"
CANCELLED = [
    "40001",
    "could not serialize access: the transaction was cancelled at its COMMIT",
    "A transaction that another server committed first needs its rows.",
    "Run the transaction again.",
]
EARLY = [
    "0A000",
    "a server of a group certifies at COMMIT alone",
    "SET CONSTRAINTS ... IMMEDIATE and PREPARE TRANSACTION would have others wait for it.",
    "Commit without it.",
]
noted = GD["groupcert_noted"]
if noted is None:
    return EARLY
noted["is_decided"] = True
state = noted["state"]
if state["isolation"] != "repeatable read":
    return [
        "0A000",
        "a server of a group takes no transactions in " + state["isolation"].upper(),
        "The group compares a transaction with what others committed after its snapshot; READ"
        " COMMITTED has no one snapshot, and SERIALIZABLE would need what it read.",
        "SET default_transaction_isolation TO 'repeatable read', or ALTER ROLE or ALTER DATABASE"
        " with it; and run the transaction again after SQLSTATE 40001.",
    ]
if state["is_early"]:
    return EARLY


def prepare_plans():
    SD["plans"] = {
        "settings": plpy.prepare(
            "SELECT socket_path, token, out_of_group, groupcert.copied() AS copied"
            " FROM groupcert.settings"
        ),
        "interrupts": plpy.prepare("SELECT 1"),
        "execute": plpy.prepare(
            "INSERT INTO groupcert.executed VALUES ($1, $2, $3)", ["bigint", "text", "bigint"]
        ),
        "wait": plpy.prepare(
            "SELECT pg_advisory_xact_lock_shared(1735156336,"
            " ($1::bigint & 2147483647)::int), pg_xact_status($1::xid8) AS status",
            ["text"],
        ),
    }
    return SD["plans"]


def open_connection():
    import os

    settings = plans["settings"].execute()[0]
    if settings["copied"]:
        raise PermissionError(settings["copied"])
    path = settings["socket_path"]
    connection = socket.socket(socket.AF_UNIX)
    for timeout in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, timeout, struct.pack("ll", 0, 250_000))
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:  # The path of a socket has 107 bytes at most, and a data directory may lie deep.
        connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("3i", credentials)
    if uid not in (0, os.geteuid()):
        raise PermissionError(f"who listens at {path} has uid {uid}, and is no companion")
    prove(connection, settings["token"], path)
    GD["groupcert_connection"] = connection
    return connection


def prove(connection, token, path):
    # As handshake.py: the token is never sent, and no row is before the companion has proved it.
    import hmac
    import os

    def proof_of(side):
        body = json.dumps([side, nonce, answer["nonce"]]).encode()
        return hmac.digest(token.encode(), body, "sha256").hex()

    nonce = os.urandom(16).hex()
    send(connection, {"nonce": nonce})
    try:
        answer = receive(connection)
        proof = str(answer["proof"]).encode()
        is_companion = hmac.compare_digest(proof, proof_of("companion").encode())
    except (ValueError, LookupError, TypeError):
        is_companion = False
    if not is_companion:
        raise PermissionError(f"who listens at {path} cannot prove that it is the companion")
    send(connection, {"proof": proof_of("asker")})


def send(connection, message):
    body = json.dumps(
        message, default=lambda value: "\\x" + value.hex() if type(value) is bytes else str(value)
    ).encode()
    data = memoryview(struct.pack(">I", len(body)) + body)
    while data:
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            plans["interrupts"].execute()


def receive(connection):
    while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
        try:
            part = connection.recv(65_536)
        except BlockingIOError:
            plans["interrupts"].execute()
            continue
        if not part:
            raise OSError("the companion has ended")
        received.extend(part)
    size = 4 + int.from_bytes(received[:4], "big")
    answer = json.loads(received[4:size])
    del received[:size]
    return answer


received = bytearray()
request = {
    "transaction_id": state["id"],
    "pid": state["pid"],
    "version": state["version"],
    "rows": noted["rows"],
}
try:
    plans = SD.get("plans") or prepare_plans()
    connection = GD.get("groupcert_connection")
    if connection is None:
        connection = open_connection()
    else:
        try:
            send(connection, request)
            request = None
        except OSError:
            connection.close()
            connection = open_connection()
    if request is not None:
        send(connection, request)
except plpy.SPIError as error:  # The request is not whole, so the companion drops it.
    if connection := GD.pop("groupcert_connection", None):
        connection.close()
    if not isinstance(error, plpy.spiexceptions.QueryCanceled):
        raise
    return CANCELLED
except OSError as error:
    GD.pop("groupcert_connection", None)
    settings = plans["settings"].execute()[0]
    reason = settings["out_of_group"] or "its companion does not answer"
    hint = "Start: groupcert postgresql --dsn ... --member ..."
    if settings["copied"]:
        reason = "its database is a copy of an attached one"
        hint = (
            "Make it a database like others: groupcert postgresql detach --dsn ...; if it is the"
            " attached one, and was moved: groupcert postgresql attach again."
        )
    return [UNREACHABLE, "this server is read-only: " + reason, str(error), hint]
is_executed = False
try:
    while True:
        answer = receive(connection)
        if "error" in answer:
            return answer["error"]
        if not is_executed:
            plans["execute"].execute([answer["version"], answer["source"], answer["number"]])
            is_executed = True
        if answer["after"]:
            if plans["wait"].execute([answer["after"]])[0]["status"] != "committed":
                continue  # The companion executes it, then answers again.
        return None
except (OSError, plpy.SPIError) as error:
    GD.pop("groupcert_connection", None)
    connection.close()
    UNKNOWN[2] = str(error)
    return UNKNOWN
$$;

-- Returns when a transaction that takes its turn has ended; raises unless it has committed.
CREATE FUNCTION groupcert.wait_for(transaction_id text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1735156336, (transaction_id::bigint & 2147483647)::int);
    IF pg_xact_status(transaction_id::xid8) <> 'committed' THEN
        RAISE EXCEPTION USING ERRCODE = '40000',
            MESSAGE = format('transaction %s has not committed', transaction_id);
    END IF;
END $$;

CREATE FUNCTION groupcert.commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    failure text[] := groupcert.decide();
BEGIN
    IF failure IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = failure[1], MESSAGE = failure[2],
            DETAIL = coalesce(failure[3], ''), HINT = coalesce(failure[4], '');
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER groupcert_commit AFTER INSERT ON groupcert.commits
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION groupcert.commit();

CREATE FUNCTION groupcert.refuse_truncate() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = format('TRUNCATE of %I.%I is refused on a server of a group',
            TG_TABLE_SCHEMA, TG_TABLE_NAME),
        DETAIL = 'It has no rows that the group could compare.',
        HINT = 'Use DELETE, in parts if the table is large.';
END $$;

-- Has a backend go on that somebody has stopped: what else it was told waits until then.
CREATE FUNCTION groupcert.continue_backend(pid int) RETURNS void
LANGUAGE plpython3u SET search_path = pg_catalog, pg_temp AS $$
import os
import signal
from contextlib import suppress

with suppress(ProcessLookupError):
    os.kill(pid, signal.SIGCONT)
$$;
