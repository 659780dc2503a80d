"""Run a server that must not outlive its parent: `python watchdog.py SERVER ARGUMENT...`

Standard input is a pipe whose other end the parent holds and never writes to. However the parent dies, the kernel
closes that end; then, and on SIGTERM or SIGINT, the server is asked to stop, and killed if it does not. On Linux the
server also ends with this process. The parent itself could not arrange that: the signal comes when the thread that
started the child ends, and code between fork and exec is not safe beside other threads.

The exit status is the server's. Standard library only: it is run as a file, before any package can be imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 5.0
_STOPPING = (signal.SIGTERM, signal.SIGINT)
_STDIN = 0
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(command: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)  # until there is a server to pass them on to
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_in_the_server)
    for number in _STOPPING:
        signal.signal(number, lambda *_: server.terminate())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    threading.Thread(target=_stop_with_parent, args=(server,), daemon=True).start()
    return server.wait()


def _in_the_server() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _stop_with_parent(server: subprocess.Popen[bytes]) -> None:
    while os.read(_STDIN, 1):
        pass
    server.terminate()
    try:
        server.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
