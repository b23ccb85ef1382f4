"""Read pairs and texts from files and the Hugging Face hub; importing it loads neither torch nor `datasets`.

Invalid data raise `DataError`.
"""
