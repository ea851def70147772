"""The tables of request codes and of mqadmin's commands say what the code does."""

from libramq.codes import RequestCode
from tests.docs.requests import CODES, COMMANDS, REASONS, command_rows, libra_commands, served

#: LibraMQ's own codes begin here.
OWN = range(31_000, 32_000)


def test_every_code_is_served_or_has_a_reason():
    by = served()
    assert {code for code in CODES if code not in by} <= set(REASONS)
    assert {code for code in by if code not in OWN} <= set(CODES)


def test_our_names_of_codes_are_apaches():
    ours = {int(code): code.name for code in RequestCode if code not in OWN}
    assert ours == {code: CODES[code] for code in ours}


def test_every_command_needs_known_codes():
    assert {code for command in COMMANDS for code in command.codes} <= set(CODES)
    names = [command.name for command in COMMANDS]
    assert len(names) == len(set(names))
    standings = {row[0]: row[2] for row in command_rows()}
    assert standings["`updateTopic`"] == "works"
    assert libra_commands() - {"audit"} <= set(names)  # Which is ours.
    assert standings["`electMaster`"].startswith("refused: there is no controller")
