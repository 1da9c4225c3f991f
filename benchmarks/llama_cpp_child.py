"""llama.cpp behind pipes, for `peers.py`: it needs the package llama-cpp-python and nothing of poot.

`python llama_cpp_child.py MODEL THREADS ROWS CAPACITY [plain]` says {"about": ...} once it can compute, then answers
each line {"rows": r, "prompt": p, "tokens": n} of standard input with {"prompt": s, "tokens": s}: seconds for reading a
prompt of p tokens in each of r sequences, and for n steps of a token in each. Tokens are counted up, not chosen, as
llama-bench does. "plain" leaves weights as they are stored: the repacking to AMX tiles crashes on some machines.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from time import perf_counter
from typing import Any

import llama_cpp

BATCH = 512
"""Tokens that one call reads, llama.cpp's own default."""
FLASH_ATTENTION = 1
WARM_TOKENS = 40


class Sequences:
    """A context of llama.cpp over `rows` sequences of `capacity` positions."""

    def __init__(self, path: str, threads: int, rows: int, capacity: int, plain: bool) -> None:
        llama_cpp.llama_backend_init()
        loading = llama_cpp.llama_model_default_params()
        loading.n_gpu_layers = 0
        loading.use_extra_bufts = not plain
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), loading)
        chosen = llama_cpp.llama_context_default_params()
        chosen.n_ctx = rows * capacity
        chosen.n_batch = chosen.n_ubatch = BATCH
        chosen.n_threads = chosen.n_threads_batch = threads
        chosen.n_seq_max = rows
        chosen.flash_attn_type = FLASH_ATTENTION
        self._context = llama_cpp.llama_init_from_model(self._model, chosen)
        if not self._context:
            sys.exit(f"llama.cpp makes no context of {path}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch: Any = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def clear(self) -> None:
        """Forget every position."""
        llama_cpp.llama_memory_clear(self._memory, True)

    def read(self, rows: int, tokens: int) -> float:
        """Read a prompt in each sequence from its beginning; seconds."""
        started = perf_counter()
        for row in range(rows):
            for start in range(0, tokens, BATCH):
                stop = min(start + BATCH, tokens)
                self._decode([(row, place) for place in range(start, stop)], last_only=True)
        return perf_counter() - started

    def step(self, rows: int, start: int, count: int) -> float:
        """Steps of one token in each sequence; seconds."""
        started = perf_counter()
        for place in range(start, start + count):
            self._decode([(row, place) for row in range(rows)], last_only=False)
        return perf_counter() - started

    def _decode(self, places: list[tuple[int, int]], last_only: bool) -> None:
        batch = self._batch
        batch.n_tokens = len(places)
        for at, (row, place) in enumerate(places):
            batch.token[at] = 5 + (row + place) % 1000
            batch.pos[at] = place
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = row
            batch.logits[at] = not last_only or at == len(places) - 1
        status = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_synchronize(self._context)
        if status != 0:
            sys.exit(f"llama_decode returns {status}")


def main() -> None:
    """Answer until standard input ends."""
    path, threads, rows, capacity, *plain = sys.argv[1:]
    sequences = Sequences(path, int(threads), int(rows), int(capacity), bool(plain))
    sequences.read(1, WARM_TOKENS)
    name = f"llama.cpp (llama-cpp-python {importlib.metadata.version('llama-cpp-python')}), {threads} threads, -fa 1"
    system = llama_cpp.llama_print_system_info().decode().strip(" |")
    about = f"{name}{', weights as stored' if plain else ''}; {system}"
    print(json.dumps({"about": about}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        sequences.clear()
        prompt = sequences.read(asked["rows"], asked["prompt"])
        tokens = sequences.step(asked["rows"], asked["prompt"], asked["tokens"])
        print(json.dumps({"prompt": prompt, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
