"""Encoding whole files: streamed, resumable, in the precision that storage wants."""

from truncate_kit.serving.encoded_file import EncodedFile, EncodingJob
from truncate_kit.serving.encoding import encode_file, gives_unit_vectors

__all__ = ["EncodedFile", "EncodingJob", "encode_file", "gives_unit_vectors"]
