-- What any client may call: it waits until this server has executed what it must see, then reads.
--
-- A server executes a moment later what others have committed, so that who writes at one server and
-- reads at another may miss it. A transaction that has its snapshot sees nothing newer, whatever it
-- waits for: hence procedures, called before BEGIN, which have no snapshot while they wait.
--
-- They commit, so they cannot be SECURITY DEFINER, nor have settings of their own: names are whole.

CREATE SCHEMA groupcert_client;
GRANT USAGE ON SCHEMA groupcert_client TO PUBLIC;

-- Returns the newest version that this transaction sees, with all before it. After a COMMIT it is a
-- token: whoever waits for it at another server sees what was committed.
CREATE FUNCTION groupcert_client.executed_version() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(max(version), 0) FROM groupcert.executed
$$;

-- Returns once this server has executed a version and all before it; NULL: all that the group had
-- certified when it was called. `timeout_ms`: 0 is no limit but statement_timeout.
CREATE PROCEDURE groupcert_client.wait_for_executed(
    version bigint DEFAULT NULL, timeout_ms integer DEFAULT 10000
) LANGUAGE plpgsql AS $$
DECLARE
    failure pg_catalog.text[];
BEGIN
    CALL groupcert_client.wait_for_member(version, timeout_ms, failure);
    IF failure IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = failure[1], MESSAGE = failure[2],
            DETAIL = coalesce(failure[3], ''), HINT = coalesce(failure[4], '');
    END IF;
END $$;

-- The same; `failure` is SQLSTATE, message, DETAIL and HINT where it fails.
CREATE PROCEDURE groupcert_client.wait_for_member(
    version bigint, timeout_ms integer, INOUT failure text[]
) LANGUAGE plpython3u AS $$
import select
import time
from math import inf

INTERRUPTS_MS = 250
IN_BLOCK = [
    "25001",
    "groupcert_client.wait_for_executed cannot run inside a transaction block",
    "The transaction may have its snapshot, which sees nothing that is executed later.",
    "Call it before BEGIN, in autocommit, as a statement of its own.",
]
HINT = "Try again later, or at another server."


def first(query):
    """Returns the only value of a query, and lets go of its snapshot."""
    (value,) = plpy.execute(query)[0].values()
    plpy.commit()
    return value


def executed():
    return first("SELECT groupcert_client.executed_version()")


def late(sqlstate, message):
    goal = "all that the group had certified" if version is None else f"version {version}"
    detail = f"It waits for {goal}; the newest version that is executed here is {executed()}."
    return [sqlstate, message, detail, HINT]


def answer_of(connection, deadline):
    """Returns what the member says, None if it is late."""
    answers = select.poll()
    answers.register(connection.socket, select.POLLIN)
    while (left_ms := 1_000 * (deadline - time.monotonic())) > 0:
        if answers.poll(min(left_ms, INTERRUPTS_MS)):
            return connection.receive()
        first("SELECT 1")  # Looks for interrupts.
    return None


def wait():
    """Returns None once it is executed, else why it is not."""
    deadline = time.monotonic() + (timeout_ms / 1_000 or inf)
    while version is None or executed() < version:
        asked = "NULL" if version is None else version
        if refused := first(f"SELECT groupcert_client.ask_member({asked})"):
            return refused
        try:
            answer = answer_of(GD["groupcert_waits"], deadline)
        except OSError:
            continue  # The member has ended; perhaps there is another one.
        if answer is None:
            return late("57014", f"this server is behind for longer than {timeout_ms} ms")
        GD["groupcert_idle"] = GD.pop("groupcert_waits")
        return answer[1:].split("\0") if answer.startswith("!") else None
    return None


if timeout_ms is None or timeout_ms < 0:
    text = f"timeout_ms is {timeout_ms}, and has to be 0 or more"
    return (["22023", text, None, "Give milliseconds; 0: as long as statement_timeout allows."],)
try:
    # Whoever has called it in DO would find that committed.
    if plpy.execute("SELECT pg_catalog.pg_current_xact_id_if_assigned()")[0].popitem()[1]:
        return (IN_BLOCK,)
    plpy.commit()
except plpy.spiexceptions.InvalidTransactionTermination:
    return (IN_BLOCK,)
try:
    return (wait(),)
except plpy.spiexceptions.QueryCanceled as error:
    return (late("57014", str(error)),)
finally:
    if connection := GD.pop("groupcert_waits", None):
        connection.socket.close()
$$;

-- Asks the member when a version is executed here, by a connection of its own: this may be called in
-- the midst of a COMMIT, by what a table's owner has there. Returns NULL, or why nobody answers.
CREATE FUNCTION groupcert_client.ask_member(version bigint) RETURNS text[]
LANGUAGE plpython3u SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
if "groupcert_member" not in GD:
    plpy.execute("SELECT groupcert.decide(NULL, NULL, NULL, NULL, NULL)")  # It prepares.
Connection, unreachable = GD["groupcert_member"]


def connect():
    own = GD.get("groupcert_connection")  # That of `decide`, in whose place the new one is put.
    connection = Connection()
    GD["groupcert_connection"] = own
    return connection


question = "wait" if version is None else f"wait\0{version}"
try:
    connection = GD.pop("groupcert_idle", None) or connect()
    try:
        connection.send(question)
    except OSError:
        connection.socket.close()
        connection = connect()
        connection.send(question)
except OSError as error:
    return unreachable(error)
GD["groupcert_waits"] = connection
$$;

GRANT EXECUTE ON ALL ROUTINES IN SCHEMA groupcert_client TO PUBLIC;
