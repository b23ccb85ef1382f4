"""What a study runs. Its TOML file may leave out all keys but `model` of a model and `data` of a task.

seeds = 3                        # their number, from 0
layers = "all"                   # or some, such as [3, 6, 9] or "2..5"
read_earlier = false             # true: also what a model trained at its last layer gives at earlier ones
cka = "bert, random weights"     # name of the model that the others are compared with by CKA
published = "reference"          # file or folder of published figures, to stand beside the scores

[training]                       # for all tasks, each of which may have its own
epochs = 10                      # and all of `TrainingSettings`; else 50 epochs of batch 128 for word similarity

[[models]]
model = "mini-electra-discriminator"

[[models]]
model = "mini-bert"
name = "bert, random weights"    # what tables call it
weights = "random"               # drawn once: all layers and seeds start from the same
pooling = "cls"                  # mean, cls, max or last; else the model's own
max_length = 64                  # tokens per text; else the model's limit
blocks = [1, 4, 6]               # these alone, or "1..3,6": layers are then those of the kept model; else all blocks
published = "BERT-base"          # what the figures call it; else its name

[[priors]]                       # what is learned before TMFT; an empty one is TMFT alone, as are none at all

[[priors]]
words = "wordsim"                # a folder of word similarity sets, learned at the same layer before each trial
tasks = ["bundled"]              # names of the tasks it goes before; else all

[[priors]]
texts = "domain.txt"             # raw text, adapted to by masked words
name = "in-domain"               # what tables call it; else what it is
layer = 6                        # the model is cut there before; else the last one
epochs = 3                       # over the texts
batch_size = 256                 # texts per step
learning_rate = 2e-5             # peak, of words as well; else by the model's width
precision = "fp32"               # or "bf16", of words as well

[[tasks]]
data = "bundled"                 # a file, a folder, for retrieval as well, or a name of the hub
name = "bundled"                 # what tables call it
columns = ["sentence1", "sentence2", "score"]   # else found
scale = [0, 5]                   # lowest and highest possible score; else found
objective = "cosine"             # and any other key of [training], for this task alone
read_earlier = true              # for this task alone
models = ["bert, random weights", "mini-electra-discriminator"]     # names of those that are trained on it; else all
published = "stsb/en"            # what the figures call the data; else its name

[[tasks]]
data = "bundled"
name = "by queries"
retrieval = "search"             # a retrieval folder: half its queries choose the epoch, the other half reports
search_metric = "ndcg"           # by which they do; or mrr, recall
"""

import hashlib
from dataclasses import dataclass

from truncate_kit.methods.priors import AdaptationSettings
from truncate_kit.results import Result
from truncate_kit.training.settings import TrainingSettings, word_training

_LONGEST = 50  # characters of a task in a name of a file, of up to four bytes each


def figure_name(task: str, kind: str) -> str:
    """File name of the figure of a task: curves, layers, pareto or cka."""
    name = "".join(char if char.isalnum() else "-" for char in task).strip("-")
    if len(name) > _LONGEST:  # file systems end at 255 bytes
        name = f"{name[:_LONGEST]}-{hashlib.sha256(task.encode()).hexdigest()[:8]}"
    return f"{kind}-{name}.png"


def part_label(model: "StudyModel", prior: "StudyPrior") -> str:
    """What tables call a model after a prior."""
    return f"{model.name}, {prior.name} first" if prior.name else model.name


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyModel(Result):
    """One model."""

    model: str  # folder, hub name or bundled miniature
    name: str  # what tables call it
    weights: str = "pretrained"  # `pretrained`, or `random`: drawn anew, shape and tokenizer stay
    pooling: str | None = None  # None is the model's own
    max_length: int | None = None  # tokens per text, None is the model's own limit
    published: str | None = None  # what the published figures call it, None where that is its name
    blocks: tuple[int, ...] | None = None  # those that are kept, whose layers are trained; None for all


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPrior(Result):
    """What models learn before TMFT: words, raw texts (then words, where both are given), or nothing."""

    name: str = ""  # what tables add to the model's name
    words: str | None = None  # folder of word similarity sets
    texts: str | None = None  # file of raw text
    layer: int | None = None  # where to cut before adapting to texts, None for the last one
    epochs: int = 10  # over the texts
    batch_size: int = 256  # texts of a step
    learning_rate: float | None = None  # peak rate of both, None follows the width
    precision: str = "fp32"  # of both
    tasks: tuple[str, ...] | None = None  # names of those it goes before, None for all

    def adaptation(self) -> AdaptationSettings:
        """How models adapt to the texts."""
        return AdaptationSettings(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate, precision=self.precision
        )

    def word_training(self) -> TrainingSettings:
        """How models learn the words."""
        return word_training(self.precision, self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTask(Result):
    """One task."""

    data: str  # file, folder or hub name; of a retrieval folder some queries teach, others choose and report
    name: str  # what tables call it
    training: TrainingSettings  # settings of its trials, objective included
    columns: tuple[str, ...] | None = None  # names of first text, second text and target, None finds them
    scale: tuple[float, ...] | None = None  # lowest and highest possible score, None finds it
    # whether to read as well what a model that was trained at its last layer gives at each earlier one
    read_earlier: bool = False
    published: str | None = None  # what the published figures call the data, None where that is its name
    models: tuple[str, ...] | None = None  # names of those that are trained on it, None for all
    # a retrieval folder whose queries choose and report in the place of pairs; None where pairs do, or those of `data`
    retrieval: str | None = None
    search_metric: str | None = None  # by which they do, None for ndcg

    @property
    def by_queries(self) -> bool:
        """Whether queries choose and report, in the place of pairs."""
        return self.retrieval is not None or self.training.row.data == "judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Result):
    """Models × priors × tasks × layers × seeds."""

    models: tuple[StudyModel, ...]
    priors: tuple[StudyPrior, ...]
    tasks: tuple[StudyTask, ...]
    layers: str  # `all`, or numbers as text
    seeds: int  # their number, from 0
    published: str | None  # file or folder of published figures (see `published`), or None
    # name of the model that the others are compared with by CKA, before and after fine-tuning, on the tasks of both;
    # None compares none
    cka: str | None = None

    def tasks_of(self, model: StudyModel, prior: StudyPrior) -> tuple[StudyTask, ...]:
        """The tasks that this model is trained on after this prior."""
        return tuple(
            task
            for task in self.tasks
            if (task.models is None or model.name in task.models) and (prior.tasks is None or task.name in prior.tasks)
        )
