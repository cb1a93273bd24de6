-- What the member calls when the server falls out of its group, and when it is back; what makes it
-- fall out when there is no member any more, and what lets one in.

-- Returns the value that this database sets for new sessions; NULL: it sets none.
CREATE FUNCTION groupcert.default_of(name text) RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT split_part(setting, '=', 2) FROM pg_db_role_setting, unnest(setconfig) setting
    WHERE setrole = 0 AND split_part(setting, '=', 1) = name
      AND setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
$$;

CREATE FUNCTION groupcert.set_default(name text, value text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format(CASE WHEN value IS NULL THEN 'ALTER DATABASE %I RESET %I'
                   ELSE 'ALTER DATABASE %I SET %I TO %L' END, current_database(), name, value);
END $$;

-- Has the server be read-only, and returns the reason that it gives. `keeps_reason`: one that it
-- gives already, of an earlier member perhaps, tells more.
CREATE FUNCTION groupcert.leave_group(why text, keeps_reason boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reason text;
BEGIN
    -- The lock comes first: what the database sets by now may be what another has just set it to.
    SELECT out_of_group INTO reason FROM groupcert.settings FOR UPDATE;
    IF reason = why OR keeps_reason AND reason IS NOT NULL THEN
        RETURN reason;
    ELSIF reason IS NULL THEN
        UPDATE groupcert.settings SET
            read_only_before = groupcert.default_of('default_transaction_read_only'),
            read_only_from = coalesce(read_only_from, clock_timestamp());
    END IF;
    UPDATE groupcert.settings SET out_of_group = why;
    PERFORM groupcert.set_default('default_transaction_read_only', 'on');
    RETURN why;
END $$;

-- Has the server take writes as before; called again, ends sessions that began while it did not,
-- once they are idle: they would stay read-only for as long as an application's pool keeps them.
CREATE FUNCTION groupcert.enter_group() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before text;
BEGIN
    UPDATE groupcert.settings SET out_of_group = NULL, read_only_until = clock_timestamp()
    WHERE out_of_group IS NOT NULL RETURNING read_only_before INTO before;
    IF FOUND THEN
        PERFORM groupcert.set_default('default_transaction_read_only', before);
        RETURN;  -- New sessions begin as before once this is committed.
    END IF;
    UPDATE groupcert.settings SET read_only_from = NULL
    WHERE read_only_from IS NOT NULL AND 0 = (
        SELECT count(*) FILTER (WHERE state <> 'idle' OR NOT pg_terminate_backend(pid))
        FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend'
          AND backend_start BETWEEN read_only_from AND read_only_until
          AND application_name NOT LIKE 'groupcert %');
END $$;

-- Has the server leave its group when its member has died, or has not touched the file that it locks
-- for so many seconds: then it returns. The member calls it in a session of its own, whose backend goes
-- on when the member is gone. It has no snapshot for longer than it sleeps.
CREATE PROCEDURE groupcert.watch_member(silent_seconds double precision) LANGUAGE plpython3u AS $$
import fcntl
import os
import time

leave = plpy.prepare(
    "SELECT groupcert.leave_group($1) FROM groupcert.settings WHERE out_of_group IS NULL", ["text"]
)
path = plpy.execute("SELECT socket_path FROM groupcert.settings")[0]["socket_path"]
touched, since, why = None, time.monotonic(), None
with open(path + ".lock", "rb") as lock:
    while why is None:
        plpy.commit()
        plpy.execute("SELECT pg_catalog.pg_sleep(0.25)")
        if os.fstat(lock.fileno()).st_mtime_ns != touched:
            touched, since = os.fstat(lock.fileno()).st_mtime_ns, time.monotonic()
        elif time.monotonic() - since > silent_seconds:
            why = f"its member stands still, for {silent_seconds:.0f} s by now"
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            why = "its member has died"
        except BlockingIOError:
            pass
leave.execute([why])
$$;

-- Ends sessions, those that have been idle for longest, until so many more may connect beside those
-- that are reserved to superusers; returns whose they were.
CREATE FUNCTION groupcert.make_room(sessions int) RETURNS TABLE (pid int, client text)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT idle.pid, format('%s (%s)', usename, application_name) FROM (
        SELECT * FROM pg_stat_activity
        WHERE state = 'idle' AND application_name NOT LIKE 'groupcert %'
        ORDER BY state_change LIMIT (
            SELECT greatest(0, count(*) + sessions - current_setting('max_connections')::int
                + current_setting('superuser_reserved_connections')::int)
            FROM pg_stat_activity WHERE backend_type = 'client backend')
    ) idle WHERE pg_terminate_backend(idle.pid, 5000)
$$;
