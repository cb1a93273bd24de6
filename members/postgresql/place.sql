-- Which database was attached, and the socket of its member.
--
-- A copy of a database has the triggers, too, with the path of the socket and the token: without
-- this, what is committed in a dump that was restored beside its server would go to the group.

CREATE FUNCTION groupcert.real_path(path text) RETURNS text
LANGUAGE plpython3u SET search_path = pg_catalog, pg_temp AS $$
import os

return os.path.realpath(path)
$$;

CREATE FUNCTION groupcert.place(
    OUT system_identifier bigint, OUT database_oid oid, OUT data_directory text
) LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT control.system_identifier, oid, groupcert.real_path(current_setting('data_directory'))
    FROM pg_control_system() control, pg_database WHERE datname = current_database()
$$;

-- Returns NULL if this is the database that was attached, where it was then; else both places.
CREATE FUNCTION groupcert.copied() RETURNS text
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('attached was database %s of system %s in %s; this one is %s of system %s in %s',
        s.database_oid, s.system_identifier, s.data_directory,
        p.database_oid, p.system_identifier, p.data_directory)
    FROM groupcert.settings s, groupcert.place() p
    WHERE (s.system_identifier, s.database_oid, s.data_directory)
        IS DISTINCT FROM (p.system_identifier, p.database_oid, p.data_directory)
$$;

-- Makes what is missing of the socket's folder, and the file that its member locks; returns the
-- account of the server, and what is wrong with the folder. The server makes them, so that they
-- are its account's, wherever `attach` runs.
CREATE FUNCTION groupcert.prepare_socket(
    path text, OUT uid bigint, OUT account text, OUT problem text
) LANGUAGE plpython3u SET search_path = pg_catalog, pg_temp AS $$
import os
import pwd

folder, _, name = path.rpartition("/")
uid = os.geteuid()
try:
    account = pwd.getpwuid(uid).pw_name
except KeyError:
    account = str(uid)
problem = None
try:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder)
    if found.st_uid != uid:
        problem = f"is owned by uid {found.st_uid}, and the server runs as {account} ({uid})"
    elif found.st_mode & 0o022:
        problem = f"has mode {found.st_mode & 0o7777:04o}: others may write to it"
    elif len(os.fsencode(name)) > 80:
        problem = f"would have a name of {len(os.fsencode(name))} bytes in it, 80 at most"
    else:
        os.close(os.open(path + ".lock", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
except OSError as error:
    problem = f"cannot be used by {account}: {error}"
return uid, account, problem
$$;

-- Returns whether the member that has locked the file sees the same file as the server does.
CREATE FUNCTION groupcert.is_locked(path text) RETURNS boolean
LANGUAGE plpython3u SET search_path = pg_catalog, pg_temp AS $$
import fcntl

try:
    with open(path + ".lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except FileNotFoundError:  # A `detach` that failed behind it has removed it.
    return False
except BlockingIOError:
    return True
return False
$$;

-- Removes what `prepare_socket` has made, unless a member runs.
CREATE FUNCTION groupcert.remove_socket(path text, data_directory text) RETURNS void
LANGUAGE plpython3u SET search_path = pg_catalog, pg_temp AS $$
import os
from contextlib import suppress

with suppress(OSError):
    if not plpy.execute(f"SELECT groupcert.is_locked({plpy.quote_literal(path)}) AS it")[0]["it"]:
        for name in (path, path + ".lock"):
            with suppress(FileNotFoundError):
                os.unlink(name)
        if path.startswith(data_directory + "/"):
            os.rmdir(os.path.dirname(path))
$$;
