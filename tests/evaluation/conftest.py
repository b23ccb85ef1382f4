"""A small retrieval set."""

import pytest

from tests.support.retrieval import retrieval_folder
from truncate_kit.data.retrieval import read_retrieval


@pytest.fixture(scope="package")
def data(tmp_path_factory):
    return read_retrieval(retrieval_folder(tmp_path_factory.mktemp("set") / "tiny"))
