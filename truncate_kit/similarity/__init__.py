"""Kernels, HSIC, CKA, label-free layer scores and drop prediction."""
