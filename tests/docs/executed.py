"""Executed documents: their fenced blocks and examples are run in order, and print what the documents show.

    python          is pasted into `python -i`, if the document says "paste" above it; if the text right above
                    says "save … as `FILE`" (存为) or "add … to `FILE`", it is in FILE, which Python or pytest
                    runs
    sh              is run in the current directory; `libra up` starts servers, which all documents use
    toml            is written to the file that its first line names: `# FILE`; without one it is passed over
    properties      likewise
    text            is what the block before it printed, without blank lines around it; `…`: anything
    output          likewise, as a table: widths of columns, times, ids of clients, percentages and fractions
                    may be others

Of an example, a Python file, the lines behind "It prints:" in its docstring are compared.

    python -m tests.docs.executed [--write] FILE...     runs them; with --write it puts in what was printed

A block is pasted with an empty line behind it. Values that the prompt shows by itself are not compared. The
prompt is the basic one of Python 3.11 and 3.12, also where a newer Python runs the tests.

Blocks that install something are skipped: it is installed already. Documents find the servers at the usual
port. If `libra up` reports that it is taken, $NAMESRV_ADDR has the address, as the documents tell readers.
"""

import ast
import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sybil import Document, Example
from sybil.parsers.markdown import CodeBlockParser

SERVERS: Final = "libra up"
OWN_SERVERS: Final = ("libra nameserver -c", "libra up --brokers", "mqnamesrv -c")
#: What is printed for the directory that the reader is in.
HERE: Final = "/home/you/shop"
SHELL_SECONDS: Final = 300
END_SECONDS: Final = 60
#: How long a group takes until it is as a page shows it.
LOOKS_SECONDS: Final = 60
#: The arguments of examples that would otherwise run for ever.
ARGUMENTS: Final = {"consume.py": ["3"], "fetch.py": ["3"], "record_batches.py": ["3"]}
_PRINTS: Final = "It prints:\n"
_FILE: Final = re.compile(
    r"(?:\bsave\b[^`.:]*\bas|存为|\b(add)\b[^`.:]*\bto)\s`([\w./-]+\.py)`", re.IGNORECASE
)
#: What differs from run to run in tables.
_VARYING: Final = (
    (re.compile(r"127\.0\.0\.1@\d+(#\d+)?"), "CLIENT"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "DATE"),
    (re.compile(r"\d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\d+(\.\d+)?(%| ms)"), "NUMBER"),
    (re.compile(r"\d+\.\d+\b"), "NUMBER"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"[ \t]+"), " "),
)


class Interpreter:
    """`python -i`, into which blocks are pasted; an exception ends it."""

    _END: Final = "that was the block"
    #: No prompts, nor values of expressions.
    _SETUP: Final = """\
import sys as _sys, traceback as _traceback, os as _os
_sys.ps1 = _sys.ps2 = ""
_sys.displayhook = lambda value: None
_sys.excepthook = lambda *error: (print(*_traceback.format_exception(*error), flush=True), _os._exit(1))
"""

    def __init__(self) -> None:
        command = [sys.executable, "-i", "-q"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.paste(self._SETUP)

    def paste(self, block: str) -> str:
        """Paste a block and an empty line; return what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{block.rstrip()}\n\nprint('\\n{self._END}', flush=True)\n")
        self._process.stdin.flush()
        printed = []
        for line in self._process.stdout:
            if line.strip() == self._END:
                return "".join(printed)
            printed.append(line)
        raise AssertionError(f"pasted into python -i:\n{block}\n{''.join(printed)}")

    def end(self) -> None:
        """End it as Ctrl-D does."""
        try:
            self._process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise


class Servers:
    """`libra up`, as the documents say, in the current directory."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the servers, unless they are running."""
        if self._process is not None:
            return
        self._process = subprocess.Popen(SERVERS.split(), stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"is up: name server ([\d.]+:\d+)", line):
                if found[1] != "127.0.0.1:9876":
                    os.environ["NAMESRV_ADDR"] = found[1]
                return
        raise AssertionError("libra up has not started")

    def stop(self) -> None:
        """Stop the servers as Ctrl-C does."""
        if self._process is not None:
            self._process.terminate()
            self._process.communicate(timeout=60)


class Execution:
    """One run of a document. It raises AssertionError if the output differs from what is shown."""

    def __init__(self, path: Path, servers: Servers, *, is_writing: bool) -> None:
        self._path = path
        self._servers = servers
        self._is_writing = is_writing
        self._printed = ""
        self._command = ""
        self._place = ""
        self._replaced: list[str | None] = []
        self._interpreter: Interpreter | None = None

    def run(self) -> None:
        if self._path.suffix == ".py":
            self._run_example()
            return
        parsers = {
            "python": self._run_python,
            "sh": self._run_shell,
            "toml": self._write,
            "properties": self._write,
            "text": self._compare,
            "output": self._compare_table,
        }
        document = Document.parse(str(self._path), *(CodeBlockParser(*pair) for pair in parsers.items()))
        try:
            for example in document.examples():
                began = time.monotonic()
                example.evaluate()
                if (seconds := time.monotonic() - began) > 1:
                    print(f"{self._path.name}:{example.line} took {seconds:.1f} s", file=sys.stderr)
        finally:
            if self._interpreter is not None:
                self._interpreter.end()
        self._nothing_left()
        if self._is_writing:
            shows = (self._compare, self._compare_table)
            regions = [region for _, region in document.regions if region.evaluator in shows]
            text = document.text
            for region, printed in reversed(list(zip(regions, self._replaced, strict=True))):
                if printed is None:
                    continue
                opening = text[region.start :].partition("\n")[0]
                text = f"{text[: region.start]}{opening}\n{printed}```{text[region.end :]}"
            self._path.write_text(text)

    def _run_example(self) -> None:
        docstring = ast.get_docstring(ast.parse(self._path.read_text())) or ""
        lines = docstring.partition(_PRINTS)[2].strip("\n").splitlines()
        shown = "".join(f"{line.removeprefix('    ')}\n" for line in lines)
        sys.argv = [str(self._path), *ARGUMENTS.get(self._path.name, [])]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(str(self._path), run_name="__main__")
        printed = _tidy(out.getvalue())
        assert _matches(shown, printed), f"{self._path.name} shows\n{shown}\nand printed\n{printed}"

    def _run_python(self, example: Example) -> None:
        self._nothing_left()
        above = example.document.text[: example.region.start]
        files = list(_FILE.finditer(above.rpartition("```")[2]))
        if files:
            self._note(
                example, self._run_file(Path(files[-1][2]), example.parsed, is_added=bool(files[-1][1]))
            )
            return
        place = f"{self._path.name}: line {example.line}"
        assert re.search(r"\bpaste", above, re.IGNORECASE), f'{place} says neither "paste" nor "save as"'
        self._interpreter = self._interpreter or Interpreter()
        self._note(example, self._interpreter.paste(example.parsed))

    @staticmethod
    def _run_file(file: Path, block: str, *, is_added: bool) -> str:
        """Save a block, alone or behind what is in the file, and run it; return what it printed."""
        file.write_text(f"{file.read_text()}\n\n{block}" if is_added else block)
        is_test = file.name.startswith("test_")
        command = [
            sys.executable,
            *(["-m", "pytest", "-q", "-p", "no:cacheprovider"] if is_test else []),
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SHELL_SECONDS, check=False)
        assert done.returncode == 0, f"{file}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return "" if is_test else done.stdout

    def _run_shell(self, example: Example) -> None:
        self._nothing_left()
        if "pip install" in example.parsed:
            return
        if example.parsed.strip().partition("  ")[0] == SERVERS:
            self._servers.start()
            return
        self._command = example.parsed
        self._note(example, self._shell(self._command))

    @staticmethod
    def _shell(command: str) -> str:
        bash = ["bash", "-euo", "pipefail", "-c", command]
        done = subprocess.run(bash, stdout=subprocess.PIPE, text=True, timeout=SHELL_SECONDS, check=False)
        assert done.returncode == 0, f"exit code {done.returncode}: {command}\n{done.stdout}"
        return done.stdout

    def _write(self, example: Example) -> None:
        self._nothing_left()
        if named := re.match(r"# (\S+)\n", example.parsed):
            Path(named[1]).write_text(example.parsed)

    def _compare(self, example: Example) -> None:
        self._show(example, _matches(example.parsed, self._printed))

    def _compare_table(self, example: Example) -> None:
        """Compare a table; a command of one line, which only looks, is repeated until it is as shown."""
        expected = _constant(example.parsed)
        until = time.monotonic() + LOOKS_SECONDS
        while not _matches(expected, _constant(self._printed)) and self._command.count("\n") == 1:
            if time.monotonic() > until:
                break
            self._printed = _tidy(self._shell(self._command))
        self._show(example, _matches(expected, _constant(self._printed)))

    def _show(self, example: Example, is_right: bool) -> None:
        shown = self._printed
        self._printed = ""
        self._replaced.append(None if is_right else shown)
        if not self._is_writing:
            assert is_right, (
                f"{self._path.name}: line {example.line} shows\n{example.parsed}\nand not\n{shown}"
            )

    def _note(self, example: Example, printed: str) -> None:
        self._printed = _tidy(printed)
        self._place = f"line {example.line}"

    def _nothing_left(self) -> None:
        assert not self._printed.strip(), (
            f"{self._path.name}: what {self._place} printed is not shown:\n{self._printed}"
        )


def _tidy(printed: str) -> str:
    lines = [line.rstrip() for line in printed.replace(str(Path.cwd()), HERE).splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


def _constant(printed: str) -> str:
    """Return a table without what differs from run to run."""
    for pattern, name in _VARYING:
        printed = pattern.sub(name, printed)
    return "\n".join(line.strip() for line in printed.splitlines())


def _matches(shown: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in shown.rstrip("\n").split("…"))
    return re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL) is not None


def run_all(paths: Iterator[Path], *, is_writing: bool) -> None:
    """Run documents one after another, with the same servers; one that starts its own gets no others."""
    servers = Servers()
    try:
        for path in paths:
            text = path.read_text()
            if f"```sh\n{SERVERS}" not in text and not any(
                own in text for own in OWN_SERVERS
            ):  # It says that they are up.
                servers.start()
            Execution(path, servers, is_writing=is_writing).run()
    finally:
        servers.stop()


if __name__ == "__main__":
    run_all((Path(name) for name in sys.argv[1:] if name != "--write"), is_writing="--write" in sys.argv)
