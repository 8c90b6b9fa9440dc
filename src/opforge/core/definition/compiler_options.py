"""The options that a kernel's file may give its compiler.

An option is code: `-wrapper`, `-fplugin`, `-specs`, `@file` or nvcc's `-ccbin` start programs of the author's choice,
and others read or write any file. So options are known by pattern, and all others are refused when the file is read.
nvcc hands its words to a shell: a value holds no character that a shell would expand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

VALUE = r"[A-Za-z0-9_.:+-]*"
"""What a macro's value may hold, in an option or in a config."""

_OPTIMISATIONS = """
fast-math finite-math-only associative-math reciprocal-math unsafe-math-optimizations math-errno trapping-math
signed-zeros signaling-nans rounding-math cx-limited-range cx-fortran-rules approx-func honor-nans honor-infinities
strict-aliasing strict-overflow wrapv wrapv-pointer strict-enums delete-null-pointer-checks omit-frame-pointer
vectorize slp-vectorize prefetch-loop-arrays inline inline-functions inline-small-functions
inline-functions-called-once
early-inlining gcse gcse-after-reload ivopts web rename-registers modulo-sched schedule-insns schedule-insns2
align-loops align-functions align-jumps align-labels if-conversion if-conversion2 code-hoisting predictive-commoning
reorder-blocks reorder-functions section-anchors graphite-identity interchange-loops jump-tables
openmp openmp-simd exceptions rtti unwind-tables asynchronous-unwind-tables non-call-exceptions
stack-protector stack-protector-strong stack-protector-all stack-clash-protection
PIC pic PIE pie plt semantic-interposition visibility-inlines-hidden function-sections data-sections
merge-constants signed-char unsigned-char char8_t permissive builtin freestanding common diagnostics-show-caret
"""
_FAMILIES = "tree ipa loop sched vect split unroll peel"
"""Families of optimisations whose members take no value: `-ftree-vectorize`, `-funroll-loops`."""
_VALUED = r"""
fp-contract=(?:fast|on|off) ffp-exception-behavior=(?:ignore|maytrap|strict) fp-model=(?:precise|fast|strict)
excess-precision=(?:fast|standard|16) vect-cost-model=[a-z-]+ simd-cost-model=[a-z-]+ inline-limit=\d+
visibility=(?:hidden|default|internal|protected) template-depth=\d+ constexpr-[a-z-]+=\d+ max-errors=\d+
align-(?:loops|functions|jumps|labels)=[\d:]+ tls-model=[a-z-]+ diagnostics-color=(?:never|always|auto)
"""
_MACHINE = r"""
(?:no-)?(?:3dnow|adx|aes|amx-[a-z0-9]+|avx[a-z0-9.-]*|bmi2?|clflushopt|clwb|cx16|f16c|fma4?|fsgsbase|gfni|lzcnt)
(?:no-)?(?:pclmul|popcnt|prfchw|rdrnd|rdseed|sha|sse[a-z0-9.]*|ssse3|vaes|vpclmulqdq|vzeroupper|xsave[a-z]*|red-zone)
(?:arch|tune|cpu)=[A-Za-z0-9_.+-]+ fpmath=[a-z0-9,+]+ prefer-vector-width=\d+ (?:no-)?recip
(?:no-)?(?:mmx|movbe) cmodel=(?:small|medium|large)
sve-vector-bits=\w+ 64 abi=\w+ (?:no-)?unaligned-access (?:no-)?outline-atomics stackrealign
"""
_LIBRARIES = "m pthread gomp omp stdc\\+\\+ atomic quadmath rt dl gcc_s cuda cudart cudadevrt"
"""Those that a kernel's own arithmetic may need. One that computes in its place belongs in library_*.py."""


def _one_of(words: str) -> str:
    return "|".join(words.split())


_HOST = re.compile(
    "|".join(
        (
            r"-O(?:[0-3sgz]|fast)?",
            r"-g[0-3]?",
            r"-std=(?:c|gnu)\+\+[0-9a-z]{2}",
            rf"-D[A-Za-z_]\w*(?:={VALUE})?",
            r"-U[A-Za-z_]\w*",
            rf"-f(?:no-)?(?:{'|'.join(map(re.escape, _OPTIMISATIONS.split()))})",
            rf"-f(?:no-)?(?:{_one_of(_FAMILIES)})-[a-z0-9-]+",
            rf"-f(?:{_one_of(_VALUED)})",
            rf"-m(?:{_one_of(_MACHINE)})",
            # warnings: neither -Wl, -Wp, -Wa, whose words are another program's, nor one that names a file
            r"-W[a-z][a-z0-9+-]+(?:=[a-z0-9+-]+)?",
            r"-w|-pedantic|-pthread|-ansi",
            rf"-l(?:{_one_of(_LIBRARIES)})",
        )
    )
)
_NVCC = re.compile(
    "|".join(
        (
            r"-use[_-]fast[_-]math|-restrict|-lineinfo|-generate-line-info|-extra-device-vectorization",
            r"-expt-relaxed-constexpr|-(?:expt-)?extended-lambda|-source-in-ptx|-src-in-ptx|-resource-usage|-res-usage",
            r"-(?:ftz|prec-div|prec-sqrt|fmad)=(?:true|false)",
            r"-(?:rdc|relocatable-device-code)=(?:true|false)",
            r"-maxrregcount=\d+|-(?:threads|split-compile)=\d+|-(?:std|dialect)=c\+\+\d\d",
            r"-(?:arch|gpu-architecture)=(?:sm|compute)_\d+[af]?",
            r"-(?:gencode|generate-code)=arch=compute_\d+[af]?,code=(?:sm|compute)_\d+[af]?",
            r"-default-stream=(?:legacy|null|per-thread)|-cudart=(?:static|shared)|-dopt=(?:on|off)",
            r"-diag[_-](?:suppress|warn|error)=[\d,]+|-Wno-deprecated-gpu-targets",
        )
    )
)
_PTXAS = re.compile(
    "|".join(
        (
            r"-v|-verbose|-O[0-4]|-opt-level=[0-4]|-w|-fmad=(?:true|false)|-maxrregcount=\d+",
            r"-(?:dlcm|def-load-cache)=(?:ca|cg|cs|cv)|-(?:dscm|def-store-cache)=(?:wb|cg|cs|wt)",
            r"-warn-(?:on-spills|spills|on-local-memory-usage|lmem-usage|on-double-precision-use|double-usage)",
            r"-allow-expensive-optimizations=(?:true|false)|-disable-optimizer-constants|-register-usage-level=\d+",
            r"-suppress-(?:double-demote|stack-size)-warning",
        )
    )
)
_FATBIN = re.compile(r"-compress-all|-no-compress|-compress=(?:true|false)|-compress-mode=[a-z]+")
_CUDAFE = re.compile(r"-diag[_-](?:suppress|warn|error)=\w+|-display[_-]error[_-]number")
_PASSED_ON = {
    "-Xptxas": _PTXAS,
    "-ptxas-options": _PTXAS,
    "-Xcompiler": _HOST,
    "-compiler-options": _HOST,
    "-Xfatbin": _FATBIN,
    "-Xcudafe": _CUDAFE,
    "-cudafe-options": _CUDAFE,
}
"""nvcc's options whose value is another program's options, with those that are known of it."""
_PAIRED = ("-maxrregcount", "-arch", "-gencode", "-std", "-cudart", "-default-stream", "-diag-suppress", "-rdc")
"""nvcc's options whose value may be the next word."""

NEXT_STEP = {
    "-I": 'lay the header beside the file and write #include "name.h"',
    "-i": 'write #include "name.h" in the file, with the header beside it',
    "-L": "link nothing from a folder: a library that computes belongs in a library_*.py file",
    "-l": "a library that computes belongs in a library_*.py file; known are m, pthread, gomp, atomic, cudart, cuda",
    "-D": "give the macro a number or a name as its value, or #define it in the file",
}


def refused(options: Sequence[object]) -> str:
    """Why these options are not given to a compiler, with the next step; "" where all of them are known.

    >>> refused(("-O3", "-march=native", "-Xptxas", "-v,-dlcm=cg", "--use_fast_math", "-DROWS=4"))
    ''
    >>> refused(("-wrapper", "/bin/sh,payload"))[:75]
    "the option '-wrapper' is not one that a kernel's file may give its compiler"
    """
    for option in _joined(options):
        if not isinstance(option, str) or not _known(option):
            word = option if isinstance(option, str) else repr(option)
            step = next((step for begin, step in NEXT_STEP.items() if word.startswith(begin)), "take it out")
            return (
                f"the option {word!r:.200} is not one that a kernel's file may give its compiler: options can start "
                "programs and read or write files, so only those of known kinds pass (docs/kernels.md, Options). "
                f"Next: {step}"
            )
    return ""


def refused_definition(name: str, value: object) -> str:
    """Why a macro is not defined so, with the next step; "" where it is harmless.

    >>> refused_definition("TILE", 64), refused_definition("KIND", "row"), refused_definition("TILE", "$(id)") == ""
    ('', '', False)
    """
    if re.fullmatch(r"[A-Za-z_]\w*", name) and re.fullmatch(VALUE, str(value)):
        return ""
    return (
        f"the config's {name!r:.80} = {value!r:.80} is no macro: a compiler may hand it to a shell. Next: give it a "
        "number or a word of letters, digits and _ . : + -"
    )


def _joined(options: Sequence[object]) -> Iterator[object]:
    """The options, each with its value where that is the next word."""
    words = iter(options)
    for word in words:
        bare = _single(word) if isinstance(word, str) else ""
        if bare in _PASSED_ON or bare in _PAIRED:
            value = next(words, None)
            yield f"{word}={value}" if isinstance(value, str) else word
        else:
            yield word


def _single(word: str) -> str:
    """nvcc takes its long names with one dash or two."""
    return word[1:] if word.startswith("--") else word


def _known(option: str) -> bool:
    name, separator, value = _single(option).partition("=")
    if separator and name in _PASSED_ON:
        parts = value.split(",")
        return all(
            _PASSED_ON[name].fullmatch(part if _PASSED_ON[name] is _HOST else _single(part)) is not None
            for part in parts
        )
    return _HOST.fullmatch(option) is not None or _NVCC.fullmatch(_single(option)) is not None


_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_READS = (
    (r"^[ \t]*(?:#|%:)[ \t]*(?:include|include_next|import)[ \t]*[\"<][ \t]*[/~]", "includes a file by its whole path"),
    (r"^[ \t]*(?:#|%:)[ \t]*embed\b", "embeds a file"),
    (r"\b__has_(?:include|include_next|embed)[ \t]*\([ \t]*[\"<][ \t]*[/~]", "asks for a file by its whole path"),
    (r"\.incbin\b|\"[ \t]*\.include\b", "has the assembler read a file"),
    (r"^[ \t]*#[ \t]*pragma[ \t]+GCC[ \t]+(?:pch_preprocess|dependency)\b", "has a pragma that reads a file"),
)


def refused_text(text: str) -> tuple[int, str]:
    """The line of a C++ or CUDA source that reads what its hash cannot cover, and why it is refused; (0, "") for none.
    What is spelt so that it is not found here meets the walls around the compiler.

    >>> refused_text('#include "beside.h"\\n#include <cmath>\\n')
    (0, '')
    >>> refused_text('// idea\\n#include "/dev/stdin"\\n')[0]
    2
    """
    plain = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for pattern, what in _READS:
        found = re.search(pattern, plain, re.MULTILINE)
        if found is not None:
            return plain.count("\n", 0, found.end()) + 1, (
                f"the source {what}, which its hash does not cover. Next: lay what it needs into a header beside it "
                'and write #include "name.h"'
            )
    return 0, ""
