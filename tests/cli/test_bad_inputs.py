"""Bad inputs through the real command line: one clear line and a hint, exit code 1, no traceback, nothing left."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.support.commands import fails, refused
from tests.support.pairs import word_triplets
from tests.support.retrieval import retrieval_folder
from truncate_kit.core.errors import ModelError
from truncate_kit.models.loading import load_encoder

PAIRS = "sentence1,sentence2,score\n" + "".join(f"the cat {n},a dog {n},{n % 6}\n" for n in range(30))


FOLDERS = {
    "data/sts13/test.csv": PAIRS,
    "data/mr.csv": "text,label\n" + "".join(f"a cat {n},{n % 2}\n" for n in range(42)),
    "odd/mr.csv": "x,label\na cat,1\n",
    "words/simlex999.csv": "word1,word2,score\n" + "".join(f"cat,dog,{n}\n" for n in range(9)),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_folder) -> Path:
    """A folder with the models and files that refused commands name."""
    home = tmp_path_factory.mktemp("files")
    contents = {
        "good.csv": PAIRS,
        "same.csv": "sentence1,sentence2,score\n" + "a,b,3\n" * 20,
        "triplets.csv": "anchor,positive,negative\n" + "".join(",".join(row) + "\n" for row in word_triplets().rows),
        "raw.txt": "".join(f"the cat {n} and a dog\n" for n in range(200)),
        "blank.txt": "\n\n",
    }
    for name, text in (contents | FOLDERS).items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    retrieval_folder(home / "search")
    for name, model in (("m", "bert"), ("gpt2", "gpt2")):
        (home / name).symlink_to(tiny_folder(model))
    shutil.copytree(tiny_folder("bert"), home / "onnx")
    (home / "model.onnx").write_bytes(b"no graph")
    return home


REFUSED = """
finetune m --data good.csv --layer three | 'three'
finetune m --data good.csv --within 1 | The --pick rule best-dev has no --within
finetune m --data good.csv --layer 1 --strategy probe | --strategy works only with
finetune m --data good.csv --objective paraphrase | exactly the labels 0 and 1
finetune m --data good.csv --objective entailment | no column has a known name for the label
finetune m --data good.csv --max-length 4000 | 4000
evaluate m --data good.csv --scale -1e308,1e308 | scale
finetune m --data good.csv --learning-rate nan | --learning-rate nan is out of range
finetune m --data good.csv --layer 9999999999999999999999 | Layer 9999999999999999999999 does not exist
finetune m --data good.csv --device toaster | 'toaster'
finetune m --data good.csv --teacher-weight nan | Add --teacher.
finetune m --data good.csv --teacher nowhere | nowhere
finetune m --data good.csv --prior-layer 1 | --prior-layer works only with --prior-texts
finetune m --data good.csv --prior-texts raw.txt --prior-layer 9 | Layer 9 does not exist
finetune m --data good.csv --prior-texts raw.txt --prior-layer 2 --layer 3 | Layer 3 does not exist
finetune m --data good.csv --prior-texts raw.txt --objective paraphrase | exactly the labels 0 and 1
finetune m --data good.csv --search-metric mrr | --search-metric works only with --retrieval or a retrieval folder
finetune m --data search --objective cosine | The objective cosine needs pairs with scores, not
finetune m --data search --retrieval search | --retrieval works only with graded pairs.
distill m | There are no texts to train on.
distill m --texts /dev/null --blocks 1 | is a folder, a pipe or a device
distill m --texts raw.txt --blocks 9 | No lean model has 9 blocks
distill m --texts raw.txt --query-weight 7 | --query-weight has no effect
distill m --texts raw.txt --layer high | no layer 'high'
contrast m --data good.csv --objective in-batch | has no training data
contrast m --data good.csv --objective in-batch --texts raw.txt | train on raw text
contrast m --data good.csv --objective dropout --triplets x.csv | train on pairs
contrast m --data good.csv --objective dropout --texts raw.txt --triplet-columns x,y | --triplet-columns works only with
contrast m --data good.csv --remove-pooler --pooling mean-attention | use --pooling layer-attention with --attend both
contrast m --data good.csv --pooling cls-attention --attend mean | --attend works only with --pooling layer-attention
contrast m --data good.csv --objective in-batch --sentences raw.txt --remove-pooler | --sentences works only with layer
contrast m --data good.csv --triplets triplets.csv --triplet-columns anchor | two or more are needed
contrast m --data good.csv --objective in-batch --triplets odd/mr.csv | Call the columns anchor, positive
contrast m --data good.csv --objective in-batch --hard-negative-weight 1 | Leave --hard-negative-weight out
contrast m --data good.csv --objective in-batch --masked-share 0.2 | does not use --masked-share 0.2.
contrast m --data good.csv --objective dropout --generator mini-bert | works only with --objective diffcse
contrast m --data good.csv --objective dropout --dropout 0 | both copies of a text are identical
contrast mini-bert --data good.csv --objective dropout --texts raw.txt | Use --dropout 0.1
freeze gpt2 --data good.csv --steps siamese --texts raw.txt | --texts works only with the step autoencoder
freeze gpt2 --data good.csv --steps , | There is no --steps ''
combine m --data good.csv --over max --beam-width 8 | --beam-width works only with a beam search
combine m --data good.csv --split dev | has no split 'dev'
analyze m --data good.csv --max-texts 0 | --max-texts 0 is out of range
cut m | No layer, blocks or vocabulary
cut m --vocabulary-from gone.txt | gone.txt
cut m --blocks 2,1 | not in rising order
cut \x1b[31mred --layer 1 | There is no folder '\\x1b[31mred'
cut ~nouser/x --layer 1 | no model folder ~nouser/x
analyze m --data good.csv --reference ./nowhere | no model folder
analyze m --texts raw.txt --columns a,b,c | --columns works only with --data
analyze m --texts blank.txt | blank.txt is empty
evaluate ./nowhere --data good.csv | nowhere
evaluate owner/nothing --data good.csv | owner/nothing
evaluate good.csv --data good.csv | There is no model folder
evaluate m --data http://x.invalid/y | x.invalid/y does not exist
evaluate m --data same.csv | two different scores
evaluate onnx --data good.csv --runtime onnx | model.onnx
evaluate m --data good.csv --split dev | good.csv has no split 'dev'
evaluate m --data good.csv --split validate | no split 'validate'
evaluate m --data good.csv --runtime onnx | model.onnx
evaluate m --data words --columns a,b,c | there is no column 'a'
evaluate m --suite sts | needs its data
evaluate m --suite transfer --data data --seen x.csv | --seen
evaluate m --suite transfer --data data --fractions half | 'half'
evaluate m --suite transfer --data odd | Rename the column of texts to text
evaluate m --suite retrieval --data data/mr.csv | Call the columns query and relevant.
evaluate m --corpus more.txt | --corpus works only with --suite retrieval
evaluate m --against full | --against works only with --mteb
evaluate m --mteb STS12 --suite sts | --suite works only with your own data
encode raw.txt --model m --workers 100000 | --workers
encode raw.txt --model m --dimensions 17 | have 16
encode raw.txt --model m --out vectors.csv | does not end in .npy
export m --onnx --precision fp16 --target cpu | converted to float32
export m --onnx --precision int8 --target cuda | no int8 kernels
export m --onnx --budget 1 | --budget works only with --precision int8
export m --onnx --data search --scale 0,5 | --scale works only with graded pairs
bench | there is no lean model
bench --layer 2 | --layer works only with --random-weights
bench mini-bert --random-weights mini-bert | --random-weights makes both models
bench m --lengths 1e9 --data good.csv | --lengths '1e9' is not a list
bench --random-weights m/config.json --blocks 1 --layer 1 | are both given
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_what_is_refused(line, home, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(home)
    typed, _, named = line.partition(" | ")
    assert named in fails(capfd, *typed.split(), "--workspace", tmp_path / "out")
    assert not list((tmp_path / "out").glob("**/*.json"))


def test_a_slip_in_the_name_of_a_miniature_is_answered_with_their_names():
    for slip in ("mini-bret", "mini-electra", "minibert"):
        with pytest.raises(ModelError) as caught:
            load_encoder(slip)
        assert "bundled mini-bert, mini-electra-discriminator," in caught.value.hint


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_asked_for_and_not_active_is_exit_code_1(capfd):
    assert "CUDA was asked for but is not active" in refused(capfd, "bench", "mini-bert", "--device", "cuda")
