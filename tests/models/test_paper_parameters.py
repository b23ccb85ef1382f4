"""Parameters as the TMFT paper counts them, from public configurations, without weights."""

import pytest
from transformers import BertConfig, DebertaV2Config, ElectraConfig

from truncate_kit.models.truncation import paper_parameters


def bert(layers, hidden, heads, vocabulary=30522):
    return BertConfig(vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                      intermediate_size=4 * hidden)  # fmt: skip


def electra(layers, hidden, heads, embedding, intermediate):
    return ElectraConfig(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                         embedding_size=embedding, intermediate_size=intermediate)  # fmt: skip


CONFIGS = {
    "BERT-tiny": bert(2, 128, 2),
    "BERT-mini": bert(4, 256, 4),
    "BERT-small": bert(4, 512, 8),
    "BERT-medium": bert(8, 512, 8),
    "BERT-base": bert(12, 768, 12, 28996),
    "BERT-large": bert(24, 1024, 16, 28996),
    "ELECTRA-D-small": electra(12, 256, 4, 128, 1024),
    "ELECTRA-D-base": electra(12, 768, 12, 768, 3072),
    "ELECTRA-D-large": electra(24, 1024, 16, 1024, 4096),
    "ELECTRA-G-small": electra(12, 256, 4, 128, 1024),
    "ELECTRA-G-base": electra(12, 256, 4, 768, 1024),
    "ELECTRA-G-large": electra(24, 256, 4, 1024, 1024),
    "DeBERTaV3-base": DebertaV2Config(
        vocab_size=128100, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        type_vocab_size=0, position_biased_input=False, relative_attention=True, max_position_embeddings=512,
        position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
    ),
}  # fmt: skip
# (model, layer) → millions of parameters, Tables 2 and 1 of "Are ELECTRA's Sentence Embeddings Beyond Repair?"
PUBLISHED = {
    ("BERT-tiny", 2): 4.37, ("BERT-mini", 4): 11.10, ("BERT-small", 4): 28.50, ("BERT-medium", 8): 41.11,
    ("BERT-base", 12): 107.72, ("BERT-large", 24): 332.53, ("ELECTRA-D-small", 1): 4.76, ("ELECTRA-D-small", 12): 13.45,
    ("ELECTRA-D-base", 3): 45.10, ("ELECTRA-D-base", 7): 73.45, ("ELECTRA-D-base", 12): 108.89,
    ("ELECTRA-D-large", 12): 182.94, ("ELECTRA-D-large", 24): 334.09, ("ELECTRA-G-small", 12): 13.45,
    ("ELECTRA-G-base", 11): 32.52, ("ELECTRA-G-base", 12): 33.31, ("ELECTRA-G-large", 24): 50.74,
    ("DeBERTaV3-base", 7): 148.00,
}  # fmt: skip


@pytest.mark.parametrize(("model", "layer"), PUBLISHED)
def test_equal_to_the_papers_tables(model, layer):
    assert round(paper_parameters(CONFIGS[model], layer) / 1e6, 2) == PUBLISHED[model, layer]
