"""Schemas of `--json`: documents of results fit, damaged ones do not.

Documents of real commands are checked wherever a test runs one (`tests.support.commands`).
"""

import json

import jsonschema
import pytest

from tests.support.commands import check_json, run
from tests.support.made_results import (
    a_bench,
    a_combination,
    a_contrast,
    a_distillation,
    a_sweep,
    an_export,
    some_heads,
)
from truncate_kit.core.results import FORMAT
from truncate_kit_cli.app import COMMANDS, command_of, function_of

MADE = {
    "finetune": a_sweep(),
    "bench": a_bench(),
    "export": an_export(),
    "distill": a_distillation(),
    "contrast": a_contrast(),
    "freeze": some_heads(),
    "combine": a_combination(2),
}


def document(command):
    return {"format": FORMAT} | json.loads(MADE[command].to_json())


def test_every_command_that_prints_json_has_a_schema():
    commands = {name: command_of(name) for name in COMMANDS}
    printing = {name for name, command in commands.items() if any("--json" in one.opts for one in command.params)}
    assert printing == {*COMMANDS} - {"demo"}
    for command in printing:
        assert function_of(command).result
        jsonschema.Draft202012Validator.check_schema(json.loads(function_of(command).schema()))


def test_a_command_prints_its_schema_and_does_nothing_else(capfd):
    assert json.loads(run(capfd, "finetune", "--json-schema")) == json.loads(function_of("finetune").schema())


@pytest.mark.parametrize("command", MADE)
def test_results_fit(command):
    check_json(command, json.dumps(document(command)))


@pytest.mark.parametrize(
    "damage",
    [{"chosen": "three"}, {"layers": [{}]}, {"settings": {}}, {"format": FORMAT + 1}, {"search_cost": True}],
    ids=str,
)
def test_what_is_no_such_result_does_not_fit(damage):
    with pytest.raises(jsonschema.ValidationError):
        check_json("finetune", json.dumps(document("finetune") | damage))
