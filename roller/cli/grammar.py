"""Operators on the command line, in a small closed grammar; nothing is evaluated.

    operator := call | word word …                 "matmul 64x32 32x8" is matmul(64x32, 32x8); so is "mk,kn->mn 64x32 32x8",
                                                   with "einsum" before it, too
    call     := NAME "(" [argument ("," argument)*] ")"
    argument := [NAME "="] value
    value    := call | shape [":" DTYPE] | INTEGER | FLOAT | STRING | WORD | "(" value ("," value)* ")"
    shape    := INTEGER ("x" INTEGER)+

A shape is an input tensor. So is a positional integer (of one dimension) if the operator takes a tensor there; three integers mean
matmul(M, N, K). A positional float is a number. Words are true, false, none, or text such as NHWC. There are no lists: pairs are
written (1, 2), pairs of pairs ((1, 1), (2, 2)).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from roller import ops
from roller.errors import ExpressionError
from roller.ops import SymbolicTensor

OPERATORS: dict[str, Callable[..., Any]] = {
    name: getattr(ops, name) for name in ops.__all__ if name not in ("SymbolicTensor", "expression", "from_te", "tensor")
}
NESTING_MAX = 50
TENSORS = ("SymbolicTensor", "Operand")  # annotations of tensor parameters
_WORDS = {"true": True, "false": False, "none": None}
_TOKEN = re.compile(
    r"\s*(?:(?P<shape>\d+(?:x\d+)+)|(?P<float>-?\d+\.\d*(?:e-?\d+)?|-?\d+e-?\d+)|(?P<integer>-?\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<string>\"[^\"]*\"|'[^']*')|(?P<mark>[(),=:]))"
)


def parse(words: Sequence[str], dtype: str = "float32") -> SymbolicTensor:
    """Returns the operator that the words describe; inputs without a type have `dtype`. `ExpressionError` otherwise."""
    if not words:
        raise ExpressionError(f"no operator given; operators: {', '.join(OPERATORS)}, or an einsum such as 'mk,kn->mn'")
    if len(words) == 1 and "(" not in words[0]:
        words = words[0].split() or words  # the whole operator in one pair of quotes
    head, *rest = words
    if head == "einsum" and rest and "->" in rest[0]:
        head, *rest = rest  # recognised by its subscripts
    if "->" in head and "(" not in head:
        text = f'einsum("{head.strip(chr(34))}", {", ".join(rest)})'
    else:
        text = f"{head}({', '.join(rest)})" if rest and "(" not in head else " ".join(words)
    reader = _Reader(text, dtype)
    value = reader.value(0)
    reader.end()
    if not isinstance(value, SymbolicTensor) or value.stage is None:
        raise ExpressionError(f"{text!r} computes nothing; write an operator such as matmul(64x32, 32x8)")
    return value


class _Reader:
    """A recursive-descent reader over the tokens of one text."""

    def __init__(self, text: str, dtype: str) -> None:
        self._text, self._dtype = text, dtype
        self._tokens: list[tuple[str, str, int]] = []
        place = 0
        while place < len(text.rstrip()):
            found = _TOKEN.match(text, place)
            if found is None or found.lastgroup is None:
                raise self._error(f"unexpected {text[place:].strip()[:1]!r}", place)
            self._tokens.append((found.lastgroup, found.group(found.lastgroup), found.start(found.lastgroup)))
            place = found.end()
        self._tokens.append(("end", "", len(text)))
        self._next = 0

    def _error(self, what: str, place: int) -> ExpressionError:
        return ExpressionError(f"operator {self._text!r}, column {place + 1}: {what}")

    def _take(self) -> tuple[str, str, int]:
        token = self._tokens[self._next]
        self._next += token[0] != "end"
        return token

    def _accept(self, mark: str) -> bool:
        if self._tokens[self._next][:2] == ("mark", mark):
            self._next += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        _, text, place = self._tokens[self._next]
        if not self._accept(mark):
            raise self._error(f"{mark!r} expected, found {text or 'the end'!r}", place)

    def end(self) -> None:
        """Refuses text after a complete operator."""
        kind, text, place = self._tokens[self._next]
        if kind != "end":
            raise self._error(f"nothing more expected, found {text!r}", place)

    def value(self, depth: int) -> Any:
        """Parses one value; integers stay integers here."""
        kind, text, place = self._take()
        if depth > NESTING_MAX:
            raise self._error(f"nested more than {NESTING_MAX} deep", place)
        if kind == "shape":
            return self._tensor(tuple(int(e) for e in text.split("x")))
        if kind == "integer":
            return self._tensor((int(text),)) if self._tokens[self._next][1] == ":" else int(text)
        if kind == "float":
            return float(text)
        if kind == "string":
            return text[1:-1]
        if kind == "name":
            return self._call(text, place, depth) if self._accept("(") else _WORDS.get(text.lower(), text)
        if (kind, text) == ("mark", "("):
            return self._tuple(depth)
        raise self._error(f"a value expected, found {text or 'the end'!r}", place)

    def _tensor(self, shape: tuple[int, ...]) -> SymbolicTensor:
        return ops.tensor(shape, self._take()[1] if self._accept(":") else self._dtype)

    def _tuple(self, depth: int) -> tuple[Any, ...]:
        values = []
        while not self._accept(")"):
            values.append(self.value(depth + 1))
            if not self._accept(","):
                self._expect(")")
                break
        return tuple(values)

    def _call(self, name: str, place: int, depth: int) -> SymbolicTensor:
        operator = OPERATORS.get(name)
        if operator is None:
            close = get_close_matches(name, OPERATORS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; operators: {', '.join(OPERATORS)}"
            raise self._error(f"no operator called {name!r}{hint}", place)
        given: list[Any] = []
        named: dict[str, Any] = {}
        while not self._accept(")"):
            word, following = self._tokens[self._next], self._tokens[min(self._next + 1, len(self._tokens) - 1)]
            if word[0] == "name" and following[1] == "=":
                self._next += 2
                named[word[1]] = self.value(depth + 1)
            else:
                given.append(self.value(depth + 1))
            if not self._accept(","):
                self._expect(")")
                break
        return _applied(name, operator, _operands(name, operator, given, self._dtype), named)


def _operands(name: str, operator: Callable[..., Any], given: list[Any], dtype: str) -> list[Any]:
    """Returns positional values, with integers converted to tensors where the operator takes one."""
    if name == "matmul" and len(given) == 3 and all(type(v) is int for v in given):
        m, n, k = given
        return [ops.tensor((m, k), dtype), ops.tensor((k, n), dtype)]
    every = [p for p in inspect.signature(operator).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    wanted = [p.annotation in TENSORS for p in (*every, *[every[-1]] * len(given))]  # the last parameter may be variadic
    return [ops.tensor((v,), dtype) if type(v) is int and tensor else v for v, tensor in zip(given, wanted, strict=False)]


def _applied(name: str, operator: Callable[..., Any], given: Sequence[Any], named: dict[str, Any]) -> SymbolicTensor:
    signature = inspect.signature(operator)
    try:
        bound = signature.bind(*given, **named)
    except TypeError as error:
        raise ExpressionError(f"{name}: {error}; it takes ({', '.join(signature.parameters)})") from error
    for word, value in bound.arguments.items():
        if signature.parameters[word].annotation == "bool" and not isinstance(value, bool):
            raise ExpressionError(f"{name}: {word} is true or false, not {value!r}")
    try:
        result: SymbolicTensor = operator(*given, **named)
    except (TypeError, AttributeError) as error:
        raise ExpressionError(f"{name}: {error}") from error
    return result
