"""The pooled graph: exported, fused, checked, and run in ONNX Runtime."""
