"""Executed documents: their fenced blocks and examples are run in order, and print what the documents show.

    python          is run, in one namespace for each document
    sh              is run in the current directory; `libra up` starts servers, which all documents use
    toml            is written to the file that its first line names: `# FILE`; without one it is passed over
    properties      likewise
    text            is what the block before it printed, without blank lines around it; `…`: anything
    output          is an example of what the block before it prints: only its heading must have been printed

Of an example, a Python file, the lines behind "It prints:" in its docstring are compared.

    python -m tests.docs.executed [--write] FILE...     runs them; with --write it puts in what was printed

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
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

SERVERS: Final = "libra up"
OWN_SERVERS: Final = ("libra nameserver -c", "libra up --brokers")
#: What is printed for the directory that the reader is in.
HERE: Final = "/home/you/shop"
SHELL_SECONDS: Final = 300
#: The arguments of examples that would otherwise run for ever.
ARGUMENTS: Final = {"consume.py": ["3"], "fetch.py": ["3"], "record_batches.py": ["3"]}
_PRINTS: Final = "It prints:\n"


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
        self._place = ""
        self._shown: list[str] = []
        self._python = PythonEvaluator()

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
            "output": self._compare_heading,
        }
        document = Document.parse(str(self._path), *(CodeBlockParser(*pair) for pair in parsers.items()))
        for example in document.examples():
            began = time.monotonic()
            example.evaluate()
            if (seconds := time.monotonic() - began) > 1:
                print(f"{self._path.name}:{example.line} took {seconds:.1f} s", file=sys.stderr)
        self._nothing_left()
        if self._is_writing:
            shows = (self._compare, self._compare_heading)
            regions = [region for _, region in document.regions if region.evaluator in shows]
            text = document.text
            for region, printed in reversed(list(zip(regions, self._shown, strict=True))):
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
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self._python(example)
        self._note(example, out.getvalue())

    def _run_shell(self, example: Example) -> None:
        self._nothing_left()
        if "pip install" in example.parsed:
            return
        if example.parsed.strip().partition("  ")[0] == SERVERS:
            self._servers.start()
            return
        command = ["bash", "-euo", "pipefail", "-c", example.parsed]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SHELL_SECONDS, check=False)
        assert done.returncode == 0, f"line {example.line}: exit code {done.returncode}\n{done.stdout}"
        self._note(example, done.stdout)

    def _write(self, example: Example) -> None:
        self._nothing_left()
        if named := re.match(r"# (\S+)\n", example.parsed):
            Path(named[1]).write_text(example.parsed)

    def _compare(self, example: Example) -> None:
        self._show(example, _matches(example.parsed, self._printed))

    def _compare_heading(self, example: Example) -> None:
        heading = example.parsed.split("\n")[0].split()
        self._show(example, heading in (line.split() for line in self._printed.splitlines()))

    def _show(self, example: Example, is_right: bool) -> None:
        shown = self._printed
        self._printed = ""
        self._shown.append(example.parsed if is_right else shown)
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
