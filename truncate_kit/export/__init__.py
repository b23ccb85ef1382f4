"""One ONNX graph from token ids to the sentence vector, checked before it is called done."""
