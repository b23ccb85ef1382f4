"""Lines of Python that load a saved model elsewhere: for its card, and for the page of a run."""

TEXTS = '["A dog runs.", "A puppy is running."]'


def sentence_transformers_lines(place: str, *, own_pooling: bool = False) -> str:
    """Vectors by sentence-transformers.

    Args:
        place: The folder.
        own_pooling: Whether the folder brings a pooling file of its own.
    """
    trusting = ", trust_remote_code=True" if own_pooling else ""
    return (
        "from sentence_transformers import SentenceTransformer\n\n"
        f"model = SentenceTransformer({place!r}{trusting})\nvectors = model.encode({TEXTS})"
    )


def onnxruntime_lines(place: str, file: str, max_length: int) -> str:
    """Vectors by a graph of that name, without torch and without this package.

    Args:
        place: The folder.
        file: The name of the graph in it.
        max_length: In tokens.
    """
    return "\n".join(
        (
            "import numpy",
            "import onnxruntime",
            "from tokenizers import Tokenizer",
            "",
            f"place = {place!r}",
            "tokenizer = Tokenizer.from_file(f'{place}/tokenizer.json')",
            f"tokenizer.enable_truncation({max_length})",
            "tokenizer.enable_padding()",
            f"session = onnxruntime.InferenceSession(f'{{place}}/{file}')",
            f"batch = tokenizer.encode_batch({TEXTS})",
            "ids = numpy.array([text.ids for text in batch], dtype=numpy.int64)",
            "mask = numpy.array([text.attention_mask for text in batch], dtype=numpy.int64)",
            "vectors = session.run(['sentence_embedding'], {'input_ids': ids, 'attention_mask': mask})[0]",
        )
    )
