"""sentence-transformers' ONNX backend, driven line by line from another interpreter; see run.py.

Reads one JSON object a line: {"model", "texts", "threads", "batch_size", "level", "folder"} loads, {"run": true}
encodes all texts once, {"vectors": path} writes the vectors. Answers each with one JSON object.
"""

import importlib.metadata
import json
import sys
import time
import warnings

warnings.filterwarnings("ignore")
answers, sys.stdout = sys.stdout, sys.stderr  # what the libraries print must not mix with the answers

import numpy as np  # noqa: E402  # after the streams are parted
import onnxruntime  # noqa: E402
import sentence_transformers  # noqa: E402


def load(order):
    """Load the model on the CPU, fused by optimum if a level is named."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = order["threads"]
    settings = {"provider": "CPUExecutionProvider", "session_options": options}
    if order["level"] is None:
        settings["export"] = True
        return sentence_transformers.SentenceTransformer(order["model"], backend="onnx", model_kwargs=settings)
    plain = sentence_transformers.SentenceTransformer(order["model"], backend="onnx", model_kwargs={"export": True})
    plain.save_pretrained(order["folder"])
    sentence_transformers.export_optimized_onnx_model(plain, order["level"], order["folder"])
    settings["file_name"] = f"onnx/model_{order['level']}.onnx"
    return sentence_transformers.SentenceTransformer(order["folder"], backend="onnx", model_kwargs=settings)


model, texts, batch_size, vectors = None, [], 32, None
for line in sys.stdin:
    order = json.loads(line)
    answer = {}
    if "model" in order:
        texts, batch_size, model = order["texts"], order["batch_size"], load(order)
        answer = {
            name: importlib.metadata.version(name)
            for name in ("sentence-transformers", "transformers", "torch", "optimum-onnx", "onnxruntime")
        }
    elif "run" in order:
        start = time.perf_counter()
        vectors = model.encode(texts, batch_size=batch_size, show_progress_bar=False)
        answer = {"seconds": time.perf_counter() - start}
    else:
        np.save(order["vectors"], vectors)
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
