"""`ray start` on the loopback interface: `python -m tidal.cluster.ray_start OPTIONS`.

On Linux, Ray replaces 127.0.0.1 by the address of the default route, and its processes then listen on all interfaces.
With the loopback address they listen there alone.
"""

from __future__ import annotations

import sys

from tidal.cluster.connection import stay_on_loopback


def main() -> None:
    """Run `ray start` with the options of this process."""
    stay_on_loopback()
    from ray.scripts.scripts import main as ray

    sys.argv = ["ray", "start", *sys.argv[1:]]
    ray()


if __name__ == "__main__":
    main()
