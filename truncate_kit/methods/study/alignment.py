"""CKA of a model's layers to a reference's, before and after fine-tuning, as the TMFT paper compares them.

The states of the test texts are kept beside the trials, not the weights that gave them: they are a fraction of the
size, and a study that is stopped continues with them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from truncate_kit.analysis.cka import cka_matrix
from truncate_kit.analysis.compare import relative_layers, without_nan
from truncate_kit.analysis.settings import Estimator
from truncate_kit.errors import DataError
from truncate_kit.methods.study.study_result import CKARow
from truncate_kit.methods.tmft.trials import TrialRunner
from truncate_kit.models import Encoder, layers_held
from truncate_kit.models.states import layer_states
from truncate_kit.training.settings import Trial, trial_name
from truncate_kit.training.tasks import LabelledTask

SEED = 0  # the seed whose models are compared; the TMFT paper compares one model per layer, too

MOST_TEXTS = 4_096  # beyond, every second or third text is left out


@dataclass(frozen=True, slots=True)
class LayerStates:
    """States (n, d) of one model's layers on the test texts of one task, at the three stages that are compared."""

    name: str  # what tables call the model
    runner: TrialRunner
    texts: list[str]

    @classmethod
    def of(cls, name: str, runner: TrialRunner) -> "LayerStates":
        """Of a model and the texts of its task. Raises `DataError` for a task without labelled pairs."""
        if not isinstance(runner.task, LabelledTask):
            raise DataError("CKA is read on the texts of labelled pairs.", hint="Leave out cka.")
        texts = runner.task.test_texts(SEED)
        return cls(name, runner, texts[:: -(-len(texts) // MOST_TEXTS)])

    @property
    def depth(self) -> int:
        """L of the model."""
        return self.runner.full.depth

    def collect(self, layers: Sequence[int]) -> None:
        """Run the trials of these layers, and have the states of each stage."""
        for layer in layers:  # one whose states were still missing when the study was stopped
            if self.runner.store.has_weights(self._name(layer)):
                self._read(self.runner.run(layer, SEED))
        # Read as soon as a trial is finished: its weights then go. One that was finished without is not run again.
        new = [(layer, SEED) for layer in layers if self.runner.stored(layer, SEED) is None]
        for trial in self.runner.as_finished(new, keep_weights=True):
            self._read(trial)
        self.untrained()
        self.last_trained()

    def _name(self, layer: int) -> str:
        return trial_name(layer, SEED, self.runner.settings.epochs)

    def _read(self, trial: Trial) -> None:
        store = self.runner.store
        if trial.layer < self.depth:
            store.tensor(_own(trial.layer), lambda: self._trained(trial)[-1])
            store.forget_weights({self._name(self.depth)})

    def _trained(self, trial: Trial) -> Tensor:
        trained = self.runner.store.encoder(trial.name, self.runner.full.device)
        return self._states(trained, f"trained at layer {trial.layer}")

    def _states(self, encoder: Encoder, stage: str) -> Tensor:
        def progress(task: str, done: int, total: int) -> None:
            self.runner.watcher.progress(f"Reading states of {self.name}, {stage}", done, total)

        return layer_states(encoder, self.texts, progress=progress)

    def untrained(self) -> Tensor:
        """(L', n, d) of the model before any training for the task."""
        return self.runner.store.tensor("states-untrained", lambda: self._states(self.runner.full, "untrained"))

    def last_trained(self) -> Tensor:
        """(L', n, d) of the model trained at its last layer, which is run again where its weights are gone."""
        store = self.runner.store

        def read() -> Tensor:
            return self._trained(self.runner.run(self.depth, SEED, keep_weights=True))

        return store.tensor("states-last-layer-trained", read)

    def stages(self) -> tuple[Callable[[int], Tensor | None], ...]:
        """For each stage what gives the states (n, d) of a layer: untrained, trained at the last layer, at this one."""
        untrained, last = self.untrained(), self.last_trained()

        def own(layer: int) -> Tensor | None:
            return last[layer] if layer == self.depth else self.runner.store.read_tensor(_own(layer))

        return untrained.__getitem__, last.__getitem__, own


def cka_rows(model: LayerStates, reference: LayerStates, task: str) -> Iterator[CKARow]:
    """Linear CKA of each layer to the reference's at the same relative depth, both at the same stage."""
    pairs = list(zip(model.stages(), reference.stages(), strict=True))
    held = layers_held(model.runner.full.backbone.config)
    for layer, other in enumerate(relative_layers(model.depth, reference.depth)):
        if layer in held:
            states = [(mine(layer), theirs(other)) for mine, theirs in pairs]
            untrained, last, own = (_cka(*both, "debiased") for both in states)
            biased = [_cka(*both, "biased") for both in states]
            yield CKARow(
                model=model.name,
                reference=reference.name,
                task=task,
                layer=layer,
                reference_layer=other,
                untrained=untrained,
                last_trained=last,
                own_trained=own,
                num_texts=len(model.texts),
                untrained_biased=biased[0],
                last_trained_biased=biased[1],
                own_trained_biased=biased[2],
            )


def _cka(mine: Tensor | None, theirs: Tensor | None, estimator: Estimator) -> float | None:
    """None where one of the two is not there, or its states do not differ."""
    if mine is None or theirs is None:
        return None
    return without_nan(cka_matrix(mine[None], theirs[None], estimator=estimator, undefined="nan")[0])[0]


def _own(layer: int) -> str:
    return f"states-layer{layer:02d}-trained"
