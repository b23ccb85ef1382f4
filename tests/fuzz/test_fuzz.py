"""A short run of the fuzzer: a fixed seed, which finds what came back, and a fresh one, which finds what is new.

At length: `python -m tests.fuzz --inputs 100000`.
"""

from random import Random, SystemRandom

import pytest

from tests.fuzz.__main__ import table
from tests.fuzz.attacks import TABLES
from tests.fuzz.attacks.attack import Attack
from tests.fuzz.commands import broken
from tests.fuzz.mutating import mutated
from tests.fuzz.readers import Reader, WrongError
from tests.fuzz.running import READERS, Fuzzer, Outcome, prepared, shares
from truncate_kit_cli.app import COMMANDS

INPUTS = 700
FRESH = SystemRandom().randrange(10**9)


@pytest.fixture(scope="module", params=[20261123, FRESH], ids=["fixed", "fresh"])
def fuzzer(request):
    with prepared(request.param) as one:
        yield one


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_no_changed_file_breaks_a_promise(fuzzer: Fuzzer, reader: Reader):
    outcome = Outcome()
    for number in range(shares(INPUTS, READERS)[reader.name]):
        fuzzer.run(reader, number, outcome)
    command = f"python -m tests.fuzz --seed {fuzzer.seed} --reader '{reader.name}'"
    assert not outcome.failures, f"{command} --only {outcome.failures[0][1]}: {outcome.failures[0]}"


def test_an_input_follows_from_its_seed_and_number():
    content = b'{"a": [1, 2.5, "x"]}\n' * 3
    copies = [mutated(content, Random("7 x 1"), as_json=True) for _ in range(2)]
    assert copies[0] == copies[1]
    assert len({mutated(content, Random(f"7 x {number}"), as_json=True) for number in range(50)}) > 40


def test_what_breaks_a_promise_is_found_and_stands_in_the_table(tmp_path):
    """Readers that break each promise in turn."""

    def wrong(folder):
        raise WrongError("taken")

    def raw(folder):
        raise KeyError("x")

    def outside(folder):
        (tmp_path / "out").write_text("x")

    def changed(folder):
        return (folder / "f.txt").read_text(errors="replace")

    def make(folder):
        (folder / "f.txt").write_text("a text of some length, 12345")

    found = Outcome()
    with prepared(1) as fuzzer:
        for name, read in {"wrong": wrong, "raw": raw, "outside": outside, "changed": changed}.items():
            for number in range(3):
                one = Reader(name=name, files=("f.txt",), make=make, read=read, sealed=name == "changed")
                fuzzer.run(one, number, found)
    assert found.counts["wrong"] >= 5
    assert (found.counts["raw exception"], found.counts["written outside"]) == (3, 3)
    said = table({"all of them": found}, 1, 2.0)
    assert "raw exception: KeyError: \"'x'\"" in said
    assert "| all of them | 12 |" in said


@pytest.mark.parametrize("name", TABLES)
def test_every_attack_has_a_name_of_its_own_and_a_command_that_is_there(name, tmp_path):
    attacks = list(TABLES[name](tmp_path))
    assert len({attack.name for attack in attacks}) == len(attacks) > 50
    assert {attack.words[0] for attack in attacks} <= set(COMMANDS)


SAID = {
    "": [],
    "Traceback (most recent call last)": ["defect", "no error with a hint"],
    "Error: a\nHint: \x1b[31mb": ["escapes"],
    "Error: a\nHint: b": [],
}


@pytest.mark.parametrize("said", SAID)
def test_what_a_command_says_is_judged(said, tmp_path):
    attack, code = Attack(name="", words=("cut",)), int(bool(said))
    found = list(broken(attack, tmp_path, code, "", said, hung=False))
    assert [text.partition(":")[0] for text in found] == SAID[said]
    assert next(iter(broken(attack, tmp_path, 70, "", said, hung=False))).startswith("exit code 70")
    assert list(broken(attack, tmp_path, -9, "", said, hung=True)) == ["hang"]
