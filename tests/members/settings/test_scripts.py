"""Settings of members and replicas: where they come from, and what is said of wrong ones; the
scripts are tests/testdata/settings.
"""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from groupcert.members.errors.usage import InvalidConfig
from groupcert.members.settings.member import load_config
from groupcert.members.settings.replica import load_replica_config
from tests.datadriven import Command, run_script
from tests.transcripts import write_body

SCRIPTS = sorted((Path(__file__).parents[2] / "testdata" / "settings").glob("*.txt"))
Loader = Callable[[Path | None, dict[str, object], dict[str, str]], object]
LOADERS: dict[str, Loader] = {"member": load_config, "replica": load_replica_config}


def loaded(command: Command) -> str:
    """member|replica [file=] [NAME=...] [unset=] [show=]: settings of a file, an environment, and
    flags as the body has them, or unset as the command leaves them: those that are asked for, or
    all problems.
    """
    arguments = dict(command.arguments)
    file, shown = arguments.pop("file", None), arguments.pop("show", "")
    flags: dict[str, object] = dict.fromkeys(filter(None, arguments.pop("unset", "").split(",")))
    flags |= tomllib.loads("\n".join(command.body))
    try:
        config = LOADERS[command.name](Path(file) if file else None, flags, arguments)
    except InvalidConfig as error:
        # Why a file cannot be read, each release of Python says in other words.
        return re.sub(r"cannot be read \(.*\)", "cannot be read (WHY)", "\n".join(error.problems))
    assert shown, "it has no problems"
    return "\n".join(f"{name} = {getattr(config, name)!r}" for name in shown.split(","))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_gives_its_answers(
    path: Path, rewrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    run_script(path, {"file": write_body, **dict.fromkeys(LOADERS, loaded)}, rewrite=rewrite)
