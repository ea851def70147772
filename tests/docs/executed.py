"""An executed document: its fenced blocks are run in order, and what they print is what the document shows.

    python, sh      are run, in one namespace and in the current directory
    toml            is written to the file that its first line names: `# FILE`
    text            is what the block before it printed, without blank lines around it

    python -m tests.docs.executed FILE [--write]      runs it; with --write it puts in what was really printed

The block `libra up` is passed over: servers are up, and $NAMESRV_ADDR says where.
"""

import contextlib
import io
import subprocess
import sys
from pathlib import Path

from sybil import Document, Example
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

SERVERS = "libra up"
#: What is printed for the directory that the reader is in.
HERE = "/home/you/shop"
SHELL_SECONDS = 300


class Execution:
    """One run of a document. Raises AssertionError where it prints anything but what is shown."""

    def __init__(self, path: Path, *, is_writing: bool) -> None:
        self._path = path
        self._is_writing = is_writing
        self._printed = ""
        self._place = ""
        self._texts: list[str] = []
        self._python = PythonEvaluator()

    def run(self) -> None:
        parsers = {
            "python": self._run_python,
            "sh": self._run_shell,
            "toml": self._write,
            "text": self._compare,
        }
        document = Document.parse(str(self._path), *(CodeBlockParser(*pair) for pair in parsers.items()))
        for example in document.examples():
            example.evaluate()
        self._nothing_left()
        if self._is_writing:
            texts = [region for _, region in document.regions if region.evaluator == self._compare]
            text = document.text
            for region, printed in reversed(list(zip(texts, self._texts, strict=True))):
                text = f"{text[: region.start]}```text\n{printed}```{text[region.end :]}"
            self._path.write_text(text)

    def _run_python(self, example: Example) -> None:
        self._nothing_left()
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self._python(example)
        self._note(example, out.getvalue())

    def _run_shell(self, example: Example) -> None:
        self._nothing_left()
        if example.parsed.strip() == SERVERS:
            return
        command = ["bash", "-euo", "pipefail", "-c", example.parsed]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SHELL_SECONDS, check=False)
        assert done.returncode == 0, f"line {example.line}: exit code {done.returncode}\n{done.stdout}"
        self._note(example, done.stdout)

    def _write(self, example: Example) -> None:
        self._nothing_left()
        first, _, _ = example.parsed.partition("\n")
        Path(first.removeprefix("# ").split()[0]).write_text(example.parsed)

    def _compare(self, example: Example) -> None:
        shown = self._printed
        self._texts.append(shown)
        self._printed = ""
        if not self._is_writing:
            assert example.parsed == shown, f"line {example.line} shows\n{example.parsed}\nand not\n{shown}"

    def _note(self, example: Example, printed: str) -> None:
        lines = [line.rstrip() for line in printed.replace(str(Path.cwd()), HERE).splitlines()]
        self._printed = "\n".join(lines).strip("\n") + "\n"
        self._place = f"line {example.line}"

    def _nothing_left(self) -> None:
        assert not self._printed.strip(), f"what {self._place} printed is not shown:\n{self._printed}"


if __name__ == "__main__":
    Execution(Path(sys.argv[1]), is_writing="--write" in sys.argv[2:]).run()
