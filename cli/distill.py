"""`truncate-kit distill`: the model cut at a layer learns the full model's vectors of raw text, without labels."""

from pathlib import Path
from typing import Annotated

from truncate_kit.errors import UsageError
from truncate_kit.sweep.settings import SweepSettings
from truncate_kit.training.configuration import TrainingSettings

from . import options
from .machine import Machine
from .options import data_option, training_option, use_threads
from .pushing import check_push, push
from .sweeps import show
from .workspace import Workspace

SWEEP, TRAINING = SweepSettings(), TrainingSettings(objective="distill")
SEEDS = len(SWEEP.seeds)


def distill(
    model: options.Model = None,
    texts: Annotated[
        Path | None, data_option("Raw text to learn from, some thousand sentences or more; needed.")
    ] = None,
    data: Annotated[
        str | None, data_option("Graded pairs to judge on, as for finetune; by default closeness to the full model.")
    ] = None,
    columns: options.Columns = None,
    scale: options.Scale = None,
    pooling: options.Pooling = None,
    max_length: options.MaxLength = None,
    layer: options.Layers = SWEEP.layers,
    vocabulary_from: options.VocabularyFrom = None,
    seeds: options.Seeds = SEEDS,
    epochs: Annotated[int, training_option("The best on dev is kept.")] = TRAINING.epochs,
    batch_size: Annotated[int, training_option("Texts per step.")] = TRAINING.batch_size,
    learning_rate: options.Rate = TRAINING.learning_rate,
    precision: options.Precision = TRAINING.precision,
    engine: options.Engine = "local",
    workers: options.Workers = None,
    ray_address: options.RayAddress = None,
    gpus_per_worker: options.Gpus = None,
    device: options.Device = None,
    threads: options.Threads = None,
    folder: options.WorkspaceFolder = options.WORKSPACE,
    tensorboard: options.Tensorboard = False,
    push_to: options.Push = None,
    public: options.Public = False,
    as_json: options.Json = False,
) -> None:
    """Teach the model cut at a layer to give the full model's vectors of raw text; needs no labels."""
    if texts is None:
        raise UsageError("There are no texts to learn from.", hint="Give --texts FILE, like those to be served.")
    if data is None and layer in ("auto", "all"):
        raise UsageError(
            "Without graded pairs no layer can be chosen: none is closer to the full model than its own last one.",
            hint="Name a layer with --layer, or pairs to judge on with --data.",
        )
    from truncate_kit.data import read_texts
    from truncate_kit.runs.cutting import cut_vocabulary
    from truncate_kit.sweep.finetune import Before
    from truncate_kit.sweep.finetune import finetune as run

    check_push(push_to, public)
    machine = Machine(engine, workers, ray_address, gpus_per_worker, device, threads)
    settings = SweepSettings(layers=layer, seeds=tuple(range(seeds)))
    training = TrainingSettings(
        objective="distill",
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        precision=precision,  # type: ignore[arg-type]  # checked by the settings themselves
    )
    use_threads(threads)
    workspace = Workspace(folder, quiet=as_json)
    source, raw, pairs, found = workspace.starting_model(model, pooling, max_length), read_texts(texts), None, None
    if data is not None:
        pairs, found = workspace.data(data, columns, scale)
        pairs = workspace.divided(pairs)
    encoder, before = workspace.load(source, device=device, precision=precision), None
    if vocabulary_from is not None:
        encoder, words = cut_vocabulary(encoder, read_texts(vocabulary_from))
        before = Before(words=" ".join(words.sentences))
        workspace.note(before.words)
    with machine.at_work(folder, tensorboard=tensorboard, quiet=as_json) as (at_work, watcher):
        result = run(
            encoder,
            pairs,
            out=folder,
            settings=settings,
            training=training,
            texts=raw,
            before=before,
            watcher=watcher,
            engine=at_work,
        )
    workspace.remember(source, found)
    show(result, workspace)
    push(workspace.lean, push_to, public, quiet=as_json)
