"""Which functions stand in a text of MLIR, their arguments, and its aliases (#map = …)."""

from __future__ import annotations

from opforge.core.language.errors import UsageError
from opforge.forge.read.mlir import Cursor, TensorType, shown


class Functions:
    """What stands outside of functions, and where each function begins. Aliases go to the cursor.

    named   (name, place) of each function that has a body
    bare    the place of operations without a function around them
    """

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.named: list[tuple[str, int]] = []
        self.bare: int | None = None
        self.outside()

    def wrong(self, what: str) -> UsageError:
        return self.cursor.wrong(what)

    def chosen(self, wanted: str) -> dict[str, TensorType | str] | None:
        """Go to the first operation of the one function, or of the one that is `wanted`: its arguments, None without a
        function. Raises UsageError where there are several.
        """
        cursor = self.cursor
        names = [name for name, _ in self.named]
        if wanted and wanted not in names:
            raise UsageError(f"{cursor.where} has no function {wanted!r}. It has: {', '.join(names) or 'none'}.")
        if self.bare is not None:
            cursor.at = self.bare
            if self.named:
                raise self.wrong("operations stand outside of a function, beside one.")
            return None
        found = [at for name, at in self.named if wanted in ("", name)]
        if not found:
            raise self.wrong("there is no linalg operation. Give a function that has some.")
        cursor.at = found[-1]
        if len(found) > 1:
            raise UsageError(
                f"{cursor.where}, line {cursor.here.line}: {len(found)} functions stand here ({', '.join(names)}), and "
                f"one makes an operator. Name it: --from {cursor.where}:{names[0]}"
            )
        return self.signature()

    def outside(self) -> None:
        """Walk over the text, up to operations without a function."""
        cursor = self.cursor
        depth = 0
        while cursor.here.kind != "end":
            token = cursor.here
            if token.text[:1] in ("#", "!") and cursor.following.text == "=":
                cursor.at += 2
                cursor.aliases[token.text] = cursor.at
                cursor.over()
                if cursor.sees("("):
                    cursor.over()
            elif cursor.take("module") or cursor.take("builtin.module"):
                if cursor.here.kind == "symbol":
                    cursor.step()
                if cursor.take("attributes"):
                    cursor.over()
                cursor.expect("{")
                depth += 1
            elif depth and cursor.take("}"):
                depth -= 1
                cursor.located()
            elif cursor.take("func.func") or cursor.take("func"):
                self.skipped()
            elif (token.kind == "value" or "." in token.text) and not depth and token.kind != "string":
                self.bare = cursor.at
                return
            else:
                raise self.wrong(f"{shown(token)} is not read outside of a function.")
        if depth:
            raise self.wrong("a module is never closed.")

    def skipped(self) -> None:
        """Step over a function, and keep its name and place where it has a body."""
        cursor = self.cursor
        while cursor.take("private") or cursor.take("public") or cursor.take("nested"):
            pass
        name = cursor.kind("symbol", "a function's name").text[1:]
        at = cursor.at
        cursor.over()
        if cursor.take("->"):
            cursor.over()
        if cursor.take("attributes"):
            cursor.over()
        if cursor.sees("{"):
            cursor.over()
            self.named.append((name, at))
        cursor.located()

    def signature(self) -> dict[str, TensorType | str]:
        """A function's arguments; goes on to its first operation."""
        cursor = self.cursor
        arguments: dict[str, TensorType | str] = {}
        cursor.expect("(")
        while not cursor.take(")"):
            if arguments:
                cursor.expect(",")
            name = cursor.kind("value", "an argument, %name,")
            if name.text in arguments:
                raise cursor.wrong(f"{name.text} stands twice.", name)
            cursor.expect(":")
            if cursor.here.text.startswith("tensor<"):
                arguments[name.text] = cursor.tensor_type(cursor.step())
            else:
                # said where it is used; one that nothing uses is no input
                arguments[name.text] = cursor.step().text
            if cursor.sees("{"):
                cursor.over()
            cursor.located()
        if cursor.take("->"):
            cursor.over()
        if cursor.take("attributes"):
            cursor.over()
        cursor.expect("{")
        return arguments
