"""A small interpreter of linalg text, and a maker of functions for it: what the reader of linalg is held against.

It shares nothing with opforge. A function is run one point of its loops after another, in Python's floats, straight
from the text, line by line.
"""

from __future__ import annotations

import itertools
import math
import random
import re

NAME = r"%[A-Za-z0-9_#]+"


def run(text, function, inputs, dims):
    """What a function returns: [({index: number}, element)], in order.

    inputs   name -> {index: number}
    dims     name of an argument -> its sizes
    """
    maps = {
        name: ([d.strip() for d in left.split(",")], [d.strip() for d in right.split(",") if d.strip()])
        for name, left, right in re.findall(r"(#\w+) = affine_map<\((.*?)\) -> \((.*?)\)>", text)
    }
    body = re.search(rf"func\.func @{function}\(.*?\{{\n(.*?)\n\}}\n", text, re.DOTALL)[1]
    tensors = {name: dict(values) for name, values in inputs.items()}
    sizes = dict(dims)
    numbers: dict[str, float] = {}
    lines = iter(body.split("\n"))
    for line in lines:
        line = line.strip()
        if match := re.match(rf"({NAME}) = arith\.constant (\S+) : \w+$", line):
            numbers[match[1]] = literal(match[2])
        elif match := re.match(rf"({NAME}) = tensor\.empty\(\) : tensor<(.*)>$", line):
            sizes[match[1]] = tuple(int(one) for one in match[2].split("x")[:-1])
            tensors[match[1]] = {}
        elif match := re.match(rf"({NAME}) = linalg\.fill ins\(({NAME}) : \w+\) outs\(({NAME}) ", line):
            sizes[match[1]] = sizes[match[3]]
            tensors[match[1]] = dict.fromkeys(itertools.product(*map(range, sizes[match[3]])), numbers[match[2]])
        elif match := re.match(rf"({NAME}) = (arith|math)\.(\w+) (.*?) : tensor", line):
            given = re.findall(NAME, match[4])
            sizes[match[1]] = sizes[given[0]]
            tensors[match[1]] = {
                at: apply(match[3], "", [tensors[one][at] for one in given]) for at in tensors[given[0]]
            }
        elif match := re.match(rf"({NAME})(:\d+)? = linalg\.generic \{{indexing_maps = \[(.*?)\], (.*)", line):
            nest(match, lines, maps, tensors, sizes, numbers)
        elif match := re.match(r"return (.*?) : (.*)$", line):
            returned = [one.strip() for one in match[1].split(",")]
            kinds = re.findall(r"tensor<[^>]*?(\w+)>", match[2].replace("x", " "))
            return [(tensors[one], kind) for one, kind in zip(returned, kinds, strict=True)]
        else:
            raise ValueError(line)
    raise ValueError("nothing is returned")


def nest(match, lines, maps, tensors, sizes, numbers):
    rest = match[4]
    kinds = re.findall(r'"(\w+)"', rest.split("]")[0])
    walked = [maps[one.strip()] for one in match[3].split(",")]
    ins = re.findall(NAME, re.search(r" ins\((.*?) :", rest)[1])
    outs = re.findall(NAME, re.search(r" outs\((.*?) :", rest)[1])
    arguments = re.findall(NAME, next(lines))
    steps = []
    while not (step := next(lines).strip()).startswith("}"):
        steps.append(step)
    names = [match[1]] if match[2] is None else [f"{match[1]}#{at}" for at in range(len(outs))]
    extent: dict[str, int] = {}
    for name, (loops, places) in zip([*ins, *outs], walked, strict=True):
        for at, place in enumerate(places):
            if place in loops:
                assert extent.setdefault(place, sizes[name][at]) == sizes[name][at]
    results = [dict(tensors[one]) for one in outs]
    loops = walked[0][0]
    assert len(kinds) == len(loops)
    for point in itertools.product(*(range(extent[loop]) for loop in loops)):
        here = dict(zip(loops, point, strict=True))
        at = [tuple(place_of(place, here) for place in places) for _, places in walked]
        known = dict(numbers)
        for argument, name, index in zip(arguments, ins, at, strict=False):
            known[argument] = tensors[name][index]
        for argument, result, index in zip(arguments[len(ins) :], results, at[len(ins) :], strict=True):
            known[argument] = result.get(index, math.nan)
        for step in steps:
            if made := re.match(rf"({NAME}) = arith\.constant (\S+) :", step):
                known[made[1]] = literal(made[2])
            elif made := re.match(rf"({NAME}) = \w+\.(\w+) (\w+, )?(.*?) :", step):
                given = [known[one] for one in re.findall(NAME, made[4])]
                known[made[1]] = apply(made[2], (made[3] or "").strip(", "), given)
            elif made := re.match(r"linalg\.yield (.*?) :", step):
                for value, result, index in zip(re.findall(NAME, made[1]), results, at[len(ins) :], strict=True):
                    result[index] = known[value]
            else:
                raise ValueError(step)
    for name, out, result in zip(names, outs, results, strict=True):
        tensors[name], sizes[name] = result, sizes[out]


def place_of(text, here):
    """A result of a map: a loop, or a loop and a number."""
    return here[text] if text in here else eval(text, {}, dict(here))


def literal(text):
    import struct

    return struct.unpack(">f", bytes.fromhex(text[2:]))[0] if text.startswith("0x") else float(text)


def apply(name, how, given):
    a, b, c = (*given, 0.0, 0.0)[:3]
    compared = {"ogt": a > b, "ole": a <= b, "ult": not a >= b, "one": a < b or a > b, "oeq": a == b}
    return {
        "addf": lambda: a + b,
        "subf": lambda: a - b,
        "mulf": lambda: a * b,
        "divf": lambda: a / b if b else math.nan,
        "maximumf": lambda: max(a, b),
        "minimumf": lambda: min(a, b),
        "negf": lambda: -a,
        "absf": lambda: abs(a),
        "exp": lambda: math.exp(min(a, 700.0)),
        "tanh": lambda: math.tanh(a),
        "sin": lambda: math.sin(a),
        "erf": lambda: math.erf(a),
        "floor": lambda: math.floor(a),
        "fma": lambda: a * b + c,
        "cmpf": lambda: compared[how],
        "select": lambda: b if a else c,
        "andi": lambda: a and b,
        "extf": lambda: a,
        "truncf": lambda: a,
    }[name]()


class Maker:
    """Functions as text, of what is read and of what isn't, from a seed."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        # where all sizes are one, a tensor may be walked by other loops at each use
        self.square = self.draw.random() < 0.3
        self.sizes = {"i": 3, "j": 3, "k": 3} if self.square else {"i": 3, "j": 4, "k": 2}
        self.element = self.draw.choice((*("f32",) * 10, "f16", "f64"))
        self.maps: dict[str, str] = {}
        self.lines: list[str] = []
        self.count = 0
        # (name, axes, element) of what may be read
        self.known: list[tuple[str, str, str]] = []
        self.made: list[tuple[str, str, str]] = []

    def name(self):
        self.count += 1
        return f"%{self.draw.choice(('', 'v', 'sum_'))}{self.count}"

    def type(self, axes, element=None):
        return f"tensor<{''.join(f'{self.sizes[one]}x' for one in axes)}{element or self.element}>"

    def map(self, loops, places):
        text = f"affine_map<({', '.join(loops)}) -> ({', '.join(places)})>"
        return self.maps.setdefault(text, f"#m{len(self.maps)}")

    def function(self, name="f"):
        draw = self.draw
        arguments = [(f"%arg{at}", draw.choice(("ij", "i", "j", "ji", "ijk", "jk", "ij"))) for at in range(3)]
        mixed = draw.random() < 0.05
        kinds = [draw.choice(("f16", "f64")) if mixed and at == 1 else self.element for at in range(3)]
        self.known = [(one, axes, kind) for (one, axes), kind in zip(arguments, kinds, strict=True)]
        draw.shuffle(self.known)
        self.lines, self.made = [], []
        for _ in range(draw.choice((1, 1, 2, 2, 3))):
            self.operation()
        outputs = [self.made[-1]]
        if len(self.made) > 1 and draw.random() < 0.25:
            outputs.append(draw.choice(self.made[:-1]))
        types = ", ".join(self.type(axes, kind) for _, axes, kind in outputs)
        self.lines.append(f"return {', '.join(one for one, _, _ in outputs)} : {types}")
        head = ", ".join(f"{one}: {self.type(axes, kind)}" for (one, axes), kind in zip(arguments, kinds, strict=True))
        body = "\n".join(f"  {line}" for line in self.lines)
        return f"func.func @{name}({head}) -> ({types}) {{\n{body}\n}}\n"

    def text(self):
        functions = [self.function()]
        if self.draw.random() < 0.05:
            functions.append(self.function("g"))
        aliases = "".join(f"{alias} = {text}\n" for text, alias in self.maps.items())
        return aliases + "".join(functions)

    def started(self, axes, element, number):
        empty = self.name()
        self.lines.append(f"{empty} = tensor.empty() : {self.type(axes, element)}")
        if number is None:
            return empty
        constant, filled = self.name(), self.name()
        self.lines.append(f"{constant} = arith.constant {number} : {element}")
        kind = self.type(axes, element)
        self.lines.append(f"{filled} = linalg.fill ins({constant} : {element}) outs({empty} : {kind}) -> {kind}")
        return filled

    def operation(self):
        draw = self.draw
        if draw.random() < 0.12:
            source, axes, kind = draw.choice(self.known)
            result = self.name()
            operation = draw.choice(("math.exp", "arith.negf", "math.absf", "math.tanh"))
            self.lines.append(f"{result} = {operation} {source} : {self.type(axes, kind)}")
            self.keep(result, axes, kind)
            return
        count = draw.choice((1, 2, 2, 3))
        # the newest first, so that what is made is used
        pool = [*reversed(self.made), *self.known]
        operands = [pool[0], *(draw.choice(pool) for _ in range(count - 1))]
        if self.square and draw.random() < 0.6:
            operands = [(name, "".join(draw.sample("ijk", len(axes))), kind) for name, axes, kind in operands]
        loops = sorted({axis for _, axes, _ in operands for axis in axes})
        reduced = draw.sample(loops, draw.choice((1, 1, 2))) if len(loops) > 2 and draw.random() < 0.5 else []
        if len(loops) == 2 and draw.random() < 0.35:
            reduced = [draw.choice(loops)]
        kept = [one for one in loops if one not in reduced]
        if draw.random() < 0.3:
            draw.shuffle(kept)
        if draw.random() < 0.04 and len(kept) > 1:
            # several points write one element: the last one wins
            kept.pop()
        out = "".join(kept)
        element = operands[0][2]
        places = [self.places(axes) for _, axes, _ in operands]
        how = draw.choice(("addf", "addf", "maximumf", "minimumf"))
        neutral = {"addf": "0.000000e+00", "maximumf": "0xFF800000", "minimumf": "0x7F800000"}[how]
        if element != "f32":
            neutral = {"addf": "0.0", "maximumf": "-4.0", "minimumf": "4.0"}[how]
        start = neutral if draw.random() < 0.8 else "1.500000e+00"
        before = self.started(out, element, start if reduced or draw.random() < 0.2 else None)
        if draw.random() < 0.15:
            same = [one for one in pool if one[1] == out and one[2] == element]
            before = draw.choice(same)[0] if same else before
        self.generic(operands, places, loops, reduced, out, before, element, how)

    def places(self, axes):
        """An operand's map: its axes; at times one that is no plain loop."""
        found = list(axes)
        if self.draw.random() < 0.03:
            found[0] = f"{found[0]} + 0"
        return found

    def generic(self, operands, places, loops, reduced, out, before, element, how):
        draw = self.draw
        names = [f"%a{at}" for at in range(len(operands))]
        inside = list(names)
        kinds = [kind for _, _, kind in operands]
        steps = []
        truths = []
        if draw.random() < 0.85:
            for number, name in enumerate(names[1:]):
                step, op = f"%t{number}", draw.choice(("addf", "subf", "mulf", "mulf", "maximumf"))
                steps.append(f"{step} = arith.{op} {inside[-1] if number else names[0]}, {name} : {element}")
                inside.append(step)
            if draw.random() < 0.5:
                inside = inside[-1:]
        for number in range(draw.choice((0, 1, 2, 3))):
            step, first, second = f"%s{number}", draw.choice(inside), draw.choice(inside)
            kind = draw.choice(("two", "two", "one", "constant", "cmp", "select", "strange"))
            if kind == "strange" and draw.random() < 0.8:
                kind = "two"
            if kind == "constant":
                steps.append(f"{step} = arith.constant {draw.choice(('5.000000e-01', '2.0', '-0.25'))} : {element}")
            elif kind == "one":
                op = draw.choice(("math.exp", "math.tanh", "arith.negf", "math.sin", "math.absf", "math.floor"))
                steps.append(f"{step} = {op} {first} : {element}")
            elif kind == "strange":
                op = draw.choice(("arith.remf", "math.cbrt", "arith.maxnumf"))
                steps.append(f"{step} = {op} {first}, {second} : {element}")
            elif kind == "cmp" or (kind == "select" and not truths):
                steps.append(
                    f"{step} = arith.cmpf {draw.choice(('ogt', 'ole', 'ult', 'one'))}, {first}, {second} : {element}"
                )
                truths.append(step)
                continue
            elif kind == "select":
                steps.append(f"{step} = arith.select {truths[-1]}, {first}, {second} : {element}")
            else:
                op = draw.choice(("addf", "subf", "mulf", "mulf", "maximumf", "minimumf"))
                steps.append(f"{step} = arith.{op} {first}, {second} : {element}")
            inside.append(step)
        last = inside[-1]
        if reduced:
            pair = ["%out", last] if draw.random() < 0.7 else [last, "%out"]
            steps.append(f"%r = arith.{how} {pair[0]}, {pair[1]} : {element}")
            last = "%r"
        elif draw.random() < 0.12:
            steps.append(f"%r = arith.addf {last}, %out : {element}")
            last = "%r"
        steps.append(f"linalg.yield {last} : {element}")
        walked = ", ".join(self.map(loops, one) for one in [*places, list(out)])
        iterators = ", ".join(f'"{"reduction" if one in reduced else "parallel"}"' for one in loops)
        given = ", ".join(name for name, _, _ in operands)
        types = ", ".join(self.type(axes, kind) for _, axes, kind in operands)
        heads = [f"{name}: {kind}" for name, kind in zip(names, kinds, strict=True)] + [f"%out: {element}"]
        result = self.name()
        kind = self.type(out, element)
        self.lines.append(
            f"{result} = linalg.generic {{indexing_maps = [{walked}], iterator_types = [{iterators}]}} "
            f"ins({given} : {types}) outs({before} : {kind}) {{"
        )
        self.lines.append(f"^bb0({', '.join(heads)}):")
        self.lines += [f"  {step}" for step in steps]
        self.lines.append(f"}} -> {kind}")
        self.keep(result, out, element)

    def keep(self, result, axes, element):
        if axes:
            self.made.append((result, axes, element))
        elif not self.made:
            self.operation()
