"""`python -m tests.orms.django_shop create` or `... place SEED COUNT`, at the server `SHOP_DSN`.

To place orders it says that it is ready, and begins when its standard input ends.
"""

import os
import sys

import django
from django.core.management import call_command


def main(verb: str, *numbers: str) -> int:
    """The command."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.orms.django_shop.settings"
    django.setup()
    from tests.orms.django_shop.shop import place_orders, stock_up

    if verb == "create":
        call_command("migrate", run_syncdb=True, verbosity=0)
        stock_up()
        return 0
    seed, count = map(int, numbers)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    sys.stdout.write(f"{place_orders(seed, count)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
