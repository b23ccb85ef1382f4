"""Tables and figures of the suites."""

from dataclasses import replace

import pytest

from truncate_kit.evaluation.graded import StsReport, StsScore
from truncate_kit.evaluation.retrieval import RetrievalReport
from truncate_kit.evaluation.transfer import (
    TransferPoint,
    TransferReport,
    TransferScore,
    TransferSettings,
    TransferSplit,
)
from truncate_kit.report.chart import write_figures
from truncate_kit.report.view import view_of

SPLITS = (
    TransferSplit(as_is=80.0, last=80.0, last_four=77.0, random=75.0, combined=84.0, chosen=(0, 3)),
    TransferSplit(as_is=82.0, last=80.0, last_four=79.0, random=77.0, combined=86.0, chosen=(3,)),
)


def point(fraction, splits=SPLITS):
    return TransferPoint(fraction=fraction, train_rows=int(100 * fraction), test_rows=20, splits=splits)


@pytest.fixture
def transfer():
    score = TransferScore(
        name="MPQA",
        num_rows=1000,
        num_classes=2,
        majority=60.0,
        repeated_rows=200,
        curve=(point(0.5), point(1.0)),
    )
    return TransferReport(
        model="m",
        runtime="torch",
        settings=TransferSettings(splits=2, max_layers=4, fractions=(0.5, 1.0)),
        num_subsets=15,
        sets=(score, replace(score, name="TREC", repeated_rows=0)),
        mean_as_is=81.0,
        mean_last=80.0,
        mean_last_four=78.0,
        mean_random=76.0,
        mean_combined=85.0,
        mean_relative_error_reduction=25.0,
        seconds=3.0,
    )


def test_transfer_rows_and_means(transfer):
    table = view_of(transfer).tables[0]
    assert [row[:2] for row in table.rows] == [
        ("MPQA", "50"),
        ("MPQA", "100"),
        ("TREC", "50"),
        ("TREC", "100"),
        ("mean of 2", ""),
    ]
    assert table.rows[1][2:] == ("2", "60.00", "81.00", "–", "80.00", "78.00", "76.00", "85.00", "+25.0", "0 3")
    assert all(len(row) == len(table.columns) for row in table.rows)
    sentences = view_of(transfer).sentences
    assert sum("rows repeat a text" in sentence for sentence in sentences) == 1
    assert any("15 subsets of up to 4 layers" in sentence for sentence in sentences)


def test_a_set_that_was_left_out_has_no_panel(transfer):
    left_out = replace(transfer, sets=(replace(transfer.sets[0], curve=()), transfer.sets[1]))
    assert [plot.title for plot in view_of(left_out).plots] == ["TREC"]


def test_a_model_of_one_vector_has_no_columns_of_layers(transfer):
    curve = (point(1.0, (TransferSplit(as_is=80.0),)),)
    plain = replace(transfer, num_subsets=0, sets=(replace(transfer.sets[0], curve=curve),))
    table = view_of(plain).tables[0]
    assert table.columns[-1] == "as it is"
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert not any("subsets" in sentence for sentence in view_of(plain).sentences)


def test_a_curve_needs_two_shares(transfer, tmp_path):
    (path,) = write_figures(view_of(transfer), tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert view_of(replace(transfer, settings=TransferSettings())).plots == ()


def test_similarity_with_and_without_what_was_seen():
    score = StsScore(
        name="STSB",
        num_pairs=1379,
        published_pairs=1379,
        spearman=82.034,
        pearson=81.0,
        unseen_pairs=None,
        unseen_spearman=None,
    )
    report = StsReport(
        model="m", runtime="onnx", sets=(score,), mean_spearman=82.034, seen=None, mean_unseen=None, seconds=1.0
    )
    assert view_of(report).tables[0].filled().rows == [
        ("STSB", "1,379", "82.03", "81.00"),
        ("mean of 1", "", "82.03", ""),
    ]
    known = replace(report, seen="train.csv", sets=(replace(score, unseen_pairs=0),))
    assert view_of(known).tables[0].rows[0] == ("STSB", "1,379", "82.03", "81.00", "0", "–")
    assert all(len(row) == len(view_of(known).tables[0].columns) for row in view_of(known).tables[0].rows)


def test_retrieval_beside_the_exact_search():
    report = RetrievalReport(
        model="m",
        runtime="onnx",
        data="q.csv",
        num_queries=100,
        num_texts=4000,
        width=384,
        lists=102,
        probes=16,
        mrr=61.5,
        exact_mrr=62.0,
        encode_seconds=0.0021,
        search_seconds=0.0001,
        exact_seconds=0.0004,
        index_bytes=2**20 * 7,
        exact_bytes=2**20 * 6,
        build_seconds=0.5,
        threads=1,
    )
    assert view_of(report).tables[0].rows == [
        ("IVF, 102 lists, 16 searched", "61.50", "0.100", "7.3"),
        ("exact", "62.00", "0.400", "6.3"),
    ]
