"""Schemas of `--json`: those in the package are those of the classes; documents of commands fit, damaged ones do not.

Documents of real commands are checked wherever a test runs one (`tests.support.commands`).
"""

import json

import jsonschema
import pytest
import typer.main

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
from truncate_kit.results import FORMAT
from truncate_kit_cli.app import app
from truncate_kit_cli.schemas import RESULTS, made_schema, schema_text

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
    commands = typer.main.get_command(app).commands
    assert set(RESULTS) == {
        name for name, command in commands.items() if any("--json" in one.opts for one in command.params)
    }


@pytest.mark.parametrize("command", RESULTS)
def test_the_schema_of_the_package_is_that_of_the_classes(command, capfd):
    assert schema_text(command) == made_schema(command), "python -m truncate_kit_cli.schemas writes them anew"
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text(command)))
    assert f"format-{FORMAT}:{command}" in schema_text(command)


def test_a_command_prints_its_schema_and_does_nothing_else(capfd):
    assert run(capfd, "finetune", "--json-schema") == schema_text("finetune")


@pytest.mark.parametrize("command", MADE)
def test_results_fit(command):
    check_json(command, json.dumps(document(command)))


@pytest.mark.parametrize(
    "damage",
    [
        {"chosen": "three"},
        {"chosen": 2.5},
        {"layers": None},
        {"layers": [{}]},
        {"settings": {}},
        {"format": FORMAT + 1},
        {"learning_rate": "fast"},
        {"search_cost": True},
    ],
    ids=str,
)
def test_what_is_no_such_result_does_not_fit(damage):
    with pytest.raises(jsonschema.ValidationError):
        check_json("finetune", json.dumps(document("finetune") | damage))


@pytest.mark.parametrize("field", sorted(document("finetune")))
def test_every_field_is_there(field):
    left = {name: value for name, value in document("finetune").items() if name != field}
    with pytest.raises(jsonschema.ValidationError):
        check_json("finetune", json.dumps(left))
