"""The verbs of a lasting group on this machine: `groupcert up` and `groupcert down`.

The group runs in front, or in the background in a process of its own.
"""

import json
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from ..demo.running_group import DEFAULT_FOLDER, UP_LOG
from ..errors.usage import InvalidOption
from .extras import check_extras
from .verb_options import FINDING, FINE, UNAVAILABLE, Json

if TYPE_CHECKING:
    from ..demo.lasting_group import Places
    from ..demo.local_group import LocalGroup

STOP_HINT = "Ctrl-C stops it; groupcert up starts it again, with its data.\n"
PYTHON_TRIAL = """\
To try it, in Python:

import groupcert
with groupcert.Client("{address}") as client:
    client.run(lambda transaction: transaction.put(b"greeting", b"hello"))
"""
SQL_TRIAL = """\
To try it, a table that is made at all servers, and a row that is written at one:

echo 'CREATE TABLE greetings (id int PRIMARY KEY, words text)' |
  groupcert postgresql ddl - --attach{flag}
psql {first} -c "INSERT INTO greetings VALUES (1, 'hello')"
psql {last} -c "TABLE greetings"
"""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

DataFolder = Annotated[Path, typer.Option(help="Where the group keeps everything.")]


class Ready(TypedDict):
    """The one line of `groupcert up --json`; `console` is that of the first member."""

    group: str
    members: dict[str, str]
    processes: dict[str, int]
    console: str
    consoles: dict[str, str]
    log_server: str
    postgresql: dict[str, str]
    """DSNs of the PostgreSQL servers by member, if there are any."""


def up(
    members: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="Members: 3, or as many as there were."),
    ] = None,
    data_folder: DataFolder = DEFAULT_FOLDER,
    group: Annotated[str | None, typer.Option(help="The group's name: local.")] = None,
    log_server: Annotated[
        list[str] | None,
        typer.Option(
            help="A log server, nats://host:port or etcd://host:port, in place of one of its own."
            " Repeatable."
        ),
    ] = None,
    postgresql: Annotated[
        bool,
        typer.Option("--postgresql", help="PostgreSQL servers, started here, keep the rows."),
    ] = False,
    tables: Annotated[
        list[str] | None,
        typer.Option(help="Their tables that the group has: 'public.*'. Repeatable."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="In the background: end when it is ready.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a lasting group on this machine: a log server, and members with their consoles.

    Members are at 7101 and up, their consoles at 7180 and up, PostgreSQL servers at 15431 and up;
    where others listen, at the next free ports. Ctrl-C stops it in order. Started again, it is the
    same group with its data.
    """
    check_extras("member", *(["postgresql"] if postgresql else []))
    if tables and not postgresql:
        raise InvalidOption(name="--tables", value=tables[0], expected="--postgresql beside it")
    if not detach:
        _run_in_front(
            data_folder,
            as_json=as_json,
            group=group,
            members=members,
            log_servers=tuple(log_server or ()),
            postgresql=postgresql,
            tables=tuple(tables or ()),
        )
        return
    flags = ["--data-folder", str(data_folder)]
    flags += ["--members", str(members)] if members else []
    flags += ["--group", group] if group else []
    for server in log_server or ():
        flags += ["--log-server", server]
    flags += ["--postgresql"] if postgresql else []
    for pattern in tables or ():
        flags += ["--tables", pattern]
    raise typer.Exit(_run_in_background(data_folder, flags, as_json=as_json))


def down(data_folder: DataFolder = DEFAULT_FOLDER, as_json: Json = False) -> None:
    """Stop the group that `groupcert up` runs in a folder; its data stays.

    Exits with 1 if nothing was up there.
    """
    from ..demo.lasting_group import take_down

    try:
        result, code = ("stopped", FINE) if take_down(data_folder) else ("nothing was up", FINDING)
    except TimeoutError as error:
        _tell(f"{error}: see {data_folder / UP_LOG}")
        result, code = "did not stop", UNAVAILABLE
    document = {"result": result, "data_folder": str(data_folder)}
    text = json.dumps(document) if as_json else f"{result} in {data_folder}"
    sys.stdout.write(f"{text}\n")
    raise typer.Exit(code)


def _run_in_front(folder: Path, *, as_json: bool, **wishes: Any) -> None:
    """Runs a group until it is interrupted, and stops it in order; `wishes`: as of `places_of`."""
    from ..demo.lasting_group import alone_in, group_at, keep_up, places_of
    from ..host.private_files import keep_private

    keep_private([folder])
    with alone_in(folder):
        for number in STOP_SIGNALS:
            signal.signal(number, signal.default_int_handler)
        places = places_of(folder, **wishes)
        _tell(f"starting group {places.group}: {len(places.members)} members in {folder}")
        running = group_at(folder, places)
        try:
            running.start()
            ready = _ready(places, running)
            text = json.dumps(ready) + "\n" if as_json else _described(ready, folder) + STOP_HINT
            sys.stdout.write(text)
            sys.stdout.flush()
            keep_up(running, _tell)
        except KeyboardInterrupt:
            _tell("stopping")
        finally:
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            running.stop()


def _run_in_background(folder: Path, flags: list[str], *, as_json: bool) -> int:
    """Runs a group in a process of its own, and returns once that is ready; its exit code if it
    could not start. What it says goes to `up.log` in its folder.
    """
    import subprocess

    from ..host.private_files import keep_private

    keep_private([folder])
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / UP_LOG
    command = (sys.executable, "-m", "groupcert.members", "up", "--json", *flags)
    with log.open("ab") as output:
        offset = output.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        with process.stdout as answer:
            line = answer.readline()
    except KeyboardInterrupt:
        process.terminate()
        raise
    if not line or "error" in json.loads(line):
        code = process.wait()
        sys.stderr.write(log.read_bytes()[offset:].decode(errors="replace"))
        sys.stdout.write(line if as_json else "")
        return code
    if not as_json:
        line = f"{_described(json.loads(line), folder)}groupcert down{_flag(folder)} stops it.\n"
    sys.stdout.write(line)
    return FINE


def _ready(places: "Places", group: "LocalGroup") -> Ready:
    consoles = {name: f"http://{address}/" for name, address in places.consoles.items()}
    return Ready(
        group=places.group,
        members=dict(places.members),
        processes={name: process.pid for name, process in group.processes.items()},
        console=next(iter(consoles.values())),
        consoles=consoles,
        log_server=",".join(places.log_servers or (group.log_server.address,)),
        postgresql=dict(places.postgresql),
    )


def _described(ready: Ready, folder: Path) -> str:
    """Returns the addresses and folders of the group, and the next steps."""
    members, consoles, processes = ready["members"], ready["consoles"], ready["processes"]
    servers = ready["postgresql"]
    rows = "".join(
        f"  {name}  {address}   console {consoles[name]}   process {processes[name]}\n"
        + (f"      psql {servers[name]}\n" if servers else "")
        for name, address in members.items()
    )
    trial = PYTHON_TRIAL.format(address=next(iter(members.values())))
    if servers:
        first, last = (list(servers.values())[at] for at in (0, -1))
        trial = SQL_TRIAL.format(flag=_flag(folder), first=first, last=last)
    return f"""\
group {ready["group"]} is up, its data in {folder}
{rows}  log server {ready["log_server"]}

{trial}
"""


def _flag(folder: Path) -> str:
    return "" if folder == DEFAULT_FOLDER else f" --data-folder {shlex.quote(str(folder))}"


def _tell(text: str) -> None:
    sys.stderr.write(f"groupcert: {text}\n")
    sys.stderr.flush()
