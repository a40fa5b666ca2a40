"""Tools that every installation has: the time, and arithmetic."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from stratus.agents.tools import Tool, tool
from stratus.effects import Clock

_MAX_BITS = 10_000
_MAX_EXPRESSION = 300

Number = int | float


def current_time_tool(clock: Clock) -> Tool:
    """The tool `current_time` by that clock."""

    @tool(effect="read")
    def current_time(
        zone: Annotated[str, Field(description="An IANA time zone such as Europe/Kyiv")] = "UTC",
    ) -> str:
        """The current date and time, in ISO 8601 with the weekday."""
        try:
            now = clock.now().astimezone(ZoneInfo(zone))
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: a name that is a folder of zones
            raise ValueError(f"{zone!r} is not a time zone that is known here") from error
        return f"{now.isoformat(timespec='seconds')} ({now:%A}, {zone})"

    return current_time


@tool(effect="read")
def calculate(
    expression: Annotated[str, Field(max_length=_MAX_EXPRESSION, description="Such as (2 + 3) * sqrt(16) / 7")],
) -> str:
    """Evaluate arithmetic: + - * / // % **, parentheses, abs, round, min, max, sqrt, log, sin, cos, tan, pi and e."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        return str(_value(tree.body))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("this is not an arithmetic expression") from error
    except OverflowError as error:
        raise ValueError("the result is too large") from error


current_time = current_time_tool(Clock())


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > _MAX_BITS:
        raise OverflowError
    result: Number | complex = base**exponent
    if isinstance(result, complex):
        raise ValueError("the result is not a real number")
    return result


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_NAMES: Mapping[str, float] = {"pi": math.pi, "e": math.e}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs,
    "round": round,
    "min": min,
    "max": max,
    "sqrt": math.sqrt,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
}


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(operand))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*[_value(arg) for arg in args]))
    raise ValueError("only arithmetic is understood")


def _bounded(number: Number) -> Number:
    if isinstance(number, int) and number.bit_length() > _MAX_BITS:
        raise OverflowError
    return number
