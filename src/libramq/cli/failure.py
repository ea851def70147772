"""The failure of a command: one line with cause and remedy, and exit code 2. Bugs keep their traceback."""

import errno
import sys
from pathlib import Path
from typing import Final

EXIT_FAILED: Final = 2
_POSIX_MODULES: Final = ("fcntl", "resource", "pwd", "termios")


def failure_line(error: Exception) -> str | None:
    """Return the line that explains an error to a user; None for a bug of ours."""
    from libramq.errors import LibraError

    if isinstance(error, LibraError):
        return " ".join(" ".join([str(error), *getattr(error, "__notes__", ())]).split())
    if isinstance(error, ModuleNotFoundError) and error.name in _POSIX_MODULES:
        return f"LibraMQ runs on Linux and macOS; this Python ({sys.platform}) has no module {error.name}"
    if isinstance(error, ExceptionGroup):
        return failure_line(error.exceptions[0])
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "no space left on the device; make room there, or write elsewhere"
    if isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: " if error.filename else ""
        if isinstance(error, FileExistsError | NotADirectoryError):
            if error.filename:
                path = Path(str(error.filename))
                named = f"{next((each for each in (path, *path.parents) if each.is_file()), path)}: "
            return f"{named}this is a file; name a directory"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return f"{named}too many open files; raise the limit (ulimit -n)"
        return f"{named}{error.strerror}; check that the path exists and is yours"
    format_message = getattr(error, "format_message", None)  # Errors of the command-line library.
    if format_message is None:
        return None
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "libra"
    return f"{str(format_message()).strip().rstrip('.')}; see {command} --help"
