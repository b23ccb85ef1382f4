"""CKA of all layer pairs: exactness, speed and memory."""
