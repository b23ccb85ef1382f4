import os
import subprocess
import sys

import pytest
from datasets import Dataset, DatasetDict

from tests.support.files import write_table
from truncate_kit.core.errors import DataError
from truncate_kit.data.pairs import is_hub_name, load_pairs
from truncate_kit.data.suites import read_trained_pairs

# In a process of its own: `datasets` reads its cache folder from the environment when it is imported.
READ = """
import sys
from truncate_kit.data.pairs import read_hub
for name in sys.argv[1:]:
    for split, table in read_hub(name).items():
        print(split, table.place, table.places[0], list(table.columns["sentence1"]), list(table.columns["score"]))
"""


def test_splits_come_through_datasets_and_a_configuration_after_a_colon(tmp_path):
    home = tmp_path
    files = {f"set/{split}": f"{split} a" for split in ("train", "validation", "test")}
    files |= {f"languages/{language}/train": language for language in ("de", "es")}
    for name, text in files.items():
        write_table(home / f"{name}.csv", ("sentence1", "sentence2", "score"), [(text, "b", 0.5)])
    names = "".join(f"- config_name: {language}\n  data_dir: {language}\n" for language in ("de", "es"))
    (home / "languages/README.md").write_text(f"---\nconfigs:\n{names}---\n")
    command = [sys.executable, "-c", READ, str(home / "set"), f"{home / 'languages'}:es"]
    environment = {**os.environ, "HF_HOME": str(home / "cache"), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "train row 1 ['train a'] [0.5]",
        "dev row 1 ['validation a'] [0.5]",
        "test row 1 ['test a'] [0.5]",
        "train row 1 ['es'] [0.5]",
    ]


def test_what_save_to_disk_writes_is_read(tmp_path):
    rows = [{"sentence1": f"a {place}", "sentence2": f"b {place}", "score": place / 40} for place in range(40)]
    whole = Dataset.from_list(rows)
    halves = DatasetDict(train=whole.select(range(8, 40)), validation=whole.select(range(8)).shuffle(seed=1))
    halves.save_to_disk(tmp_path / "halves")
    splits = load_pairs(tmp_path / "halves")
    assert {pair.first for pair in splits.dev} == {row["sentence1"] for row in rows[:8]}
    train = [(row["sentence1"], row["score"]) for row in rows[8:]]
    assert [(pair.first, pair.target) for pair in splits.train] == train
    assert len(read_trained_pairs(tmp_path / "halves")) == 40
    whole.save_to_disk(tmp_path / "whole")
    assert len(load_pairs(tmp_path / "whole").train) == 40
    (tmp_path / "whole/state.json").write_text("{}")
    with pytest.raises(DataError, match="whole: the data set cannot be read"):
        load_pairs(tmp_path / "whole")


def test_unreachable_hub_is_one_clear_error():
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(DataError, match="'sentence-transformers/stsb' is not a local path, and loading") as caught:
        load_pairs("stsb")
    assert "\n" not in str(caught.value)
    assert "bundled" in caught.value.hint


def test_names_and_paths_are_told_apart():
    assert all(map(is_hub_name, ("stsb", "sentence-transformers/stsb", "mteb/stsbenchmark-sts", "a/b:de")))
    assert not any(map(is_hub_name, ("a.csv", "data/pairs.jsonl.gz", "./stsb", "a/b/c", "/x", "../y", "", "a b")))
