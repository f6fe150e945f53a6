"""`python -m holdfast.testing.leash PARENT ARGUMENT…`: the command line, ended by the kernel when its parent ends.

The process puts itself on the leash before it does anything else. Whoever starts it need not run code between
fork and exec, which a program with threads may not do safely. Only Linux has such leashes; elsewhere a test
process that is killed leaves its nodes behind.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

# From <linux/prctl.h>. The kernel means the thread that started this process; see `LocalCluster`.
_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    parent = int(sys.argv.pop(1))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the leash was on
            sys.exit(1)
    runpy.run_module("holdfast.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
