"""Options of a compiler that an author writes are code: those of known kinds pass, all others are refused when read."""

from __future__ import annotations

from pathlib import Path

import pytest

from opforge.backends import native
from opforge.backends.cpp import FLAGS as CPP_FLAGS
from opforge.backends.cuda import DEVICE_FLAGS
from opforge.core.definition.compiler_options import refused, refused_definition, refused_text
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.language.errors import UsageError
from opforge.registry import load
from opforge.registry.implementation_files import read_implementation


def _options(text: str) -> list[tuple[str, ...]]:
    """One combination of options between bars, or on a line."""
    return [tuple(words.split()) for line in text.strip().splitlines() for words in line.split(" | ")]


# what starts another program; reads more options; reads files; writes files; hides in a value
_PLAIN = """
-wrapper /bin/sh,payload | -fplugin=evil.so | -fplugin evil.so | -fplugin-arg-evil-x=1 | -specs=evil.specs
--specs=evil.specs | -B. | -B/tmp/tools | -B . | -ccbin ./evil | -ccbin=./evil | --compiler-bindir=./evil
--run | -run | --run-args x | -fuse-ld=/tmp/x | -fuse-ld=gold | --ld-path=/tmp/x | -fuse-linker-plugin | -flto
-flto=auto | -Xclang -load | -mllvm -load=evil.so | -fpass-plugin=evil.so | -fopenmp-targets=nvptx64
-foffload=x | --use-local-env | -Xnvlink -x | --nvlink-options -x | -no-canonical-prefixes | -gcc-toolchain=x
--gcc-toolchain=/tmp | --target=x | -target x | -ld x | --drive-prefix=x | -prepend x
@options | -O3 @options | -optf options | --options-file options | --options-file=options | --config=evil.cfg
-Xassembler -x | -Wa,-I/tmp | -Wp,-include,/etc/passwd | -Wl,-rpath,/tmp | -Wl,-T,evil.ld | -Xlinker -T
-Xlinker=-Tevil | --linker-options -T | -Xpreprocessor -x | -T evil.ld | -Tevil.ld | -Xarch_device -x
--param=x=1 | -fprofile-use=/tmp/x
-include /dev/stdin | -include/etc/passwd | --include=/etc/passwd | -imacros /etc/passwd | --pre-include x | -I/
-I /etc | -isystem/etc | -iquote / | -idirafter / | -iprefix/ | -isysroot/ | --sysroot=/tmp | -include-pch x
-fmodule-file=x | -fmodules-ts | -x assembler | -xc | -L/tmp | -L. | -L . | -l:evil.so | -ltorch | -lopenblas
-lcublas | -lmkl_rt | -l evil | evil.o | evil.so | /tmp/evil.a | -fprofile-use | -fauto-profile=x
-fsanitize-blacklist=x | -dlink | -nvvm-path=x | -ldir x | -fcf-check-attribute=x | -ffile-prefix-map=a=b
-frandom-seed=x | --dependency-drive-prefix x
-o /root/x | -o/root/x | -save-temps | -save-temps=obj | --keep | -keep-dir /root | -M | -MD | -MMD
-MF /root/x | -MF/root/x | -MT x | -dumpdir /root/ | -dumpbase x | -fdump-tree-all | -fdump-ipa-all=/root/x
-fopt-info-vec=/root/x | -fstack-usage | -ftime-report | -fcallgraph-info | -ftest-coverage | --coverage
-fprofile-generate=/root | -fprofile-dir=/root | -gsplit-dwarf | -fdiagnostics-format=sarif-file | -E | -S | -c
-cubin | -ptx | --dryrun | -dryrun | -ptxas-path=x | -time /root/x | --fdevice-time-trace=/root/x | -pipe | -v
-### | -static-libgcc | -nostdinc | -nostdlib | -rdynamic | -shared | -z execstack | -u x | -march
-arch=native | -arch native | - | -ftree-vectorize=/root/x | -funroll-x=/root/x | -Wframe-x=/root/x
-march=/root/x
-DX=$(id) | -DX=`id` | -DX=";id;" | -D X=1 | -D | -D1=2 | -UX=1 | -Xcompiler -fplugin=evil.so
-Xcompiler=-O3,-wrapper,x | -Xcompiler -O3,@options | -Xcompiler | --compiler-options -B.
--compiler-options=-specs=x | -Xptxas -o,x | -Xptxas=--options-file,x | -Xptxas --input-as-string
--ptxas-options=-optf,x | -Xptxas -v;id | -Xfatbin --create=/root/x | -Xcudafe --gen_c_file_name,x
-maxrregcount $(id) | -std x | -gencode arch=compute_90a,code=$(id)
"""
HOSTILE = [
    *_options(_PLAIN),
    ("-fmodule-mapper=|/bin/sh payload",), ("",), (" ",), ("-O3 -fplugin=x",), ("-O3\n-fplugin=x",),
    ("-DX=\\",), ("-DX=a b",), ('-Xcompiler', '"-O3 -Bx"'), ("-Xptxas", 7), (7,), (None,), (["-O3"],),
]  # fmt: skip
HONEST = _options("""
-ffast-math | -O3 | -Ofast | -O2 -g | -march=native | -march=x86-64-v3 -mtune=native
-mavx512f -mprefer-vector-width=512 | -mno-avx512f | -mfma | -mcpu=neoverse-n1 | -std=c++20 | -std=gnu++17
-fopenmp | -fopenmp-simd | -funroll-loops | -fno-tree-vectorize | -pthread | -ffp-contract=off
-fno-strict-aliasing | -fassociative-math -fno-signed-zeros | -finline-limit=400 | -fvect-cost-model=unlimited
-Wall -Wno-unused-variable | -Werror=return-type | -w | -DTILE=64 | -DNDEBUG | -DSCALE=1.5e-3 | -UNDEBUG | -lm
-lgomp | --use_fast_math | -use_fast_math | -lineinfo | --expt-relaxed-constexpr | --expt-extended-lambda
-extended-lambda | -Xptxas -v | -Xptxas=-O3,-dlcm=ca | --ptxas-options=-v
-Xptxas --warn-on-spills,--register-usage-level=10 | --maxrregcount=128 | -maxrregcount 64
--ftz=true --prec-div=false | -Xcompiler -O3,-fopenmp | --compiler-options=-fPIC
-gencode arch=compute_90a,code=sm_90a | -arch=sm_90a | -lcuda | --diag-suppress=177,550
-Xcudafe --diag_suppress=177 | -Xfatbin -compress-all | --restrict | --default-stream=per-thread | -rdc=true
--threads=4 | -cudart static
""")


@pytest.mark.parametrize("options", HOSTILE, ids=str)
def test_an_option_that_could_run_read_or_write_is_refused_with_a_next_step(options):
    """Each names a way out of the compiler: a program, more options, a file."""
    why = refused(options)
    assert "is not one that a kernel's file may give its compiler" in why and " Next: " in why


def test_the_options_that_kernels_are_tuned_with_pass():
    """Optimisation, architecture, macros, warnings; what opforge itself gives its compilers of these kinds."""
    assert {options: refused(options) for options in HONEST if refused(options)} == {}
    assert refused([flag for flag in CPP_FLAGS if flag != "-shared"]) == refused(DEVICE_FLAGS) == ""


def test_every_file_of_the_package_passes():
    """They are read through the same check; a refusal names the file."""
    registry = load(())
    assert {
        name for name in registry.names() for item in registry.implementations(name) if refused(item.flags)
    } == set()


@pytest.mark.parametrize(
    ("suffix", "text", "said"),
    [
        (".cpp", '// idea\n/* opforge\nflags = ["-wrapper", "/bin/sh,x"]\n*/\n', ":3: the option '-wrapper' is not"),
        (".cu", '// idea\n/* opforge\nflags = ["-ccbin", "./evil"]\n*/\n', ":3: the option '-ccbin' is not"),
        (".cpp", '// idea\n/* opforge\nflags = ["-lopenblas"]\n*/\n', "Next: a library that computes belongs"),
        (".cpp", '// idea\n#include "/dev/stdin"\n', ":2: the source includes a file by its whole path"),
        (".cpp", "// idea\n  %: include </etc/passwd>\n", ":2: the source includes a file by its whole path"),
        (".cpp", '// idea\nasm(".incbin \\"/etc/passwd\\"");\n', ":2: the source has the assembler read a file"),
        (".cu", '// idea\nconst char x[] = {\n#embed "x.bin"\n};\n', ":3: the source embeds a file"),
        (".cpp", '// idea\n#if __has_include("/root/.ssh/id")\n#endif\n', ":2: the source asks for a file"),
        (".cpp", '// idea\n#pragma GCC pch_preprocess "x"\n', ":2: the source has a pragma that reads a file"),
        (".cu", '// idea\n/* opforge\nspace = { T = ["$(id)"] }\ndefault = { T = "$(id)" }\n*/\n', "is no macro"),
        (".cu", '// idea\n/* opforge\nspace = { T = [1] }\ndefault = { T = 1 }\n*/\n', ""),
        (".cpp", '// no .incbin here\n/* #embed "x" */\n#include "mine.h"\n#include <cmath>\n', ""),
    ],
)  # fmt: skip
def test_a_file_is_refused_when_it_is_read(tmp_path, suffix, text, said):
    """With the line, before any compiler has seen it."""
    backend = {".cpp": "cpp", ".cu": "cuda"}[suffix]
    (tmp_path / f"{backend}_x{suffix}").write_text(text)
    if not said:
        read_implementation("x", tmp_path, f"{backend}_x")
        return
    with pytest.raises(UsageError) as told:
        read_implementation("x", tmp_path, f"{backend}_x")
    assert said in str(told.value) and "Next: " in str(told.value)


def test_what_was_never_read_from_a_file_is_held_to_the_same(tmp_path):
    """A config of the command line, an implementation that a program has made."""
    assert (
        refused_definition("TILE", "8;id") and refused_definition("A=1 -x", 1) and not refused_definition("TILE", True)
    )
    made = Implementation(
        name="cpp_x", operator="x", backend="cpp", source=tmp_path / "cpp_x.cpp", idea="x", flags=("-specs=x",)
    )
    with pytest.raises(UsageError, match="the option '-specs=x'"):
        native.own_options(made, Config())
    with pytest.raises(UsageError, match="is no macro"):
        native.definitions(Config((("T", "`id`"),)))


def test_nvcc_is_given_no_word_that_a_shell_expands(tmp_path):
    """It starts its parts through a shell: a folder called $(id) would be run."""
    with pytest.raises(UsageError, match="nvcc hands its words to a shell"):
        native.compile_with(["nvcc", str(Path("/$(id)/cuda_x.cu"))])
    assert refused_text("x\n") == (0, "")
