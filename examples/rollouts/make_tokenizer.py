"""Byte-level BPE of 4,096 tokens for the examples, trained on this project's documents and sources.

    python -m examples.rollouts.make_tokenizer        # writes examples/rollouts/tokenizer/tokenizer.json

The file is kept with the examples, because recorded tokens name its ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "rollouts" / "tokenizer"
VOCABULARY = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
#: Words with the space before them, single digits, runs of punctuation and of space.
WORDS = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def texts() -> Iterator[str]:
    """Yield what the tokenizer is trained on, in one order everywhere."""
    for pattern in ("docs/*.md", "examples/**/*.py", "domain/*.py", "tangram_client/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            yield path.read_text()


def trained() -> Tokenizer:
    """Return the tokenizer; the same texts give the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


if __name__ == "__main__":
    trained().save(str(FOLDER / "tokenizer.json"), pretty=False)
