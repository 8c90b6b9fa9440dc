"""What the definition document calls things, in English and in Chinese: labels that are read, and words that are
written.
"""

from __future__ import annotations

LANGUAGES = ("en", "zh")

LABELS: dict[str, tuple[str, ...]] = {
    "name": ("算子名称", "名称", "name", "operator name", "operator"),
    "about": ("功能描述", "功能", "description", "function"),
    "device": ("测评设备", "目标设备", "目标硬件", "device", "target device"),
    "kind": ("算子类型", "类型", "kind", "operator kind", "operator type"),
    "source": ("来源", "source"),
    "target": ("目标加速比", "加速比目标", "target speed-up", "target speedup"),
    "rounds": ("最大迭代轮次", "自动优化最大迭代轮次", "round limit", "maximum rounds", "optimisation rounds at most"),
    "dtypes": ("支持的数据类型", "数据类型", "dtypes", "supported dtypes"),
    "formula": ("计算公式", "数学公式", "公式", "formula"),
    "scenes": ("应用场景", "where it is used"),
    "performance": ("性能要求", "performance asked for"),
    "accuracy": ("精度要求", "accuracy asked for"),
    "features": ("支持特性", "features asked for"),
}
"""Field -> what it is called in bullets and in tables of properties; the first Chinese and the first English one are
written."""

NOTES = ("scenes", "performance", "accuracy", "features")
"""Requirements in words: kept and written again, decided by nobody."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "name": ("参数名称", "参数", "名称", "name", "parameter", "tensor"),
    "type": ("数据类型", "类型", "type", "dtype"),
    "shape": ("形状", "shape"),
    "about": ("描述", "说明", "description"),
    "limits": ("约束条件", "约束", "constraints"),
    "axes": ("各轴大小", "sizes"),
    "source": ("来源", "source"),
    "scale": ("规模", "scale"),
}
"""Column -> what the head of a table calls it."""

INPUTS, OUTPUTS = ("输入参数", "输入", "inputs", "input"), ("输出参数", "输出", "outputs", "output")
WORKLOADS = ("工作负载", "workloads")
ROUNDS = ("最大迭代轮次", "round limit", "optimisation rounds")
DEFAULT = ("默认值", "default")

KINDS = {
    "elementwise": ("Pointwise", "Pointwise"),
    "rows": ("Reduction over rows", "行归约 Reduction"),
    "product": ("GEMM with epilogue", "矩阵乘 GEMM + Epilogue"),
}
"""Family -> what kind of operator the document calls it, in English and in Chinese."""


def label(field: str, language: str) -> str:
    """What a field is called in a document in this language."""
    return next(word for word in LABELS[field] if word.isascii() == (language == "en"))


def field_of(word: str) -> str | None:
    """The field that a label means; None for a label of no field."""
    plain = word.strip().strip("*").strip().lower()
    return next((field for field, words in LABELS.items() if plain in words), None)


def column_of(word: str) -> str | None:
    """The column that the head of a table means."""
    plain = word.strip().strip("*").strip().lower()
    return next((column for column, words in COLUMNS.items() if plain in words), None)


def speaks_of(heading: str, words: tuple[str, ...]) -> bool:
    """Whether a heading speaks of one of these."""
    return any(word in heading.lower() for word in words)


MEMORY_BOUND = {
    "en": "The traffic takes longer than the arithmetic on {devices}: memory bandwidth is the expected bottleneck. "
    "Fewer bytes, wider accesses and enough of them in flight help; fewer operations don't.",
    "zh": "在 {devices} 上，访存时间长于计算时间：预期瓶颈是内存带宽。"
    "有效的方向是减少字节数、加宽访问、增加在途请求；减少运算次数没有用。",
}
COMPUTE_BOUND = {
    "en": "The arithmetic takes longer than the traffic on {devices}: the rate of multiplications is the expected "
    "bottleneck. Full tiles, tensor cores and a pipeline that never waits help.",
    "zh": "在 {devices} 上，计算时间长于访存时间：预期瓶颈是计算吞吐。"
    "有效的方向是填满分块、使用张量核、让流水线不等待。",
}
SMALL_CALLS = {
    "en": "Calls of a few microseconds are limited by their launch, whatever the kernel does.",
    "zh": "只有几微秒的调用受启动开销限制，与 kernel 的写法无关。",
}

STRATEGIES: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    "elementwise": {
        "en": (
            ("Grid", "One tile of rows and columns per program, two-dimensional where something is broadcast; programs "
             "follow the order of memory."),
            ("Blocks", "TILE or BLOCK elements per program; the neighbours of a config come from the space itself: "
             "`opforge tune {name}`."),
            ("Warps and stages", "num_warps is tuned with the block. There is no loop, so stages change nothing."),
            ("Memory access", "16-byte accesses along the last axis; full tensors pass by the cache once. Whether the "
             "compiler made them: `opforge inspect {name} {kernel} --target sm_90a`."),
            ("Reuse", "What is broadcast is read once for a row or a column of the tile and kept in registers."),
            ("Dynamic shapes", "Sizes are arguments; odd tails are masked. A config for each class of shapes comes "
             "from `opforge tune`."),
        ),
        "zh": (
            ("网格配置", "有广播时每个 program 处理一个二维分块，否则一段连续元素；program 按内存顺序排列。"),
            ("块大小", "每个 program 处理 TILE 或 BLOCK 个元素；相邻配置取自搜索空间本身：`opforge tune {name}`。"),
            ("Warp 和 Stage 配置", "num_warps 与块大小一起调。没有循环，num_stages 不起作用。"),
            ("内存访问", "沿最后一维 16 字节访问，大张量只过一次缓存。编译结果：`opforge inspect {name} {kernel} "
             "--target sm_90a`。"),
            ("数据复用", "被广播的数据对分块的一行或一列只读一次，留在寄存器里。"),
            ("动态 Shape 处理", "大小是参数，尾部用掩码。各类形状的配置由 `opforge tune` 给出。"),
        ),
    },
    "rows": {
        "en": (
            ("Grid", "One program for a row, or for several rows where they are narrow."),
            ("Blocks", "The next power of two above the row: the whole row is on chip."),
            ("Warps and stages", "More warps for wider rows, chosen from the width; there is no loop to pipeline."),
            ("Memory access", "Each tensor is read once and written once; lanes beyond the row are masked. See: "
             "`opforge inspect {name} {kernel} --target sm_90a`."),
            ("Reuse", "All reductions of a row use the registers that hold it; weights along the row stay in the "
             "second-level cache."),
            ("Dynamic shapes", "Rows beyond 16384 columns leave the registers and go to PyTorch, or to the CPU's "
             "kernel; a kernel that walks them in blocks is the next step."),
        ),
        "zh": (
            ("网格配置", "每个 program 处理一行；行很窄时处理几行。"),
            ("块大小", "不小于行宽的 2 的幂：整行留在片上。"),
            ("Warp 和 Stage 配置", "行越宽 warp 越多，由行宽决定；没有可流水的循环。"),
            ("内存访问", "每个张量只读一次、只写一次，行外的 lane 用掩码。见：`opforge inspect {name} {kernel} "
             "--target sm_90a`。"),
            ("数据复用", "一行的所有归约共用寄存器里的数据；沿行的权重留在二级缓存。"),
            ("动态 Shape 处理", "超过 16384 列的行放不进寄存器，交给 PyTorch 或 CPU 的 kernel；"
             "下一步是分块遍历的版本。"),
        ),
    },
    "product": {
        "en": (
            ("Grid", "One program per block of the product, in groups of GROUP rows of blocks, so that both sides stay "
             "in the second-level cache."),
            ("Blocks", "BLOCK_M × BLOCK_N sums in registers, BLOCK_K_BYTES of each side at a time: "
             "`opforge tune {name}`."),
            ("Warps and stages", "num_stages copies are in flight while tensor cores multiply; limits keep them in "
             "shared memory."),
            ("Memory access", "Rows of both sides in 16-byte accesses; odd sizes are masked. See: "
             "`opforge inspect {name} {kernel} --target sm_90a`."),
            ("Reuse", "The epilogue is done to sums in registers: the product is never written and read again."),
            ("Dynamic shapes", "Few rows and many terms leave most of a GPU idle: split sums are the next step there."),
        ),
        "zh": (
            ("网格配置", "每个 program 计算结果的一块，按 GROUP 行块分组，使两个操作数留在二级缓存。"),
            ("块大小", "寄存器中 BLOCK_M × BLOCK_N 个和，每次取两侧 BLOCK_K_BYTES 字节：`opforge tune {name}`。"),
            ("Warp 和 Stage 配置", "张量核计算时有 num_stages 次拷贝在途；限制条件保证放得进共享内存。"),
            ("内存访问", "两侧按行 16 字节访问，奇数大小用掩码。见："
             "`opforge inspect {name} {kernel} --target sm_90a`。"),
            ("数据复用", "尾部运算直接作用于寄存器中的和：乘积不写出再读回。"),
            ("动态 Shape 处理", "行少、累加项多时 GPU 大部分空闲：下一步是拆分累加。"),
        ),
    },
}  # fmt: skip
"""For each family and language: the six strategies of the document, as (heading, what the generated kernel does and
what to try)."""
