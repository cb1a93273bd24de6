-- Schema changes of the group: those that a superuser has approved here, and what became of them.
CREATE TABLE groupcert.schema_changes (
    digest text PRIMARY KEY,
    change text NOT NULL,
    version bigint,
    gtid text
);

-- The attached tables: those with triggers that call functions of this schema.
CREATE VIEW groupcert.attached AS
SELECT DISTINCT c.oid AS relation, c.relnamespace AS schema
FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
WHERE p.pronamespace = 'groupcert'::pg_catalog.regnamespace AND c.relnamespace <> p.pronamespace;

-- Returns a type and all that it is made of, as an array, a domain, a range or a row.
CREATE FUNCTION groupcert.parts_of(type oid) RETURNS SETOF oid
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE parts AS (
        SELECT $1 AS part
        UNION SELECT of.part FROM parts p JOIN pg_type t ON t.oid = p.part, LATERAL (
            SELECT t.typbasetype UNION ALL SELECT t.typelem UNION ALL
            SELECT atttypid FROM pg_attribute WHERE attrelid = t.typrelid AND t.typrelid <> 0
            AND attnum > 0 AND NOT attisdropped UNION ALL
            SELECT rngsubtype FROM pg_range WHERE t.oid IN (rngtypid, rngmultitypid)) of(part))
    SELECT part FROM parts
$$;

-- Raises what a client gets for a change of one server alone. `groupcert up` has its servers say
-- which flags name their group.
CREATE FUNCTION groupcert.refuse(tag text, changed text, flags text DEFAULT '') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000',
        MESSAGE = format('%s of %s is refused on a server of a group', tag, changed),
        DETAIL = 'The other servers would not have it.',
        HINT = format('groupcert postgresql ddl FILE%s%s runs it at all servers.', flags,
            ' ' || nullif(current_setting('groupcert.ddl_flags', true), ''));
END $$;

-- Returns whether `changes T` of an attached table looks for entries of an index: it was a unique
-- one. The catalogue has nothing of an index that is dropped. The index is looked for before the
-- table: each pair of a function and a table takes seconds where some hundred are attached.
CREATE FUNCTION groupcert.has_entries(schema_name text, index_name text) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH functions AS MATERIALIZED (
        SELECT prosrc FROM pg_proc
        WHERE pronamespace = 'groupcert'::regnamespace AND proname ~ '^changes '
          AND strpos(prosrc, ltrim(quote_literal(format('/%s/', index_name)), 'E''')) > 0)
    SELECT EXISTS (
        SELECT FROM functions, groupcert.attached JOIN pg_class c ON c.oid = relation
        JOIN pg_namespace n ON n.oid = schema AND n.nspname = schema_name
        WHERE strpos(prosrc, quote_literal(
            format('%s.%s/%s/', n.nspname, c.relname, index_name))) > 0)
$$;

-- Refuses what would have the servers of a group differ. Event triggers do not fire in sessions
-- with `session_replication_role = replica`, which a superuser may set, and groupcert does. Of some
-- hundred attached tables, the planner thinks that their look takes so long that compiling it pays,
-- which takes two seconds.
CREATE FUNCTION groupcert.refuse_schema_change() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    changed text;
BEGIN
    IF tg_event = 'sql_drop' THEN
        SELECT CASE WHEN object_type IN ('trigger', 'table column', 'table constraint', 'rule')
            THEN format('%I.%I', address_names[1], address_names[2]) ELSE object_identity END
        INTO changed FROM pg_event_trigger_dropped_objects()
        WHERE schema_name IN ('groupcert', 'groupcert_client')
           OR object_type = 'trigger' AND address_names[3] ~ '^groupcert_'
           -- What CASCADE takes from an attached table.
           OR object_type IN ('table column', 'table constraint', 'rule') AND to_regclass(
               format('%I.%I', address_names[1], address_names[2])) IN (
               SELECT relation FROM groupcert.attached)
           OR object_type = 'index' AND groupcert.has_entries(schema_name, object_name);
    ELSE
        SELECT coalesce(attached.relation::regclass::text, object_identity) INTO changed
        FROM pg_event_trigger_ddl_commands() command LEFT JOIN groupcert.attached
        ON CASE command.classid
            WHEN 'pg_class'::regclass THEN command.objid = attached.relation OR EXISTS (
                SELECT FROM pg_index WHERE indexrelid = command.objid AND indisunique
                AND indrelid = attached.relation) OR EXISTS (
                SELECT FROM pg_inherits WHERE inhrelid = command.objid
                AND inhparent = attached.relation)
            WHEN 'pg_trigger'::regclass THEN EXISTS (
                SELECT FROM pg_trigger WHERE oid = command.objid AND tgrelid = attached.relation)
            WHEN 'pg_rewrite'::regclass THEN EXISTS (
                SELECT FROM pg_rewrite WHERE oid = command.objid AND ev_class = attached.relation)
            WHEN 'pg_type'::regclass THEN EXISTS (
                SELECT FROM pg_attribute WHERE attrelid = attached.relation
                AND command.objid IN (SELECT groupcert.parts_of(atttypid)))
            WHEN 'pg_namespace'::regclass THEN command.objid = attached.schema
            END
        WHERE attached.relation IS NOT NULL
           OR command.schema_name IN ('groupcert', 'groupcert_client');
    END IF;
    IF changed IS NOT NULL THEN
        PERFORM groupcert.refuse(tg_tag, changed);
    END IF;
END $$;

CREATE EVENT TRIGGER groupcert_ddl ON ddl_command_end
WHEN TAG IN ('ALTER TABLE', 'ALTER TYPE', 'ALTER DOMAIN', 'CREATE INDEX', 'CREATE RULE',
    'CREATE TRIGGER', 'ALTER TRIGGER', 'ALTER SCHEMA', 'CREATE TABLE', 'CREATE FOREIGN TABLE',
    'CREATE FUNCTION', 'ALTER FUNCTION', 'ALTER VIEW', 'CREATE VIEW', 'ALTER INDEX')
EXECUTE FUNCTION groupcert.refuse_schema_change();
CREATE EVENT TRIGGER groupcert_drop ON sql_drop
EXECUTE FUNCTION groupcert.refuse_schema_change();

-- Refuses CONCURRENTLY, which commits in its midst: refused at its end, it would leave a unique
-- index that is invalid and yet refuses rows, or one that takes all. At the beginning nothing but
-- the text of the statement tells of what it is, which has no other one beside it.
CREATE FUNCTION groupcert.refuse_concurrent_change() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement text := replace(current_query(), '""', '"');
    changed text;
BEGIN
    IF statement !~* '\mconcurrently\M' THEN
        RETURN;
    END IF;
    SELECT c.oid::regclass::text INTO changed
    FROM groupcert.attached LEFT JOIN pg_index i ON i.indrelid = relation AND i.indisunique
    JOIN pg_class c ON c.oid = CASE tg_tag WHEN 'DROP INDEX' THEN i.indexrelid ELSE relation END
    WHERE (tg_tag <> 'CREATE INDEX' OR statement ~* '\munique\M')
      -- A pattern for each name is slow; most names are not there at all.
      AND CASE WHEN strpos(lower(statement), lower(c.relname)) > 0 THEN statement ~* (
          '(^|[^[:alnum:]_$])' || regexp_replace(c.relname, '(\W)', '\\\1', 'g')
          || '($|[^[:alnum:]_$])') END;
    IF changed IS NOT NULL THEN
        PERFORM groupcert.refuse(tg_tag, changed);
    END IF;
END $$;

CREATE EVENT TRIGGER groupcert_begin ON ddl_command_start
WHEN TAG IN ('CREATE INDEX', 'DROP INDEX', 'ALTER TABLE')
EXECUTE FUNCTION groupcert.refuse_concurrent_change();

-- Returns whether a name matches one of the patterns of `attach`, as `attach` itself matches them.
CREATE FUNCTION groupcert.matches(name text) RETURNS boolean
LANGUAGE plpython3u SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
from fnmatch import fnmatchcase

settings = plpy.execute("SELECT unnest(patterns) AS pattern FROM groupcert.settings")
return any(fnmatchcase(name, row["pattern"]) for row in settings)
$$;

-- Says of a new table that its rows stay here, or refuses it.
CREATE FUNCTION groupcert.look_at_new_table() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    new text;
BEGIN
    SELECT object_identity INTO new
    FROM pg_event_trigger_ddl_commands() command JOIN pg_class c ON c.oid = command.objid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE command.classid = 'pg_class'::regclass AND c.relkind IN ('r', 'p')
      AND c.relpersistence <> 't' AND groupcert.matches(n.nspname || '.' || c.relname);
    IF new IS NULL THEN
        RETURN;
    ELSIF (SELECT new_tables = 'refuse' FROM groupcert.settings) THEN
        PERFORM groupcert.refuse(tg_tag, new, ' --attach');
    END IF;
    RAISE WARNING USING MESSAGE = format('rows of %s stay at this server of the group', new),
        HINT = 'groupcert postgresql ddl FILE --attach makes tables at all servers.';
END $$;

CREATE EVENT TRIGGER groupcert_new_table ON ddl_command_end
WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO')
EXECUTE FUNCTION groupcert.look_at_new_table();

-- Sequences that have been set to a number that is another server's, or to another step.
CREATE VIEW groupcert.astray_sequences AS
SELECT format('%I.%I', n.nspname, c.relname) AS sequence
FROM groupcert.sequences k JOIN pg_catalog.pg_class c ON c.oid = k.sequence
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_sequence s ON s.seqrelid = c.oid, groupcert.settings g
WHERE s.seqincrement <> k.step * g.sequence_increment
   OR (pg_catalog.pg_sequence_last_value(c.oid) - s.seqstart - k.step * (g.sequence_offset - 1))
      % (k.step * g.sequence_increment) <> 0;

-- What does not note or refuse what it should: somebody has switched it off, or removed it.
CREATE VIEW groupcert.switched_off AS
SELECT DISTINCT 'trigger ' || t.tgname || ' of ' || t.tgrelid::pg_catalog.regclass::text AS what
FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
WHERE p.pronamespace = 'groupcert'::pg_catalog.regnamespace AND t.tgenabled NOT IN ('O', 'A')
UNION ALL
SELECT 'triggers of ' || relation::pg_catalog.regclass::text
FROM groupcert.attached JOIN pg_catalog.pg_class c ON c.oid = relation
WHERE NOT c.relispartition AND (
    SELECT count(*) FROM pg_catalog.pg_trigger WHERE tgrelid = relation AND tgname ~ '^groupcert_'
) <> CASE c.relkind WHEN 'p' THEN 2 ELSE 4 END
UNION ALL
SELECT 'event trigger ' || name
FROM pg_catalog.unnest(ARRAY[
    'groupcert_begin', 'groupcert_ddl', 'groupcert_drop', 'groupcert_new_table']) name
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_event_trigger
                  WHERE evtname = name AND evtenabled IN ('O', 'A'));

-- How many rows of tables that match a pattern and are not attached have been changed.
CREATE VIEW groupcert.rows_outside AS
SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint AS changed
FROM pg_catalog.pg_stat_user_tables
WHERE schemaname <> 'groupcert' AND relid NOT IN (SELECT relation FROM groupcert.attached)
  AND groupcert.matches(schemaname || '.' || relname);
