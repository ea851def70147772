"""The source uses the field's words: `scripts/words` counts the exceptions."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_private_words_and_roundabout_sentences_stay_within_their_bounds() -> None:
    """The script exits with 1 when a count exceeds its bound, and lists the places."""
    result = subprocess.run(
        [sys.executable, ROOT / "scripts" / "words", "--list"], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stdout
