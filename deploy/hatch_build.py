"""Makes the protobuf and gRPC stubs, package `groupcert.v1`, from `proto/`.

Hatchling calls `StubsBuildHook` for every wheel; `make proto` runs this file when the contract
changed. The stubs land in `.build/stubs`, which git ignores: an editable install puts that
directory on the import path (`dev-mode-dirs` in `pyproject.toml`), a standard wheel has a copy.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STUBS = Path(".build/stubs")
PACKAGE = Path("groupcert/v1")
OUTPUTS = {"python": "", "grpc_python": "", "mypy": "quiet:", "mypy_grpc": "quiet:"}
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")


class StubsBuildHook(BuildHookInterface[Any]):
    """Puts the stubs into a wheel, or beside the sources of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Makes the stubs before the build; `version` is "standard" or "editable"."""
        stubs = make_stubs(Path(self.root))
        if version == "standard":
            build_data["force_include"][str(stubs / PACKAGE)] = str(PACKAGE)


def make_stubs(root: Path) -> Path:
    """Makes the stubs of the tree at `root` and returns the directory they are in.

    Raises:
        SystemExit: a `.proto` file does not compile. Protoc has printed its name and line to
            standard error; the stubs of the run before are still there.
    """
    stubs, fresh = root / STUBS, (root / STUBS).with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / PACKAGE).mkdir(parents=True)
    well_known = Path(protoc.__file__).with_name("_proto")
    arguments = [f"--proto_path={path}" for path in (root / "proto", well_known)]
    arguments += [f"--plugin={name}={find_script(name)}" for name in PLUGINS]
    arguments += [f"--{name}_out={options}{fresh}" for name, options in OUTPUTS.items()]
    arguments += [str(path) for path in sorted((root / "proto" / PACKAGE).glob("*.proto"))]
    if protoc.main(["protoc", *arguments]) != 0:
        sys.exit(f"{root / 'proto' / PACKAGE} does not compile; {stubs} is left as it was")
    (fresh / PACKAGE / "py.typed").touch()
    shutil.rmtree(stubs, ignore_errors=True)
    fresh.rename(stubs)
    return stubs


def find_script(name: str) -> str:
    """Returns the path of a script of this Python environment, activated or not."""
    places = (os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts"))
    script = shutil.which(name, path=os.pathsep.join(places))
    if script is None:
        sys.exit(f"{name} is missing; install mypy-protobuf, or run `make venv`")
    return script


if __name__ == "__main__":
    make_stubs(Path(__file__).resolve().parent.parent)
