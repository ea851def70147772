"""The entry of the `libra` command: signals and streams before commands are imported and after they end.

Ctrl-C during the imports, or at the interpreter's end, ends the process silently: a traceback through half an
import is useless. Streams closed by the caller are replaced by the null device (`libra groups >&-`), and
characters that their encoding cannot express are escaped.
"""

import io
import os
import signal
import sys


def main() -> None:
    """Run the command and exit as shells expect."""
    # If ignored, it stays ignored: `nohup`, or a shell's background job.
    handles_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_streams()
    from libramq.cli.main import run

    if handles_interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run(sys.argv[1:])
    if handles_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _open_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 # Open for the process's lifetime.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
