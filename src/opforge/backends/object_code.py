"""Compiled code as it is executed, without names and addresses: of an object file for the host, and of the kernels in
cubins.

An object file that was compiled with a section for each function (`-ffunction-sections -fdata-sections`) is walked from
the exported function: a function is its bytes, and at each relocation what it refers to: another function or variable
by the number under which it was first met, a constant by its content, what lies outside by its name. So neither a name
inside, nor the order of functions, nor a function that nobody calls has a part in it. A kernel belongs to the function
of the host that has its name, through which it is launched.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

NO_BITS, RELA, REL = 8, 4, 9
MERGED, STRINGS = 0x10, 0x20
# x86-64's relocations that count from the end of the field, which is 4 bytes long
RELATIVE = (2, 4, 9, 19, 22, 41, 42)
WIDE = (1, 24, 25)
EXPORTED = "__tvm_ffi_run"
REGISTERING = "cudaRegisterAll"


@dataclass(frozen=True)
class Unit:
    """A function or variable as it was met: its section, and what of it counts."""

    section: str
    content: bytes


@dataclass(frozen=True)
class Section:
    """A section of an ELF file. `info` is what its kind makes of it; of a kernel's code: its registers in the highest
    byte.
    """

    name: str
    kind: int
    flags: int
    info: int
    entry: int
    content: bytes


@dataclass(frozen=True)
class Symbol:
    """A symbol of an ELF file. `section`: the number of its section; 0 where it is defined elsewhere."""

    name: str
    section: int
    value: int
    kind: int


class Elf:
    """A 64-bit little-endian ELF file. Raises ValueError or struct.error for anything else."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        self.data = data

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """In their order; the content of one that takes no room in the file is its size in digits."""
        (table,) = struct.unpack_from("<Q", self.data, 0x28)
        size, count, names = struct.unpack_from("<HHH", self.data, 0x3A)
        headers = [struct.unpack_from("<IIQQQQIIQQ", self.data, table + place * size) for place in range(count)]
        strings = headers[names][4]
        return tuple(
            Section(
                self._string(strings + name),
                kind,
                flags,
                info,
                entry,
                str(length).encode() if kind == NO_BITS else self.data[offset : offset + length],
            )
            for name, kind, flags, _, offset, length, _, info, _, entry in headers
        )

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """The symbol table; empty where the file was stripped."""
        place = next((place for place, section in enumerate(self.sections) if section.name == ".symtab"), None)
        if place is None:
            return ()
        table = self.sections[place].content
        strings = next(section.content for section in self.sections if section.name == ".strtab")
        read_symbols = []
        for start in range(0, len(table), 24):
            name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", table, start)
            end = strings.index(b"\0", name)
            read_symbols.append(Symbol(strings[name:end].decode(errors="replace"), section, value, info & 15))
        return tuple(read_symbols)

    @cached_property
    def relocations(self) -> Mapping[int, list[tuple[int, int, int, int]]]:
        """Section → (offset, kind, symbol, addend) of each place that the linker fills in, in the order of offsets."""
        by_section: dict[int, list[tuple[int, int, int, int]]] = {}
        for section in self.sections:
            if section.kind in (RELA, REL):
                size, form = (24, "<QQq") if section.kind == RELA else (16, "<QQ")
                entries = [
                    struct.unpack_from(form, section.content, start) for start in range(0, len(section.content), size)
                ]
                by_section[section.info] = sorted(
                    (entry[0], entry[1] & 0xFFFFFFFF, entry[1] >> 32, entry[2] if size == 24 else 0)
                    for entry in entries
                )
        return by_section

    def _string(self, start: int) -> str:
        return self.data[start : self.data.index(b"\0", start)].decode(errors="replace")


def digest(units: Sequence[Unit]) -> str:
    """SHA-256, in hex, of units in their order, whatever their sections are called."""
    whole = sha256()
    for unit in units:
        whole.update(b"%d " % len(unit.content) + unit.content)
    return whole.hexdigest()


def host_units(data: bytes, cubins: Sequence[bytes] = ()) -> tuple[Unit, ...]:
    """What the exported function of an object file reaches, and the kernels that it launches."""
    return tuple(_Walk(Elf(data), kernels_in(cubins)).units())


def kernels_in(cubins: Sequence[bytes]) -> dict[str, tuple[Unit, ...]]:
    """Kernel → what of it counts, of all cubins: instructions, registers, barriers, constants, static shared memory."""
    kernels: dict[str, tuple[Unit, ...]] = {}
    for data in cubins:
        elf = Elf(data)
        names = [section.name.removeprefix(".text.") for section in elf.sections if section.name.startswith(".text.")]
        shared = tuple(
            _device_unit(elf, place)
            for place, section in enumerate(elf.sections)
            if re.fullmatch(r"\.nv\.(constant\d+|global(\.init)?)", section.name)
        )
        for name in names:
            mine = [
                place
                for place, section in enumerate(elf.sections)
                if re.fullmatch(rf"\.(text|nv\.constant\d+|nv\.shared)\.{re.escape(name)}", section.name)
            ]
            kernels[name] = (*kernels.get(name, ()), *(_device_unit(elf, place) for place in mine), *shared)
    return kernels


def _device_unit(elf: Elf, place: int) -> Unit:
    section = elf.sections[place]
    kind = section.name.split(".")[1] if section.name.startswith(".text") else section.name.split(".")[2]
    # of code: registers stand in the highest byte of `info`, barriers in `flags`
    heading = f"{kind} {section.info >> 24} {section.flags >> 20}" if kind == "text" else kind
    return Unit(
        section.name,
        f"{heading} ".encode() + _masked(section.content, elf.relocations.get(place, ()), 16 if kind == "text" else 8),
    )


def _masked(content: bytes, relocations: Sequence[tuple[int, int, int, int]], width: int) -> bytes:
    """With the kinds of relocations in the place of what is filled in."""
    changed = bytearray(content)
    for offset, kind, _, _ in relocations:
        if width == 8:
            changed[offset : offset + 8] = bytes(8)
        changed += b" %d %d" % (offset, kind)
    return bytes(changed)


def _plain(name: str) -> str:
    """A mangled name without the mark of internal linkage, which the host's compiler writes and the device's does not.

    >>> _plain("_ZN7opforgeL11map_vectorsILi128EEEvv")
    '_ZN7opforge11map_vectorsILi128EEEvv'
    """
    return re.sub(r"L(?=\d)", "", name)


class _Walk:
    """From the exported function on, each section when it is first met."""

    def __init__(self, elf: Elf, kernels: Mapping[str, tuple[Unit, ...]]) -> None:
        self.elf, self.kernels = elf, {_plain(name): units for name, units in kernels.items()}
        self.numbers: dict[int, int] = {}
        self.pending: list[int] = []
        self.launched: list[str] = []

    def units(self) -> Iterator[Unit]:
        """Raises ValueError where the file exports no function of ours."""
        entry = next((symbol for symbol in self.elf.symbols if symbol.name == EXPORTED and symbol.section), None)
        if entry is None:
            raise ValueError(f"it exports no {EXPORTED}")
        self._number(entry.section)
        for place, section in enumerate(self.elf.sections):
            # what is computed when the library is loaded
            if section.name.startswith(".init_array"):
                for _, _, symbol, _ in self.elf.relocations.get(place, ()):
                    target = self.elf.symbols[symbol]
                    if REGISTERING not in self.elf.sections[target.section].name and REGISTERING not in target.name:
                        self._number(target.section)
        while self.pending:
            yield self._unit(self.pending.pop(0))
        without_host = self.kernels.keys() - {_plain(symbol.name) for symbol in self.elf.symbols if symbol.section}
        # a kernel that no function of the host stands for cannot be told from one that is launched
        for name in (*self.launched, *sorted(without_host)):
            yield from self.kernels[name]

    def _number(self, section: int) -> int:
        if section not in self.numbers:
            self.numbers[section] = len(self.numbers)
            self.pending.append(section)
        return self.numbers[section]

    def _unit(self, place: int) -> Unit:
        section = self.elf.sections[place]
        content = bytearray(section.content)
        told = []
        for offset, kind, symbol, addend in self.elf.relocations.get(place, ()):
            width = 8 if kind in WIDE else 4
            content[offset : offset + width] = bytes(width)
            told.append(f"{offset} {kind} {self._target(self.elf.symbols[symbol], kind, addend)}")
        # an outlined part of a function lies in a section of its own kind
        return Unit(section.name, f"{section.flags & ~0x200} ".encode() + bytes(content) + "\n".join(told).encode())

    def _target(self, symbol: Symbol, kind: int, addend: int) -> str:
        """What a relocation refers to."""
        if symbol.section == 0 or symbol.section >= len(self.elf.sections):
            return f"{symbol.name} {addend}"
        section = self.elf.sections[symbol.section]
        start = symbol.value + addend + (4 if kind in RELATIVE else 0)
        if section.flags & STRINGS:
            return repr(section.content[max(0, start) : section.content.index(b"\0", max(0, start))])
        if section.flags & MERGED and section.entry:
            first = start // section.entry * section.entry
            return f"{section.content[first : first + section.entry].hex()} {start - first}"
        names = (
            {symbol.name}
            if symbol.name
            else {other.name for other in self.elf.symbols if other.section == symbol.section}
        )
        for name in sorted(map(_plain, names)):
            if name in self.kernels and name not in self.launched:
                self.launched.append(name)
        return f"<{self._number(symbol.section)}> {start}"
