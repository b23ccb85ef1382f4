"""Every method on the same base model, each scored as its ONNX graph."""
