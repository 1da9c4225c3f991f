"""Host bytes to the GPU's memory and back: the runtime's copies, a piece of shared memory at a time, each waited for.

They are not in the queue's order: whoever calls waits first for what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from poot_executor.device import BufferKind
from poot_executor.device_memory import Bytes
from poot_executor.errors import OutOfMemory
from poot_rocm_device.agents import Gpu, Pools
from poot_rocm_device.errors import OutOfDeviceMemory
from poot_rocm_device.host_memory import HostMemory, host_memory
from poot_rocm_device.hsa import Hsa
from poot_rocm_device.queue import PacketQueue

PIECE_BYTES = 4 << 20


@dataclass(slots=True)
class Transfers:
    """Copies of one device. Nothing is allocated before the first one."""

    hsa: Hsa
    gpu: Gpu
    pools: Pools
    queue: PacketQueue
    _pieces: list[HostMemory] = field(default_factory=list)

    def upload(self, address: int, data: Bytes) -> None:
        """Host bytes to the GPU; the next piece is filled while one is on its way."""
        pending: int | None = None
        for number, start in enumerate(range(0, data.size, PIECE_BYTES)):
            piece = self._piece(number % 2)
            run = data[start : start + PIECE_BYTES]
            piece.view[: run.size] = run
            if pending is not None:
                self._finish(pending, "write")
            pending = self._to_gpu(address + start, piece, run.size)
        if pending is not None:
            self._finish(pending, "write")

    def download(self, out: Bytes, address: int) -> None:
        """The GPU's bytes to the host."""
        piece = self._piece(0)
        for start in range(0, out.size, PIECE_BYTES):
            run = out[start : start + PIECE_BYTES]
            signal = self._signal()
            agents = self.pools.host_agent, self.gpu.agent
            self.hsa.copy(piece.address, agents[0], address + start, agents[1], run.size, signal)
            self._finish(signal, "read")
            run[:] = piece.view[: run.size]

    def zero(self, address: int, nbytes: int) -> None:
        """Fill with zeros: a piece from the host, then what is zero is copied over as much again."""
        piece = self._piece(0)
        done = min(nbytes, PIECE_BYTES)
        piece.view[:done] = 0
        self._finish(self._to_gpu(address, piece, done), "allocate")
        while done < nbytes:
            run = min(done, nbytes - done)
            signal = self._signal()
            self.hsa.copy(address + done, self.gpu.agent, address, self.gpu.agent, run, signal)
            self._finish(signal, "allocate")
            done += run

    def _to_gpu(self, address: int, piece: HostMemory, nbytes: int) -> int:
        signal = self._signal()
        self.hsa.copy(address, self.gpu.agent, piece.address, self.pools.host_agent, nbytes, signal)
        return signal

    def _signal(self) -> int:
        signal = self.queue.take_signal()
        self.queue.expect(signal)
        return signal

    def _finish(self, signal: int, what: str) -> None:
        self.queue.wait(signal, what)
        self.queue.give_signal(signal)

    def _piece(self, number: int) -> HostMemory:
        try:
            while len(self._pieces) <= number:
                self._pieces.append(host_memory(self.hsa, self.pools.host, self.gpu, PIECE_BYTES))
        except OutOfDeviceMemory as error:
            raise OutOfMemory(PIECE_BYTES, None, None, BufferKind.STAGING.value) from error
        return self._pieces[number]

    def release(self) -> None:
        """Give the memory back; nothing may be on its way."""
        for piece in self._pieces:
            self.hsa.free(piece.address)
        self._pieces.clear()
