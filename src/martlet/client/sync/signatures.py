"""Copy signatures: blocking methods have the parameters of the asyncio client's."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def like(
    model: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Give a method with generic arguments the signature and docstring of another."""

    def wear(method: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        update_wrapper(method, model, assigned=("__doc__",), updated=())
        return method

    return wear
