"""The file of a study: what its page, --help and the plan say of it, the paper's own, and what is said of a slip."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.files import words_folder
from truncate_kit.core.errors import DataError, DeviceError, UsageError
from truncate_kit.core.hardware import INSTRUCTIONS
from truncate_kit.methods.study.plan import Study, StudyModel, StudyPrior, StudyTask, read_study
from truncate_kit.methods.study.result import read_published
from truncate_kit.methods.study.running import check_published, check_study, load_model, task_data
from truncate_kit.training.settings import AdaptationSettings, TrainingSettings

ROOT = Path(__file__).resolve().parents[3]
PAPER = ROOT / "benchmarks/tmft/paper.toml"
EVERYDAY = {"objective", "epochs", "batch_size", "learning_rate", "precision", "training"}
SETTINGS = {field.name for kind in (TrainingSettings, AdaptationSettings) for field in fields(kind)}
KEYS = {field.name for kind in (Study, StudyModel, StudyPrior, StudyTask) for field in fields(kind)}
KEYS = KEYS - SETTINGS | EVERYDAY


def study_page() -> str:
    return (ROOT / "docs/guides/study.md").read_text(encoding="utf-8")


def read(folder: Path, text: str) -> Study:
    (folder / "study.toml").write_text(text, encoding="utf-8")
    return read_study(folder / "study.toml")


def test_the_example_of_the_page_is_a_study(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", study_page(), flags=re.DOTALL)
    study = read(tmp_path, example)
    assert {model.weights for model in study.models} == {"pretrained", "random"}
    assert {task.data for task in study.tasks} == {"bundled"}
    whole = re.sub(r"^# (?=\S+( =|\]))", "", example, flags=re.MULTILINE)  # what stands there as a comment, too
    study = read(tmp_path, whole.replace("# [[", "[["))
    assert [prior.name for prior in study.priors] == ["", "words", "in-domain"]
    assert study.published == str(tmp_path / "FOLDER")


def test_page_and_help_name_every_key(capfd):
    for text in (run(capfd, "study", "--help"), study_page()):
        assert {key for key in KEYS if not re.search(rf"\b{key}\b", text)} == set()


def test_paths_count_from_the_file_alone(tmp_path, monkeypatch):
    """Not from the folder in which the command runs, where another file of that name may be."""
    here, home = tmp_path / "here", tmp_path / "home"
    home.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    for name in ("pairs.csv", "sets/train.csv", "bundled/train.csv"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("sentence1,sentence2,score\na,b,1\n")
    text = '[[models]]\nmodel = "mini-bert"\n[[tasks]]\ndata = "{}"\n'
    for name in ("pairs.csv", "./pairs.csv", "../home/pairs.csv", "sets"):
        (task,) = read(home, text.format(name)).tasks
        with pytest.raises(DataError, match=f"{home}/.*{Path(name).name} does not exist"):
            task_data(task)
    assert {task.data for task in read(home, text.format("bundled")).tasks} == {"bundled"}


@pytest.mark.parametrize(("given", "layers"), [("[2, 5, 8]", "2,5,8"), ("5", "5"), ('"2..5"', "2..5"), ("[]", "")])
def test_layers_are_a_list_a_number_or_text(tmp_path, given, layers):
    tables = '[[models]]\nmodel = "mini-bert"\n[[tasks]]\ndata = "bundled"\n'
    assert read(tmp_path, f"layers = {given}\n{tables}").layers == layers


def test_all_models_and_sets_of_the_papers_study_are_published(shared_data, monkeypatch):
    monkeypatch.setenv("DATA", str(shared_data))
    monkeypatch.setenv("ALL_NLI", "none.tsv")
    study = read_study(PAPER)
    figures = read_published(study.published)
    check_published(study, figures)
    models = {model.published or model.name for model in study.models if model.weights == "pretrained"}
    assert models == {place[0] for place in figures}
    data = {task.published or task.name for task in study.tasks}
    assert data == {place[1] for place in figures} | {"stsb/en random weights", "wordsim"}
    words = next(task for task in study.tasks if task.name == "wordsim")
    assert (words.training.epochs, words.training.batch_size) == (50, 128)
    for task in study.tasks:
        assert task_data(task)[0].test is not None or task is words


def test_word_similarity_is_trained_on_as_finetune_does(tmp_path):
    words_folder(tmp_path / "words")
    models = '[[models]]\nmodel = "mini-bert"\n'
    tasks = (
        '[[tasks]]\ndata = "words"\n[[tasks]]\ndata = "words"\nname = "short"\nepochs = 2\n'
        '[[tasks]]\ndata = "bundled"\n'
    )
    words, short, sentences = read(tmp_path, models + tasks).tasks
    assert task_data(words)[0].shares is not None
    assert (words.training.epochs, words.training.batch_size) == (50, 128)
    assert (short.training.epochs, short.training.batch_size) == (2, 128)
    assert sentences.training == TrainingSettings()
    study = read(tmp_path, f"training = {{ batch_size = 8 }}\n{models}{tasks}")
    assert [task.training.batch_size for task in study.tasks] == [8, 8, 8]
    assert [task.training.epochs for task in study.tasks] == [50, 2, 10]


def test_a_prior_has_settings_of_its_own(tmp_path):
    models = '[[models]]\nmodel = "mini-bert"\n[[tasks]]\ndata = "bundled"\n'
    prior = 'priors = [{ texts = "a.txt", epochs = 3, batch_size = 64, learning_rate = 1e-4, precision = "bf16" }]\n'
    (found,) = read(tmp_path, prior + models).priors
    settings = AdaptationSettings(epochs=3, batch_size=64, learning_rate=1e-4, precision="bf16")
    assert found.adaptation == settings


ONE, TASK = '[[models]]\nmodel = "a"\n', '[[tasks]]\ndata = "d"\n'
NAMED = '[[models]]\nmodel = "a"\nname = "A"\n[[models]]\nmodel = "b"\nname = "A, x first"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seeds = ", "not TOML"),
        (f"tasks = []\n{ONE}", "needs models and tasks"),
        (f"models = 3\n{TASK}", "is not a valid study"),
        (f'[[models]]\nname = "m"\n{TASK}', "model: Field required"),
        (f"{ONE}size = 3\n{TASK}", "models.0.size: "),
        (f'{ONE}weights = "heavy"\n{TASK}', "weights: "),
        (f"{ONE}{ONE}{TASK}", "Two parts have the name 'a'"),
        (f'{NAMED}{TASK}[[priors]]\n[[priors]]\nname = "x"\ntexts = "t"', "Two parts have the name 'A, x first'"),
        (f"seeds = 0\n{ONE}{TASK}", "`seeds` 0 is out of range"),
        (f'cka = "x"\n{ONE}{TASK}', "does not define 'x'"),
        (f'layers = "auto"\n{ONE}{TASK}', "does not search layers"),
        (f"{ONE}{TASK}[training]\nepoch = 3", "tasks.0.epoch: "),
        (f'{ONE}{TASK}objective = "luck"', "'luck'"),
        (f"{ONE}{TASK}epochs = true", "epochs: "),
        (f"{ONE}blocks = []\n{TASK}", "not a list of blocks"),
        (f"{ONE}blocks = 3\n{TASK}", "models.0.blocks: "),
        (f'{ONE}{TASK}objective = "search"', "the objective search does not suit"),
        (f"read_earlier = 1\n{ONE}{TASK}", "read_earlier: "),
        (f'{ONE}[[tasks]]\ndata = "$NOT_SET_ANYWHERE/x"', "environment variable"),
        (f'{ONE}{TASK}models = ["c"]', "does not define 'c'"),
        (f"{ONE}{TASK}models = []", "No task uses the model 'a'"),
        (f'{ONE}{TASK}[[priors]]\ntasks = ["x"]', "does not define 'x'"),
        (f"{ONE}{TASK}[[priors]]\nbatch_size = 8", "A prior has batch_size, but no texts"),
        (f'{ONE}{TASK}[[priors]]\nwords = "w"\nlayer = 2', "A prior has layer, but no texts"),
        (f'{ONE}{TASK}[[priors]]\ntexts = "t"\nprecision = "fp8"', r"\.toml: .*`precision` 'fp8'"),
    ],
)
def test_mistakes_are_named(tmp_path, text, words):
    with pytest.raises((UsageError, DataError), match=words) as problem:
        read(tmp_path, text)
    assert problem.value.hint


def test_a_model_may_read_less_of_a_text(tiny_folder):
    model = StudyModel(model=str(tiny_folder("bert")), name="short", max_length=6)
    assert load_model(model).max_length == 6


def test_bf16_without_its_instructions_is_said_before_the_first_training(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv(INSTRUCTIONS, "avx2")
    models = f'[[models]]\nmodel = "{tiny_folder("bert")}"\n[[tasks]]\ndata = "bundled"\n'
    (tmp_path / "raw.txt").write_text("a\n")
    with pytest.raises(DeviceError, match="no bf16 instructions"):
        check_study(read(tmp_path, f'{models}precision = "bf16"\n'))
    with pytest.raises(DeviceError, match="no bf16 instructions"):
        check_study(read(tmp_path, f'{models}[[priors]]\ntexts = "raw.txt"\nprecision = "bf16"\n'))
    check_study(read(tmp_path, f"{models}[[priors]]\n"))
