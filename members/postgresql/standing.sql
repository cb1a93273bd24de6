-- What the member calls when the server falls out of its group, and when it is back.

CREATE FUNCTION groupcert.leave_group(why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE groupcert.settings SET read_only_before = (
        SELECT split_part(setting, '=', 2) FROM pg_db_role_setting, unnest(setconfig) setting
        WHERE setrole = 0 AND setting LIKE 'default_transaction_read_only=%'
          AND setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    ) WHERE out_of_group IS NULL;
    UPDATE groupcert.settings SET out_of_group = why,
        read_only_from = coalesce(read_only_from, clock_timestamp());
    EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only TO on', current_database());
END $$;

CREATE FUNCTION groupcert.enter_group() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before text;
BEGIN
    UPDATE groupcert.settings SET out_of_group = NULL, read_only_until = clock_timestamp()
    WHERE out_of_group IS NOT NULL RETURNING read_only_before INTO before;
    IF NOT FOUND THEN
        RETURN;
    ELSIF before IS NULL THEN
        EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database());
    ELSE
        EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only TO %L',
            current_database(), before);
    END IF;
END $$;

-- Ends sessions that began while the server was read-only, if they are idle; returns how many are
-- not. They would stay read-only for as long as an application's pool keeps them.
CREATE FUNCTION groupcert.end_read_only_sessions() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    busy bigint;
BEGIN
    SELECT count(*) FILTER (WHERE state <> 'idle' OR NOT pg_terminate_backend(pid)) INTO busy
    FROM pg_stat_activity, groupcert.settings
    WHERE datname = current_database() AND backend_type = 'client backend'
      AND backend_start BETWEEN read_only_from AND read_only_until
      AND application_name NOT LIKE 'groupcert %';
    IF busy = 0 THEN
        UPDATE groupcert.settings SET read_only_from = NULL WHERE read_only_from IS NOT NULL;
    END IF;
    RETURN busy;
END $$;
