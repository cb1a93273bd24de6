-- What `groupcert postgresql attach` installs, beside the functions and triggers of each table
-- (functions.py).
--
-- A commit of the server goes through here in three steps:
--   1. each statement that changes rows notes their keys in `groupcert.notes`;
--   2. at COMMIT the deferred trigger of these notes comes behind every deferred foreign key;
--   3. `decide` reads the rows, hands them to the member and waits for the verdict and the turn.

CREATE SCHEMA groupcert;
REVOKE ALL ON SCHEMA groupcert FROM PUBLIC;

-- One row: how the triggers reach the member, and what `detach` has to undo.
CREATE TABLE groupcert.settings (
    socket_path text NOT NULL,
    token text NOT NULL,
    created_language boolean NOT NULL,
    isolation_before text,
    sets_isolation boolean NOT NULL,
    patterns text[] NOT NULL,
    -- What is done where a table is made that matches a pattern: `warn` or `refuse`.
    new_tables text NOT NULL DEFAULT 'warn',
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

-- What is executed here: each commit inserts its GTID, the member folds them into one set. The
-- largest version is never folded away: a snapshot's version is max(version). `position`: in the
-- total order, as `certifier/position.py` says.
CREATE TABLE groupcert.executed (
    version bigint PRIMARY KEY,
    source text NOT NULL,
    number bigint NOT NULL,
    position bigint NOT NULL
);

-- The first transaction that could not be executed here, and its rows; `skip` leaves it out.
CREATE TABLE groupcert.stopped (
    gtid text PRIMARY KEY,
    version bigint NOT NULL,
    position bigint NOT NULL,
    rows jsonb NOT NULL
);
CREATE TABLE groupcert.executed_set (gtid_set text NOT NULL);
INSERT INTO groupcert.executed_set VALUES ('');

-- Transactions of others that an operator has left out here, with the rows that they would have
-- left; `verified_at`: since when the server is known to have the others' rows nevertheless.
CREATE TABLE groupcert.skipped (
    gtid text PRIMARY KEY,
    version bigint NOT NULL,
    reason text NOT NULL,
    rows jsonb NOT NULL,
    skipped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    verified_at timestamptz
);

-- What a transaction has changed: of each statement the keys of its rows, before and after, as JSON,
-- with the function that finds the rows. It lives and dies with the savepoint of the statement. A
-- row with a number in the place of these is a seal: see `decide`.
CREATE UNLOGGED TABLE groupcert.notes (
    transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
    relation text,
    before json,
    after json,
    seal bigint
);
CREATE INDEX ON groupcert.notes (transaction_id) WHERE seal IS NOT NULL;

-- Transactions at their COMMIT. One that has committed stays until the member folds it away.
CREATE UNLOGGED TABLE groupcert.ends (transaction_id xid8 PRIMARY KEY);

-- Returns NULL once the transaction may commit, or while there is more to come; else SQLSTATE,
-- message, DETAIL and HINT.
--
-- It is called for each row of `notes`, at COMMIT. The first one adds a seal, which comes behind all
-- that waits for COMMIT by then, deferred foreign keys too. If the seal's own call finds that more
-- was noted, it adds another one; else it asks the member.
--
-- SET CONSTRAINTS ALL IMMEDIATE has it called before COMMIT. Then the call of a seal comes while it
-- is being inserted: the notes have to wait for COMMIT again. A second seal is the barrier: its call
-- comes when constraints are checked next, and until then no other call counts. What is remembered
-- here may belong to a savepoint that is gone: a seal counts if its row is there.
CREATE FUNCTION groupcert.decide(
    transaction_id text, relation text, before json, after json, seal bigint
) RETURNS text[] LANGUAGE plpython3u AS $$
def prepare():
    """Returns `decide`, once for each session: a COMMIT calls it twice at least."""
    import os
    import struct

    # `socket`, `json`, `hmac` and `re` would double what a session's first COMMIT takes: 36 ms of
    # processor, not 19.
    import _socket as socket

    PART = 131_072  # Characters of rows in a frame, but for the last row's key.
    UNKNOWN = "08007", "it is not known whether the group has certified the transaction"
    LOOK = "If it has, its rows appear here: look for them before you run it again."
    UNREACHABLE = "25006"
    CANCELLED = [
        "40001",
        "could not serialize access: the transaction was cancelled at its COMMIT",
        "A transaction that another server committed first needs its rows.",
        "Run the transaction again.",
    ]
    PREPARED = [
        "0A000",
        "a server of a group certifies at COMMIT alone",
        "PREPARE TRANSACTION would have others wait for it.",
        "Commit without it.",
    ]
    LATE = [
        "0A000",
        "a row was changed after the group had certified the transaction",
        None,
        "A deferred trigger that changes rows cannot run on a server of a group.",
    ]
    CURSORS_TRIED = 20
    PIN = "SELECT 1 AS groupcert"
    # What SQL has between its words: comments, one below the other, and text in quotes.
    BETWEEN = (
        r"(?s)--[^\n]*|/\*(?:[^*/]|\*(?!/)|/(?!\*))*\*/"
        r"|[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$(\w*)\$.*?\$\1\$"
    )
    ADD_SEAL = plpy.prepare(
        "INSERT INTO groupcert.notes (seal) VALUES ($1) RETURNING ARRAY("
        "SELECT extract(epoch FROM creation_time) || ' ' || name FROM pg_cursors WHERE"
        " is_holdable AND creation_time >= now() AND name NOT LIKE 'groupcert %') AS cursors",
        ["bigint"],
    )
    DEFER = plpy.prepare("SET CONSTRAINTS groupcert.groupcert_commit DEFERRED")
    FIND_SEAL = plpy.prepare(
        "SELECT FROM groupcert.notes WHERE transaction_id = pg_current_xact_id() AND seal = $1",
        ["bigint"],
    )
    BEGIN = plpy.prepare(
        "INSERT INTO groupcert.ends VALUES (pg_current_xact_id())"
        " RETURNING current_setting('transaction_isolation') AS isolation,"
        " coalesce((SELECT max(version) FROM groupcert.executed), 0) AS version,"
        " current_query() AS query, set_config('synchronous_commit', 'off', true),"
        " set_config('lock_timeout', '0', true)"
    )
    NOTES = plpy.prepare(
        "SELECT relation, before, after FROM groupcert.notes"
        " WHERE transaction_id = pg_current_xact_id() AND relation IS NOT NULL"
    )
    SETTINGS = (
        "SELECT socket_path, token, out_of_group, groupcert.copied() AS copied"
        " FROM groupcert.settings"
    )
    SHA256 = plpy.prepare("SELECT sha256($1) AS digest", ["bytea"])
    INTERRUPTS = plpy.prepare("SELECT 1")
    EXECUTE = plpy.prepare(
        "INSERT INTO groupcert.executed VALUES ($1, $2, $3, $4)"
        " RETURNING groupcert.wait_for_end($5) AS status",
        ["bigint", "text", "bigint", "bigint", "xid8"],
    )
    WAIT = plpy.prepare("SELECT groupcert.wait_for_end($1) AS status", ["xid8"])
    MORE, CONTINUED, REFUSED = ">", "~", "!"  # What frames begin with, see backends.py.
    changes = {}  # The plans of tables' functions.

    class Noted:
        """What is known of a transaction by the calls for its notes and seals."""

        def __init__(self, transaction_id):
            self.id = transaction_id
            self.notes = []
            self.counted = self.seals = 0
            self.last = self.barrier = self.pin = self.own = None
            self.is_early = self.is_over = False
            self.cursors, self.computed = [], []

        def add_seal(self):
            """Adds a seal, and returns whether its call is to come."""
            self.seals += 1
            GD["groupcert_adds"] = True
            try:
                self.cursors = ADD_SEAL.execute([self.seals])[0]["cursors"]
                return GD["groupcert_adds"]
            finally:
                GD["groupcert_adds"] = False

        def is_last(self, seal):
            """Returns whether nothing is to come behind this call; else a seal's call is to come."""
            if seal is None or seal != self.barrier:
                if is_there(self.barrier):
                    return False
            self.barrier = None
            if self.last is None or seal != self.last:
                if is_there(self.last):
                    return False
                self.is_early |= self.last is not None
            elif self.counted == len(self.notes):
                return True
            self.counted = len(self.notes)
            if self.add_seal():
                self.last = self.seals
            else:
                DEFER.execute()
                self.add_seal()
                self.barrier, self.last, self.is_early = self.seals, None, True
            return False

        def computes_cursors(self):
            """Returns whether cursors WITH HOLD are computed before the group is asked: they may be
            slow, and others would wait for a transaction that has its turn.

            PostgreSQL computes them behind all that waits for COMMIT, then looks for what waits
            anew. So a cursor of ours among them adds a seal. Until it has, a cursor of plpy is
            open, with which no transaction commits and which no CLOSE ALL passes: where somebody
            closes ours, COMMIT fails. PostgreSQL must come to ours first; it takes them in the
            order of `pg_cursors`.
            """
            if self.pin is not None:
                return True
            if self.own:
                try:
                    plpy.execute(f'CLOSE "{self.own}"')
                except plpy.SPIError:
                    pass  # A client's function has closed it.
                self.own = None
            # Those of earlier transactions of the same statement, a DO that commits, are among them.
            known = GD.get("groupcert_computed", set()).intersection(self.cursors)
            GD["groupcert_computed"] = known.union(self.cursors)
            if known.issuperset(self.cursors):
                return False
            self.computed += [each for each in self.cursors if each not in known]
            for _ in range(CURSORS_TRIED):
                self.pin = plpy.cursor(PIN)
                name = f"groupcert {os.urandom(8).hex()}"
                plpy.execute(
                    f'DECLARE "{name}" NO SCROLL CURSOR WITH HOLD FOR'
                    f" SELECT groupcert.add_seal({self.seals + 1})"
                )
                self.own = name
                names = plpy.execute(
                    f"SELECT name FROM pg_cursors WHERE name = '{name}' OR statement = '{PIN}'"
                )
                if names[0]["name"] == name:
                    return True
                self.pin.close()
                self.pin = None
                plpy.execute(f'CLOSE "{name}"')
            return False

    class Connection:
        """The session's connection to the member; both have proved that they know the token."""

        def __init__(self):
            settings = plpy.execute(SETTINGS)[0]
            if settings["copied"]:
                raise PermissionError(settings["copied"])
            path = settings["socket_path"]
            self.received = bytearray()
            self.socket = socket.socket(socket.AF_UNIX)
            for timeout in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self.socket.setsockopt(socket.SOL_SOCKET, timeout, struct.pack("ll", 0, 250_000))
            folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
            try:  # The path of a socket has 107 bytes at most, and a data directory may lie deep.
                self.socket.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
            finally:
                os.close(folder)
            credentials = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            _, uid, _ = struct.unpack("3i", credentials)
            if uid not in (0, os.geteuid()):
                raise PermissionError(f"who listens at {path} has uid {uid}, and is no member")
            self.prove(settings["token"], path)
            GD["groupcert_connection"] = self

        def prove(self, token, path):
            # As handshake.py: the token is never sent, and no row is before the member's proof.
            def digest(pad, message):
                padded = bytes(byte ^ pad for byte in token.encode().ljust(64, b"\0"))
                return SHA256.execute([padded + message])[0]["digest"]

            def proof_of(side):  # RFC 2104
                body = f"{side} {nonce} {other}".encode()
                return digest(0x5C, digest(0x36, body)).hex()

            nonce = os.urandom(16).hex()
            self.send(nonce)
            other, _, proof = self.receive().partition(" ")
            if proof != proof_of("member"):
                raise PermissionError(f"who listens at {path} cannot prove that it is the member")
            self.send(proof_of("asker"))

        def send(self, text):
            body = text.encode()
            data = memoryview(struct.pack(">I", len(body)) + body)
            while data:
                try:
                    data = data[self.socket.send(data) :]
                except BlockingIOError:
                    INTERRUPTS.execute()

        def receive(self):
            received = self.received
            while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
                try:
                    part = self.socket.recv(65_536)
                except BlockingIOError:
                    INTERRUPTS.execute()
                    continue
                if not part:
                    raise OSError("the member has ended")
                received.extend(part)
            size = 4 + int.from_bytes(received[:4], "big")
            answer = received[4:size].decode(errors="replace")
            del received[:size]
            return answer

        def send_request(self, lines, head):
            """Sends lines in frames of some PART characters, the last one with the head."""
            frame, size = [], 0
            for line in lines:
                if len(line) > PART and line[0] == "+":
                    path, _, value = line.partition("\n")
                    start = 0
                    while len(value) - start > PART:
                        part = value[start : start + PART]
                        self.send("\0".join([CONTINUED, *frame, f"{path}\n{part}"]))
                        frame.clear()
                        start += PART
                        size = 0
                    line = f"{path}\n{value[start:]}"
                frame.append(line)
                size += len(line)
                if size > PART:
                    self.send("\0".join([MORE, *frame]))
                    frame.clear()
                    size = 0
            self.send("\0".join([head, *frame]))

        def close(self):
            GD.pop("groupcert_connection", None)
            self.socket.close()

    def is_there(number):
        return number is not None and FIND_SEAL.execute([number]).nrows() > 0

    def is_prepared(query):
        import re

        text = None
        while text != query:
            text, query = query, re.sub(BETWEEN, " ", query)
        return re.search(r"\bprepare\s+transaction\b", text, re.IGNORECASE) is not None

    def joined(parts):
        """Returns arrays of JSON as one, each as its text."""
        inner = [part.strip()[1:-1] for part in parts if part]
        return f"[{','.join(inner)}]" if inner else None

    def changes_plan(relation):
        changes[relation] = plpy.prepare(
            f"SELECT groupcert.{plpy.quote_ident(relation)}($1, $2) AS line", ["json", "json"]
        )
        return changes[relation]

    def changes_of(notes):
        """Returns lines: which tables were truncated, and what the functions of tables say of the
        rows as they are now.
        """
        lines, tables = [], {}
        for relation, *sides in notes:
            if relation.startswith("truncated "):
                lines.append(f"T{relation.removeprefix('truncated ')}")
                continue
            for known, side in zip(tables.setdefault(relation, ([], [])), sides):
                known.append(side)
        for relation, sides in tables.items():
            plan = changes.get(relation) or changes_plan(relation)
            found = plan.execute([joined(side) for side in sides])
            lines += [row["line"] for row in found]
        return lines

    def ask(noted):
        """Hands the rows to the member; returns the connection, or why the transaction fails."""
        state = BEGIN.execute()[0]
        if state["isolation"] != "repeatable read":
            return [
                "0A000",
                "a server of a group takes no transactions in " + state["isolation"].upper(),
                "The group compares a transaction with what others committed after its snapshot;"
                " READ COMMITTED has no one snapshot, and SERIALIZABLE would need what it read.",
                "SET default_transaction_isolation TO 'repeatable read', or ALTER ROLE or ALTER"
                " DATABASE with it; and run the transaction again after SQLSTATE 40001.",
            ]
        query = state["query"] or ""  # None: a statement of the extended protocol commits by itself.
        if "prepare" in query.lower() and is_prepared(query):
            return PREPARED
        notes = noted.notes
        if noted.is_early:
            notes = [tuple(note.values()) for note in NOTES.execute()]
        connection = GD.get("groupcert_connection") or Connection()
        try:
            lines = changes_of(notes)
        except plpy.SPIError:
            plpy.execute("SELECT groupcert.close_cursors()")
            raise
        head = f"{noted.id} {os.getpid()} {state['version']}"
        try:
            connection.send_request(lines, head)
        except OSError:
            connection.close()
            connection = Connection()
            connection.send_request(lines, head)
        return connection

    def unreachable(error):
        settings = plpy.execute(SETTINGS)[0]
        reason = settings["out_of_group"] or "its member does not answer"
        hint = "Start it: groupcert member, with the setting postgresql."
        if settings["copied"]:
            reason = "its database is a copy of an attached one"
            hint = (
                "Make it a database like others: groupcert postgresql detach --dsn ...; if it is"
                " the attached one, and was moved: groupcert postgresql attach again."
            )
        return [UNREACHABLE, "this server is read-only: " + reason, str(error), hint]

    GD["groupcert_member"] = Connection, unreachable  # For consistency.sql.

    def wait_for_turn(connection):
        """Returns None once the transaction may commit, else why it fails."""
        status = "not executed"
        while True:
            answer = connection.receive()
            if answer[0] == REFUSED:
                return answer[1:].split("\0")
            *place, after = answer.split(" ")
            after = after or None
            if status == "not executed":
                status = EXECUTE.execute([*place, after])[0]["status"]
            elif after:
                status = WAIT.execute([after])[0]["status"]
            if not after or status == "committed":
                return None
            # The member executes the one before, then answers again.

    def decide(transaction_id, relation, before, after, seal):
        if GD.get("groupcert_adds"):
            GD["groupcert_adds"] = False
            return None
        noted = GD.get("groupcert_noted")
        if noted is None or noted.id != transaction_id:
            noted = GD["groupcert_noted"] = Noted(transaction_id)
        if noted.is_over:
            return LATE if relation else None
        if relation:
            noted.notes.append((relation, before, after))
        try:
            if not noted.is_last(seal) or noted.computes_cursors():
                return None
        except plpy.spiexceptions.QueryCanceled:
            return CANCELLED
        noted.is_over = True
        try:
            connection = ask(noted)
        except plpy.spiexceptions.QueryCanceled:
            if connection := GD.get("groupcert_connection"):
                connection.close()  # The request is not whole, so the member drops it.
            return CANCELLED
        except OSError as error:
            GD.pop("groupcert_connection", None)
            return unreachable(error)
        if not isinstance(connection, Connection):
            return connection
        try:
            return wait_for_turn(connection)
        except (OSError, plpy.SPIError) as error:
            connection.close()
            return [*UNKNOWN, str(error), LOOK]

    return decide


decide = SD.get("decide")
if decide is None:
    decide = SD["decide"] = prepare()
if transaction_id is not None:  # Else it only prepares, for consistency.sql.
    return decide(transaction_id, relation, before, after, seal)
$$;

-- Returns how a transaction has ended, once it has: `committed` or `aborted`. Each has put its id
-- into `ends` at its COMMIT, which nobody else may: whoever puts the same there waits for its end.
CREATE FUNCTION groupcert.wait_for_end(id xid8) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_xact_status(id) = 'in progress' THEN
        BEGIN
            INSERT INTO groupcert.ends VALUES (id);
            RAISE unique_violation;  -- It has not committed: nothing of this may stay.
        EXCEPTION WHEN unique_violation THEN
            NULL;
        END;
    END IF;
    RETURN pg_xact_status(id);
END $$;

-- The same for rows of others, which are executed behind it; raises unless it has committed.
CREATE FUNCTION groupcert.wait_for(id xid8) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF groupcert.wait_for_end(id) <> 'committed' THEN
        RAISE EXCEPTION USING ERRCODE = '40000',
            MESSAGE = format('transaction %s has not committed', id);
    END IF;
END $$;

-- Returns whether a version is executed here; the member asks of such as are not folded yet.
CREATE FUNCTION groupcert.is_executed(of bigint) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM groupcert.executed WHERE version = of)
$$;

-- The backends at their COMMIT: they hold the lock of who has inserted into `ends`.
CREATE VIEW groupcert.at_commit AS
SELECT pid FROM pg_catalog.pg_locks
WHERE relation = 'groupcert.ends'::pg_catalog.regclass AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_catalog.pg_database
                  WHERE datname = pg_catalog.current_database());

-- Notes transactions of others that have been executed in this transaction, the last thing that it
-- does. What code of tables' owners has left in the session ends here: cursors, which would be read
-- at COMMIT with the session's rights, and settings.
CREATE FUNCTION groupcert.note_executed(
    versions bigint[], sources text[], numbers bigint[], positions bigint[]
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO groupcert.executed
    SELECT * FROM ROWS FROM (pg_catalog.unnest(versions), pg_catalog.unnest(sources),
        pg_catalog.unnest(numbers), pg_catalog.unnest(positions));
    EXECUTE 'CLOSE ALL';
    RESET ALL;
END $$;

CREATE FUNCTION groupcert.commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    failure text[] := groupcert.decide(
        NEW.transaction_id::text, NEW.relation, NEW.before, NEW.after, NEW.seal);
BEGIN
    IF failure IS NOT NULL THEN
        PERFORM groupcert.close_cursors();
        RAISE EXCEPTION USING ERRCODE = failure[1], MESSAGE = failure[2],
            DETAIL = coalesce(failure[3], ''), HINT = coalesce(failure[4], '');
    END IF;
    RETURN NULL;
END $$;

-- Adds a seal in the place of `decide`, when cursors WITH HOLD are computed. In a savepoint, where
-- somebody reads the cursor that calls it, the seal would not last.
CREATE FUNCTION groupcert.add_seal(number bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    inserter bigint;
BEGIN
    SET CONSTRAINTS groupcert.groupcert_commit DEFERRED;
    INSERT INTO groupcert.notes (seal) VALUES (number) RETURNING xmin::text INTO inserter;
    IF inserter <> pg_current_xact_id()::text::bigint & 4294967295 THEN
        RAISE invalid_cursor_state USING MESSAGE = 'a cursor of the group is read in a savepoint';
    END IF;
    PERFORM groupcert.note_seal(number);
END $$;

CREATE FUNCTION groupcert.note_seal(number bigint) RETURNS void
LANGUAGE plpython3u SET search_path = pg_catalog, pg_temp AS $$
noted = GD["groupcert_noted"]
noted.pin.close()
noted.pin, noted.seals, noted.last, noted.counted = None, number, number, -1
$$;

-- Closes the cursors WITH HOLD of a transaction that fails: PostgreSQL keeps what it has computed.
CREATE FUNCTION groupcert.close_cursors() RETURNS void
LANGUAGE plpython3u SET search_path = pg_catalog, pg_temp AS $$
from contextlib import suppress

for each in GD["groupcert_noted"].computed:
    with suppress(plpy.SPIError):
        plpy.execute(f"CLOSE {plpy.quote_ident(each.partition(' ')[2])}")
$$;

CREATE CONSTRAINT TRIGGER groupcert_commit AFTER INSERT ON groupcert.notes
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION groupcert.commit();

-- Has a backend go on that somebody has stopped: what else it was told waits until then.
CREATE FUNCTION groupcert.continue_backend(pid int) RETURNS void
LANGUAGE plpython3u SET search_path = pg_catalog, pg_temp AS $$
import os
import signal
from contextlib import suppress

with suppress(ProcessLookupError):
    os.kill(pid, signal.SIGCONT)
$$;
