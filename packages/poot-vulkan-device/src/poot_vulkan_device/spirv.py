"""Numbers of the SPIR-V specification that the emitter uses, by their names there."""

from __future__ import annotations

from enum import IntEnum

MAGIC = 0x07230203
VERSION = 0x00010300
"""SPIR-V 1.3: what every Vulkan 1.1 device takes."""

GLSL = "GLSL.std.450"


class Code(IntEnum):
    """Operation codes."""

    NAME = 5
    EXTENSION = 10
    EXT_INST_IMPORT = 11
    EXT_INST = 12
    MEMORY_MODEL = 14
    ENTRY_POINT = 15
    EXECUTION_MODE = 16
    CAPABILITY = 17
    TYPE_VOID = 19
    TYPE_BOOL = 20
    TYPE_INT = 21
    TYPE_FLOAT = 22
    TYPE_VECTOR = 23
    TYPE_ARRAY = 28
    TYPE_RUNTIME_ARRAY = 29
    TYPE_STRUCT = 30
    TYPE_POINTER = 32
    TYPE_FUNCTION = 33
    CONSTANT_TRUE = 41
    CONSTANT_FALSE = 42
    CONSTANT = 43
    CONSTANT_COMPOSITE = 44
    FUNCTION = 54
    FUNCTION_END = 56
    VARIABLE = 59
    LOAD = 61
    STORE = 62
    ACCESS_CHAIN = 65
    ARRAY_LENGTH = 68
    DECORATE = 71
    MEMBER_DECORATE = 72
    COMPOSITE_CONSTRUCT = 80
    COMPOSITE_EXTRACT = 81
    CONVERT_F_TO_U = 109
    CONVERT_F_TO_S = 110
    CONVERT_S_TO_F = 111
    CONVERT_U_TO_F = 112
    BITCAST = 124
    S_NEGATE = 126
    F_NEGATE = 127
    I_ADD = 128
    F_ADD = 129
    I_SUB = 130
    F_SUB = 131
    I_MUL = 132
    F_MUL = 133
    U_DIV = 134
    S_DIV = 135
    F_DIV = 136
    U_MOD = 137
    S_REM = 138
    U_MUL_EXTENDED = 151
    LOGICAL_EQUAL = 164
    LOGICAL_NOT_EQUAL = 165
    LOGICAL_OR = 166
    LOGICAL_AND = 167
    LOGICAL_NOT = 168
    SELECT = 169
    I_EQUAL = 170
    I_NOT_EQUAL = 171
    U_GREATER_THAN = 172
    S_GREATER_THAN = 173
    U_GREATER_THAN_EQUAL = 174
    S_GREATER_THAN_EQUAL = 175
    U_LESS_THAN = 176
    S_LESS_THAN = 177
    U_LESS_THAN_EQUAL = 178
    S_LESS_THAN_EQUAL = 179
    F_ORD_EQUAL = 180
    F_UNORD_NOT_EQUAL = 183
    F_ORD_LESS_THAN = 184
    F_ORD_GREATER_THAN = 186
    F_ORD_LESS_THAN_EQUAL = 188
    F_ORD_GREATER_THAN_EQUAL = 190
    SHIFT_RIGHT_LOGICAL = 194
    SHIFT_RIGHT_ARITHMETIC = 195
    SHIFT_LEFT_LOGICAL = 196
    BITWISE_OR = 197
    BITWISE_XOR = 198
    BITWISE_AND = 199
    NOT = 200
    CONTROL_BARRIER = 224
    ATOMIC_LOAD = 227
    ATOMIC_STORE = 228
    ATOMIC_I_ADD = 234
    ATOMIC_S_MIN = 236
    ATOMIC_U_MIN = 237
    ATOMIC_S_MAX = 238
    ATOMIC_U_MAX = 239
    ATOMIC_OR = 241
    PHI = 245
    LOOP_MERGE = 246
    SELECTION_MERGE = 247
    LABEL = 248
    BRANCH = 249
    BRANCH_CONDITIONAL = 250
    RETURN = 253
    GROUP_SHUFFLE = 345
    GROUP_SHUFFLE_XOR = 346
    GROUP_I_ADD = 349
    GROUP_F_ADD = 350
    GROUP_S_MIN = 353
    GROUP_U_MIN = 354
    GROUP_F_MIN = 355
    GROUP_S_MAX = 356
    GROUP_U_MAX = 357
    GROUP_F_MAX = 358
    S_DOT = 4450
    TYPE_COOPERATIVE_MATRIX = 4456
    COOPERATIVE_MATRIX_LOAD = 4457
    COOPERATIVE_MATRIX_STORE = 4458
    COOPERATIVE_MATRIX_MUL_ADD = 4459


class Ext(IntEnum):
    """Instructions of the set GLSL.std.450."""

    ROUND_EVEN = 2
    F_ABS = 4
    S_ABS = 5
    FLOOR = 8
    SQRT = 31
    INVERSE_SQRT = 32
    F_MIN = 37
    U_MIN = 38
    S_MIN = 39
    F_MAX = 40
    U_MAX = 41
    S_MAX = 42
    FMA = 50
    PACK_HALF = 58
    UNPACK_HALF = 62


class Capability(IntEnum):
    """What a module declares that it uses."""

    SHADER = 1
    FLOAT16 = 9
    INT8 = 39
    GROUP_NON_UNIFORM = 61
    GROUP_ARITHMETIC = 63
    GROUP_SHUFFLE = 65
    DENORM_PRESERVE = 4464
    SIGNED_ZERO_INF_NAN_PRESERVE = 4466
    ROUNDING_MODE_RTE = 4467
    BFLOAT16_TYPE = 5116
    BFLOAT16_COOPERATIVE_MATRIX = 5118
    VULKAN_MEMORY_MODEL = 5345
    DOT_PRODUCT_INPUT_4X8_PACKED = 6018
    DOT_PRODUCT = 6019
    COOPERATIVE_MATRIX = 6022


class Mode(IntEnum):
    """Execution modes of an entry point."""

    LOCAL_SIZE = 17
    DENORM_PRESERVE = 4459
    SIGNED_ZERO_INF_NAN_PRESERVE = 4461
    ROUNDING_MODE_RTE = 4462


class Decoration(IntEnum):
    """Decorations."""

    BLOCK = 2
    ARRAY_STRIDE = 6
    BUILT_IN = 11
    ALIASED = 20
    COHERENT = 23
    NON_WRITABLE = 24
    BINDING = 33
    DESCRIPTOR_SET = 34
    OFFSET = 35
    NO_CONTRACTION = 42


class BuiltIn(IntEnum):
    """Input variables of a compute shader."""

    WORKGROUP_ID = 26
    LOCAL_INVOCATION_INDEX = 29
    SUBGROUP_SIZE = 36
    SUBGROUP_ID = 40
    SUBGROUP_LOCAL_INVOCATION_ID = 41


class Storage(IntEnum):
    """Storage classes."""

    INPUT = 1
    WORKGROUP = 4
    FUNCTION = 7
    STORAGE_BUFFER = 12


class Scope(IntEnum):
    """Who takes part in an atomic or a barrier."""

    DEVICE = 1
    WORKGROUP = 2
    SUBGROUP = 3
    QUEUE_FAMILY = 5


class Semantics(IntEnum):
    """Memory semantics, to be combined with |."""

    RELAXED = 0
    ACQUIRE_RELEASE = 0x8
    UNIFORM_MEMORY = 0x40
    WORKGROUP_MEMORY = 0x100
    MAKE_AVAILABLE = 0x2000
    MAKE_VISIBLE = 0x4000


COMPUTE = 5
"""The execution model GLCompute."""

LOGICAL, GLSL450, VULKAN = 0, 1, 3
"""Addressing, and the two memory models."""

NON_PRIVATE = 0x20
"""The memory operand of accesses that threads order by barriers, in the Vulkan memory model."""

BFLOAT16 = 0
"""The encoding of 16-bit floats that are bf16."""

SIGNED_FACTORS = 0xF
"""Operands of a product of cooperative matrices: all its matrices are of signed integers."""

REDUCE = 0
"""The group operation Reduce."""

PACKED_4X8 = 0
"""The packed vector format of four bytes in a word."""

DONT_UNROLL = 2
"""Loop control: kernel passes have unrolled what is worth it."""
