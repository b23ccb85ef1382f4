"""Start one provider on a tiny graph and print which ones are active; run as a process of its own.

A provider that does not fit may write to stderr from C++, hang or crash: none of that may reach the caller.
"""

import contextlib
import json
import sys


def main() -> None:
    """Read the provider's name from the command line."""
    name = sys.argv[1]
    if name != "CPUExecutionProvider":
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401  # as in real work: the libraries that it loads are those the provider finds
    import numpy
    import onnxruntime
    from onnxruntime import datasets

    session = onnxruntime.InferenceSession(datasets.get_example("mul_1.onnx"), providers=[name, "CPUExecutionProvider"])
    active = session.get_providers()
    (value,) = session.get_inputs()
    session.run(None, {value.name: numpy.ones(value.shape, numpy.float32)})
    sys.stdout.write(json.dumps(active))


if __name__ == "__main__":
    main()
