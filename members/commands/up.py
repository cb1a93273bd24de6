"""`groupcert up` and `groupcert down`: a lasting group on this machine, in front or in the
background.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

from ..demo.lasting_group import (
    UP_LOG,
    Places,
    alone_in,
    group_at,
    keep_up,
    places_of,
    take_down,
)
from ..demo.local_group import LocalGroup
from ..demo.running_group import DEFAULT_FOLDER
from ..host.private_files import keep_private
from .options import FINDING, FINE, UNAVAILABLE

STOP_HINT = "Ctrl-C stops it; groupcert up starts it again, with its data.\n"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ready(TypedDict):
    """The one line of `groupcert up --json`; `console` is that of the first member."""

    group: str
    members: dict[str, str]
    processes: dict[str, int]
    console: str
    consoles: dict[str, str]
    log_server: str


def up(
    folder: Path,
    *,
    group: str | None,
    members: int | None,
    log_servers: tuple[str, ...],
    as_json: bool,
) -> int:
    """Runs a group until it is interrupted, and stops it in order; returns 0."""
    keep_private([folder])
    with alone_in(folder):
        for number in STOP_SIGNALS:
            signal.signal(number, signal.default_int_handler)
        places = places_of(folder, group=group, members=members, log_servers=log_servers)
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
    return FINE


def up_detached(folder: Path, flags: list[str], *, as_json: bool) -> int:
    """Runs a group in a process of its own, and returns once that is ready; its exit code if it
    could not start. What it says goes to `up.log` in its folder.
    """
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
        flag = "" if folder == DEFAULT_FOLDER else f" --data-folder {folder}"
        line = f"{_described(json.loads(line), folder)}groupcert down{flag} stops it.\n"
    sys.stdout.write(line)
    return FINE


def down(folder: Path, *, as_json: bool) -> int:
    """Stops the group of a folder; its data stays. Returns 1 if nothing was up."""
    try:
        result, code = ("stopped", FINE) if take_down(folder) else ("nothing was up", FINDING)
    except TimeoutError as error:
        _tell(f"{error}: see {folder / UP_LOG}")
        result, code = "did not stop", UNAVAILABLE
    document = {"result": result, "data_folder": str(folder)}
    text = json.dumps(document) if as_json else f"{result} in {folder}"
    sys.stdout.write(f"{text}\n")
    return code


def _ready(places: Places, group: LocalGroup) -> Ready:
    consoles = {name: f"http://{address}/" for name, address in places.consoles.items()}
    return Ready(
        group=places.group,
        members=dict(places.members),
        processes={name: process.pid for name, process in group.processes.items()},
        console=next(iter(consoles.values())),
        consoles=consoles,
        log_server=",".join(places.log_servers or (group.log_server.address,)),
    )


def _described(ready: Ready, folder: Path) -> str:
    """Returns the addresses and folders of the group, and the next steps."""
    members, consoles, processes = ready["members"], ready["consoles"], ready["processes"]
    rows = "".join(
        f"  {name}  {address}   console {consoles[name]}   process {processes[name]}\n"
        for name, address in members.items()
    )
    return f"""\
group {ready["group"]} is up, its data in {folder}
{rows}  log server {ready["log_server"]}

To try it, in Python:

import groupcert
with groupcert.Client("{next(iter(members.values()))}") as client:
    client.run(lambda transaction: transaction.put(b"greeting", b"hello"))

"""


def _tell(text: str) -> None:
    sys.stderr.write(f"groupcert: {text}\n")
    sys.stderr.flush()
