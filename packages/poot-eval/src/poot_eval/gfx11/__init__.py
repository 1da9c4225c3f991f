"""An interpreter of gfx11 machine code: what a compiler wrote for an AMD GPU, run where there is none.

Arithmetic is exact as the instruction set defines it; the units that approximate round the real
value once. Memory is checked, an instruction that is not known is refused by name, and code that
does not wait for what it loads is refused before it runs. Speed, caches and the order of memory
between waves are not modelled: memory is coherent, and a store is seen at once.
"""
