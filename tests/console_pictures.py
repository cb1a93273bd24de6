"""Takes the pictures of the console in the READMEs: `python -m tests.console_pictures FOLDER`.

It starts a group with clients that conflict, looks at a console after `--seconds`, in light, then
kills a member and looks again, in dark.
"""

import argparse
import base64
import signal
import tempfile
import time
from pathlib import Path

from selenium.webdriver import Chrome

from groupcert.members.demo.command_process import CommandProcess
from groupcert.members.demo.local_group import LocalGroup
from groupcert.members.host.loopback import HOST, free_port
from tests.browser import colours, count, running_browser
from tests.integration.waiting import wait_for

WIDTH, HEIGHT = 1_280, 1_430
SETTLED_SECONDS = 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the pictures")
    parser.add_argument("--seconds", type=float, default=300.0, help="of load before the first")
    asked = parser.parse_args()
    own = {name: {"metrics_address": f"{HOST}:{free_port()}"} for name in ("m1", "m2", "m3")}
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalGroup(Path(folder), settings={"group": "shop"}, own_settings=own) as group,
        running_browser() as browser,
    ):
        members = ",".join(group.addresses.values())
        verb = ("load", members, "--clients", "6", "--rows", "300")
        seconds = ("--seconds", str(asked.seconds + 600))
        log = Path(folder) / "load.log"
        with CommandProcess((*verb, *seconds), log, stop_signal=signal.SIGKILL):
            browser.get(f"http://{own['m1']['metrics_address']}/")
            time.sleep(asked.seconds)
            take(browser, "light", asked.folder)
            group.kill("m3")
            wait_for("m3 is told", lambda: count(browser, "#members .bad") == 1)
            take(browser, "dark", asked.folder)


def take(browser: Chrome, scheme: str, folder: Path) -> None:
    """Takes a picture of the page's upper part."""
    size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    colours(browser, scheme)
    time.sleep(SETTLED_SECONDS)
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    (folder / f"console-{scheme}.png").write_bytes(base64.b64decode(taken["data"]))


if __name__ == "__main__":
    main()
