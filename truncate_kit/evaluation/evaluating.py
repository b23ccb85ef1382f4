"""How well a model's queries find the documents that answer them."""

from dataclasses import dataclass

from truncate_kit.data import RetrievalSet
from truncate_kit.evaluation.graded import TextEncoder
from truncate_kit.evaluation.scores import Estimate, estimated, score_queries
from truncate_kit.evaluation.searching import encode_set, search
from truncate_kit.progress import ProgressOption, reporter
from truncate_kit.results import Result
from truncate_kit.settings import given_or
from truncate_kit.vectors import VectorFormat

TOP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalScore(Result):
    """How one model searches one set, all documents compared with each query."""

    model: str
    runtime: str  # `torch` or `onnx`
    data: str  # name of the set and its split
    num_queries: int  # that have an answer
    num_documents: int
    top: int  # documents that count for each query
    measure: str  # how vectors are compared, as the model's settings say
    ndcg: Estimate  # nDCG@top with the grade as gain, see `QueryScores`
    mrr: Estimate
    recall: Estimate
    vectors: str  # the precision that both sides were stored in before
    dimensions: int  # what was left of each vector
    bytes_per_vector: int


def evaluate_retrieval(
    encoder: TextEncoder,
    data: RetrievalSet,
    *,
    model: str,
    runtime: str = "torch",
    top: int = TOP,
    form: VectorFormat | None = None,
    progress: ProgressOption = False,
) -> RetrievalScore:
    """Search all documents for each query, exactly; nDCG, MRR and recall of the first `top`, with intervals.

    Args:
        encoder: Whatever has `.encode(texts)`; its prompts for queries and documents are used.
        data: As `read_retrieval` gives it.
        model: Its name in the result.
        runtime: What encodes, for the result.
        top: Documents that count for each query.
        form: How vectors are stored; None is as they come.
        progress: True draws bars and logs; else what is called after each part of the texts.

    Raises:
        UsageError: Nothing is to be found, or `form` does not keep what the model compares.
        ModelError: The model's measure is not known.
        DataError: Vectors are no numbers.
    """
    progress = reporter(progress)
    form = given_or(VectorFormat, form, "form")
    vectors = encode_set(encoder, data, progress=progress)
    stored = vectors.stored(form)
    scores = score_queries(search(stored, top=top, own=data.own_documents), data.relevance)
    return RetrievalScore(
        model=model,
        runtime=runtime,
        data=data.name,
        num_queries=len(data.queries),
        num_documents=len(data.documents),
        top=int(top),
        measure=stored.measure,
        ndcg=estimated(scores.ndcg),
        mrr=estimated(scores.mrr),
        recall=estimated(scores.recall),
        vectors=form.precision,
        dimensions=form.kept(vectors.width),
        bytes_per_vector=form.bytes_per_vector(vectors.width),
    )
