"""The entry of the `libra` command: signals and streams before commands are loaded and after they are done.

Ctrl-C while modules are loaded, or while the interpreter ends, ends the process and says nothing: a traceback
through half an import helps nobody. Streams that the caller has closed are nowhere (`libra groups >&-`), and
what their encoding cannot express is spelt out.
"""

import io
import os
import signal
import sys


def main() -> None:
    """Run the command and exit as shells expect."""
    # Ignored, it stays so: `nohup`, or a shell's background.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_streams()
    from libramq.cli.main import run

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run(sys.argv[1:])
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _open_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 # Open as long as the process lives.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
