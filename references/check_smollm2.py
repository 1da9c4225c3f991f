"""Checks smollm2_greedy.json against a llama decoder in plain numpy float64, without transformers.

The recorded reference trusts transformers to read GGUF: the order of the query and key rows, the
rotary base, the tied output. This reads the tensors through the package gguf in the file's own
layout and computes the logits of prompt and continuation in one causal pass.

Usage: python check_smollm2.py --gguf FILE
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray

Array = NDArray[np.float64]

RECORDED = Path(__file__).with_name("smollm2_greedy.json")
ALLOWED_MARGIN_DIFFERENCE = 1e-3  # logits: float64 here, float32 there


@dataclass(frozen=True, slots=True)
class Llama:
    """The hyperparameters and float64 weights of a llama-architecture GGUF with tied embeddings."""

    blocks: int
    heads: int
    kv_heads: int
    rope_base: float
    epsilon: float
    weights: dict[str, Array]

    @classmethod
    def load(cls, path: Path) -> Llama:
        """Dequantizes every tensor; a matrix keeps the file's (outputs, inputs) layout."""
        reader = GGUFReader(path)

        def value(key: str) -> float:
            return float(reader.fields[f"llama.{key}"].contents())

        return cls(
            blocks=int(value("block_count")),
            heads=int(value("attention.head_count")),
            kv_heads=int(value("attention.head_count_kv")),
            rope_base=value("rope.freq_base"),
            epsilon=value("attention.layer_norm_rms_epsilon"),
            weights={
                tensor.name: dequantize(tensor.data, tensor.tensor_type)
                .astype(np.float64)
                .reshape([int(extent) for extent in reversed(tensor.shape)])
                for tensor in reader.tensors
            },
        )

    def logits(self, ids: list[int]) -> Array:
        """(tokens, vocabulary) logits of one causal pass."""
        embedding = self.weights["token_embd.weight"]
        x = embedding[ids]
        for block in range(self.blocks):
            x = x + self.attention(f"blk.{block}", x)
            x = x + self.feed_forward(f"blk.{block}", x)
        return self.norm("output_norm", x) @ embedding.T

    def norm(self, name: str, x: Array) -> Array:
        """RMS normalization over the last axis."""
        scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon)
        return x * scale * self.weights[f"{name}.weight"]

    def attention(self, block: str, x: Array) -> Array:
        """Causal attention with grouped key and value heads."""
        h = self.norm(f"{block}.attn_norm", x)
        q = self.rotate(self.project(f"{block}.attn_q", h, self.heads))
        k = self.rotate(self.project(f"{block}.attn_k", h, self.kv_heads))
        v = self.project(f"{block}.attn_v", h, self.kv_heads)
        group = self.heads // self.kv_heads
        scores = np.einsum("thd,uhd->htu", q, k.repeat(group, axis=1)) / np.sqrt(q.shape[-1])
        scores += np.triu(np.full((len(x), len(x)), -np.inf), 1)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        mixed = np.einsum("htu,uhd->thd", p, v.repeat(group, axis=1))
        return mixed.reshape(len(x), -1) @ self.weights[f"{block}.attn_output.weight"].T

    def project(self, name: str, x: Array, heads: int) -> Array:
        """(tokens, heads, head size)."""
        return (x @ self.weights[f"{name}.weight"].T).reshape(len(x), heads, -1)

    def rotate(self, x: Array) -> Array:
        """Rotary positions over neighbouring pairs, which is how a llama GGUF stores its rows."""
        half = x.shape[-1] // 2
        angle = np.arange(len(x))[:, None] * self.rope_base ** (-np.arange(half) / half)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)[:, None]
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)

    def feed_forward(self, block: str, x: Array) -> Array:
        """SwiGLU."""
        h = self.norm(f"{block}.ffn_norm", x)
        gate = h @ self.weights[f"{block}.ffn_gate.weight"].T
        up = h @ self.weights[f"{block}.ffn_up.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{block}.ffn_down.weight"].T


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gguf", type=Path, required=True, help="the checkpoint")
    model = Llama.load(parser.parse_args().gguf)
    failed = False
    for case in json.loads(RECORDED.read_text())["cases"]:
        ids = case["prompt_ids"] + case["tokens"][:-1]
        logits = model.logits(ids)[len(case["prompt_ids"]) - 1 :]
        second, first = np.sort(logits, axis=-1)[:, -2:].T
        difference = float(np.abs(first - second - case["margins"]).max())
        same = logits.argmax(-1).tolist() == case["tokens"]
        failed |= not same or difference > ALLOWED_MARGIN_DIFFERENCE
        print(f"{case['name']:20} tokens equal: {same}  margins within {difference:.1e}")
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main()
