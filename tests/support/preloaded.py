"""Import once, in the server that forks the processes of tests, what would take each of them four seconds."""

import gc

gc.set_threshold(50_000, 20, 20)  # imports make hardly any garbage

import onnxruntime  # noqa: E402, F401  # after the threshold
import transformers.models.bert.modeling_bert  # noqa: E402, F401  # after the threshold

import truncate_kit.export.encode  # noqa: E402  # after the threshold
import truncate_kit.methods.contrast.run  # noqa: E402  # after the threshold
import truncate_kit.methods.distill.distilling  # noqa: E402  # after the threshold
import truncate_kit.methods.study.running  # noqa: E402, F401  # after the threshold
