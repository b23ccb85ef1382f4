"""Each model is traced once a session: a trace takes seconds, and many tests export the same few tiny models."""

import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir
import pytest
from filelock import FileLock

from truncate_kit.encoders import Encoder, encoder_digest
from truncate_kit.export import tracing

traced_anew = tracing._trace


@functools.cache
def _share_operators() -> None:
    """Let torch make its table of operators once a process: that is a tenth of a trace."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]


@contextmanager
def remembered_traces(folder: Path) -> Iterator[None]:
    """Keep each trace in `folder`, under a digest of all that it depends on; processes may share the folder."""

    def trace(encoder: Encoder) -> Any:
        config = encoder.backbone.config
        parts = (encoder_digest(encoder), config._attn_implementation, encoder.max_length)
        file = folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.onnx"
        with FileLock(file.with_suffix(".lock")):
            if not file.exists():
                _share_operators()
                file.write_bytes(onnx_ir.serde.serialize_model(traced_anew(encoder)).SerializeToString())
        return onnx_ir.serde.deserialize_model(onnx.ModelProto.FromString(file.read_bytes()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "_trace", trace)
        yield
