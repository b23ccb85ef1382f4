"""ONNX export: build, fuse, check and run graphs in ONNX Runtime."""
