-- Schema changes of the group: those that a superuser has approved here, and what became of them.
CREATE TABLE groupcert.schema_changes (
    digest text PRIMARY KEY,
    change text NOT NULL,
    version bigint,
    gtid text
);

-- Refuses what would have the servers of a group differ. Event triggers do not fire in sessions
-- with `session_replication_role = replica`, which a superuser may set, and groupcert does.
CREATE FUNCTION groupcert.refuse_schema_change() RETURNS event_trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed text;
BEGIN
    IF tg_event = 'sql_drop' THEN
        SELECT substr(object_identity, length('groupcert_note on ') + 1) INTO changed
        FROM pg_event_trigger_dropped_objects()
        WHERE object_type = 'trigger' AND object_identity LIKE 'groupcert\_note on %';
    ELSE
        SELECT attached.tgrelid::regclass INTO changed
        FROM pg_event_trigger_ddl_commands() command, pg_trigger attached
        WHERE attached.tgname = 'groupcert_note' AND CASE command.classid
            WHEN 'pg_class'::regclass THEN command.objid = attached.tgrelid OR EXISTS (
                SELECT FROM pg_index WHERE indexrelid = command.objid AND indisunique
                AND indrelid = attached.tgrelid)
            WHEN 'pg_trigger'::regclass THEN EXISTS (
                SELECT FROM pg_trigger WHERE oid = command.objid AND tgrelid = attached.tgrelid)
            WHEN 'pg_rewrite'::regclass THEN EXISTS (
                SELECT FROM pg_rewrite WHERE oid = command.objid AND ev_class = attached.tgrelid)
            WHEN 'pg_type'::regclass THEN EXISTS (
                SELECT FROM pg_attribute WHERE attrelid = attached.tgrelid
                AND atttypid = command.objid)
            END;
    END IF;
    IF changed IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = format('%s of %s is refused on a server of a group', tg_tag, changed),
            DETAIL = 'The other servers would not have it.',
            HINT = 'groupcert postgresql ddl FILE runs it at all servers.';
    END IF;
END $$;

CREATE EVENT TRIGGER groupcert_ddl ON ddl_command_end
WHEN TAG IN ('ALTER TABLE', 'ALTER TYPE', 'ALTER DOMAIN', 'CREATE INDEX', 'CREATE RULE',
    'CREATE TRIGGER')
EXECUTE FUNCTION groupcert.refuse_schema_change();
CREATE EVENT TRIGGER groupcert_drop ON sql_drop
EXECUTE FUNCTION groupcert.refuse_schema_change();
