"""Operations of arith and math, on numbers in the body of a linalg operation or on whole tensors, as expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from opforge.forge.program.lower import HIGHEST_POWER
from opforge.forge.read.mlir import FLOATS, Cursor, TensorType, Token, shown, written

BINARY = {"addf": "+", "subf": "-", "mulf": "*", "divf": "/"}
CHOSEN = {"maximumf": "maximum", "minimumf": "minimum", "maxf": "maximum", "minf": "minimum"}
MATH = {
    name: name
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh",
        "tanh", "erf", "erfc", "floor", "ceil", "trunc",
    )
}  # fmt: skip
MATH["absf"] = "abs"
COMPARED = {"ogt": ">", "oge": ">=", "olt": "<", "ole": "<=", "oeq": "==", "une": "!="}
UNORDERED = {"ugt": "<=", "uge": "<", "ult": ">=", "ule": ">"}
"""True for a NaN too: what is asked is the contrary."""
LOGIC = {"andi": "and", "ori": "or"}
COMBINED = {"addf": "sum", "maximumf": "max", "minimumf": "min", "maxf": "max", "minf": "min"}
"""Operations by which a reduction adds a term to its output."""
POWERS = ("0.5", *(f"{whole}.0" for whole in range(1, HIGHEST_POWER + 1)))
LONGEST = 48
"""Letters of an expression; a longer one becomes a statement of its own, so that using it twice costs a name."""


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A number in a body.

    element   its type: "f32", "f16", "bf16", "i1" for a condition, "i32" … for whole numbers
    out       the output that it is, as a reduction finds it; None for others
    how, of   "sum", "max", "min": it is the output with one more term; the term
    factors   texts of the two operands whose product it is
    """

    text: str
    element: str
    out: int | None = None
    how: str = ""
    of: Scalar | None = None
    factors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What is written of one operation: its name without dialect, its values, its predicate, and the result's type."""

    name: str
    token: Token
    values: tuple[Token, ...]
    predicate: str
    types: tuple[TensorType | str, ...]

    @property
    def result(self) -> TensorType | str:
        return self.types[-1]


def is_scalar(name: str) -> bool:
    """Whether an operation works on one number at a time, and on tensors element by element."""
    return name.startswith(("arith.", "math.")) and name != "arith.constant"


def parsed(cursor: Cursor) -> Operation:
    """The operation of arith or math that stands here. Raises UsageError for a form that is not read."""
    token = cursor.step()
    name = token.text.split(".", 1)[1]
    predicate = ""
    if name in ("cmpf", "cmpi"):
        predicate = cursor.step().text.strip('"')
        cursor.expect(",")
    values = tuple(cursor.names())
    if cursor.here.text.startswith("fastmath<"):
        cursor.step()
    if cursor.sees("{"):
        raise cursor.wrong(f"attributes of {token.text} are not read.")
    cursor.expect(":")
    types = [cursor.type()[1]]
    while cursor.take(",") or cursor.take("to"):
        types.append(cursor.type()[1])
    cursor.located()
    return Operation(name=name, token=token, values=values, predicate=predicate, types=tuple(types))


def applied(cursor: Cursor, operation: Operation, given: Sequence[Scalar]) -> Scalar:
    """What an operation makes of numbers. Raises UsageError for one that a formula does not have."""
    name, token = operation.name, operation.token
    declared = [one.element if isinstance(one, TensorType) else one for one in operation.types]
    result = declared[-1]
    if any(one.out is not None or one.how for one in given):
        return _combined(cursor, operation, given)
    counted = {"select": 3, "fma": 3, "negf": 1, "extf": 1, "truncf": 1, "cmpf": 2, "powf": 2, "fpowi": 2}
    counted |= dict.fromkeys((*BINARY, *CHOSEN, *LOGIC), 2) | dict.fromkeys(MATH, 1)
    if name not in counted:
        raise cursor.wrong(f"{token.text} is no operation that a formula has.", token)
    if len(given) != counted[name]:
        raise cursor.wrong(f"{token.text} takes {counted[name]} values; {len(given)} stand here.", token)
    wanted = {
        "select": ["i1", result, result],
        "extf": [declared[0]],
        "truncf": [declared[0]],
        "fpowi": declared,
    }.get(name, [result] * len(given))
    for one, element in zip(given, wanted, strict=True):
        if one.element != element:
            raise cursor.wrong(f"a value of {one.element} is used as {element}.", token)
    floats = result in FLOATS or name in LOGIC
    if not floats or (name in LOGIC and result != "i1"):
        raise cursor.wrong(f"{token.text} of {result} is not read; {', '.join(FLOATS)} are.", token)
    texts = [one.text for one in given]
    match name:
        case "extf" | "truncf":
            return replace(given[0], element=result)
        case "negf":
            text = f"(-{texts[0]})"
        case "select":
            text = f"where({', '.join(texts)})"
        case "fma":
            text = f"({texts[0]} * {texts[1]} + {texts[2]})"
        case "powf" | "fpowi":
            if texts[1].strip("(-)") not in POWERS:
                raise cursor.wrong("a power's exponent is 0.5, -0.5 or a whole number from 1 to 16.", token)
            text = f"({texts[0]} ** {texts[1]})"
        case "cmpf":
            return Scalar(text=_compared(cursor, operation, texts), element="i1")
        case _ if name in BINARY:
            text = f"({texts[0]} {BINARY[name]} {texts[1]})"
        case _ if name in LOGIC:
            text = f"({texts[0]} {LOGIC[name]} {texts[1]})"
        case _ if name in CHOSEN:
            text = f"{CHOSEN[name]}({texts[0]}, {texts[1]})"
        case _:
            text = f"{MATH[name]}({texts[0]})"
    return Scalar(text=text, element=result, factors=tuple(texts) if name == "mulf" else ())


def constant(cursor: Cursor, number: Token, element: str) -> Scalar:
    """A constant of a body or a function."""
    if element in FLOATS:
        return Scalar(text=written(cursor.number(number, element)), element=element)
    if element in ("index", "i8", "i16", "i32", "i64") and number.text.lstrip("-").isdigit():
        return Scalar(text=written(float(number.text)), element=element)
    raise cursor.wrong(f"the constant {shown(number)} of {element} is not read.", number)


def body(
    cursor: Cursor,
    arguments: Sequence[Scalar],
    outer: Mapping[str, Scalar],
    named: Callable[[str], str],
) -> list[Scalar]:
    """What a body yields, from its opening brace to its closing one.

    arguments   what the block's arguments are
    outer       constants of the function around it
    named       makes a statement of a long expression, and gives its name
    """
    opened = cursor.expect("{")
    cursor.kind("block", "the body's ^bb0(...)")
    known = dict(_arguments(cursor, arguments, opened))
    while True:
        token = cursor.here
        if token.kind == "value":
            name = cursor.step().text
            cursor.expect("=")
            if name in known or name in outer:
                raise cursor.wrong(f"{name} has a value already.", token)
            value = _step(cursor, {**outer, **known})
            if len(value.text) > LONGEST:
                value = replace(value, text=named(value.text))
            known[name] = value
        elif cursor.take("linalg.yield"):
            names = cursor.names()
            yielded = [_known(cursor, {**outer, **known}, one) for one in names]
            for (_, element), value in zip(cursor.types(len(names)), yielded, strict=True):
                if element != value.element:
                    raise cursor.wrong(f"a value of {value.element} is yielded as {element}.", token)
            cursor.located()
            cursor.expect("}")
            return yielded
        else:
            raise cursor.wrong(f"{shown(token)} is not read in a body.", token)


def _arguments(cursor: Cursor, arguments: Sequence[Scalar], opened: Token) -> list[tuple[str, Scalar]]:
    cursor.expect("(")
    found: list[tuple[str, Scalar]] = []
    while not cursor.take(")"):
        if found:
            cursor.expect(",")
        name = cursor.kind("value", "a block's argument")
        cursor.expect(":")
        element = cursor.type()[1]
        cursor.located()
        if len(found) == len(arguments):
            raise cursor.wrong("the body takes one argument for each operand and one for each output.", opened)
        if element != arguments[len(found)].element:
            raise cursor.wrong(f"{name.text} is of {arguments[len(found)].element}, not of {element}.", name)
        found.append((name.text, arguments[len(found)]))
    cursor.expect(":")
    if len(found) != len(arguments) or len(dict(found)) != len(found):
        raise cursor.wrong("the body takes one argument for each operand and one for each output.", opened)
    return found


def _step(cursor: Cursor, known: Mapping[str, Scalar]) -> Scalar:
    token = cursor.here
    if cursor.take("arith.constant"):
        number = cursor.step()
        cursor.expect(":")
        kind = cursor.type()[1]
        cursor.located()
        if isinstance(kind, TensorType):
            raise cursor.wrong("a constant tensor in a body is not read.", token)
        return constant(cursor, number, kind)
    if token.kind != "word" or not is_scalar(token.text):
        raise cursor.wrong(f"{shown(token)} is not read in a body; operations of arith and math are.", token)
    operation = parsed(cursor)
    if any(isinstance(one, TensorType) for one in operation.types):
        raise cursor.wrong(f"{token.text} of a tensor in a body is not read.", token)
    return applied(cursor, operation, [_known(cursor, known, one) for one in operation.values])


def _known(cursor: Cursor, known: Mapping[str, Scalar], token: Token) -> Scalar:
    if token.text not in known:
        raise cursor.wrong(f"{token.text} is not known in this body.", token)
    return known[token.text]


def _combined(cursor: Cursor, operation: Operation, given: Sequence[Scalar]) -> Scalar:
    """A reduction's output with one more term."""
    token, how = operation.token, COMBINED.get(operation.name)
    outs = [one for one in given if one.out is not None and not one.how]
    terms = [one for one in given if one.out is None and not one.how]
    if how is None or len(given) != 2 or len(outs) != 1 or len(terms) != 1:
        raise cursor.wrong(
            f"{token.text} of what the output held before is no sum, maximumf or minimumf of it with one term.", token
        )
    if {one.element for one in given} != {operation.result}:
        raise cursor.wrong(f"{token.text} adds values of several types.", token)
    return replace(outs[0], how=how, of=terms[0])


def _compared(cursor: Cursor, operation: Operation, texts: Sequence[str]) -> str:
    how, (a, b) = operation.predicate, texts
    if how in COMPARED:
        return f"({a} {COMPARED[how]} {b})"
    if how in UNORDERED:
        return f"(not ({a} {UNORDERED[how]} {b}))"
    if how == "one":
        return f"({a} < {b} or {a} > {b})"
    if how == "ueq":
        return f"(not ({a} < {b} or {a} > {b}))"
    raise cursor.wrong(f"arith.cmpf {how} is not read; {', '.join((*COMPARED, *UNORDERED))} are.", operation.token)
