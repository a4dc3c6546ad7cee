"""Random numbers that are keyed by (key of the step, operator, element), written in torch's own operators.

A number is a hash of the key, of the operator's position in the program's random stream and of the element's
index, mixed in one dimension after the other [the 32-bit finalizer of H. Prime and C. Wellons, two rounds].
So it does not matter in which order, how often or in which parts numbers are made: they are the same, and
none of them has to be kept. Eager draws others from its stream; `Keyed` has it draw these, for comparison.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from peakfold.bridge.capture.functional import draws
from peakfold.errors import CaptureError

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload

WORDS = 2
"""Words of the key of a step."""

_WRAP = 2**32
_HALF = 2**31
_MULTIPLY = (0x7FEB352D, 0x846CA68B - _WRAP)
_SHIFT = (16, 15, 16)
_GOLDEN = 0x9E3779B1
_LANES = 2
"""Words that one operator may take for an element."""


def new_key(device: torch.device | str = "cpu") -> torch.Tensor:
    """Return a place for the key of a step."""
    return torch.zeros(WORDS, dtype=torch.int32, device=device)


def draw_key(key: torch.Tensor) -> None:
    """Fill in the key of the next step: all that a step takes from torch's stream.

    Example:
        >>> key = new_key()
        >>> draw_key(key)
        >>> bool(key.any())
        True
    """
    if key.device.type == "cpu":
        key.random_()
    else:
        key.copy_(torch.empty(WORDS, dtype=torch.int32).random_())


def words(shape: Sequence[int], key: torch.Tensor, position: int, lane: int = 0) -> torch.Tensor:
    """Return 32 bits for each element, as int32.

    Args:
        shape: of the result.
        key: of the step.
        position: of the operator in the random stream.
        lane: which word of each element.

    Example:
        >>> key = torch.tensor([3, 4], dtype=torch.int32)
        >>> whole = words((6, 5), key, 0)
        >>> bool((whole[2:4] == words((6, 5), key, 0)[2:4]).all()), len(set(whole.flatten().tolist()))
        (True, 30)
    """
    start = _signed((position * _LANES + lane) * _GOLDEN)
    low, high = key.unbind()
    state = _mixed(_mixed(torch.add(low, start)).bitwise_xor(high))
    wide = [size for size in shape if size != 1] or [1]
    for place, size in enumerate(wide):
        index = torch.arange(size, dtype=torch.int32, device=key.device)
        index = _mixed(torch.add(torch.mul(index, _signed(_GOLDEN)), place + 1))
        state = torch.bitwise_xor(state.unsqueeze(-1), index)
        state = _mixed(state, last=place == len(wide) - 1)
    return state if tuple(shape) == tuple(state.shape) else state.view(tuple(shape))


def _mixed(state: torch.Tensor, last: bool = False) -> torch.Tensor:
    """Have every bit depend on all; the low bits of what is mixed ``last`` are weaker, and not used."""
    for shift, factor in zip(_SHIFT, _MULTIPLY, strict=False):
        state = torch.bitwise_xor(state, torch.bitwise_right_shift(state, shift))
        state = torch.mul(state, factor)
    return state if last else torch.bitwise_xor(state, torch.bitwise_right_shift(state, _SHIFT[-1]))


def _signed(word: int) -> int:
    return (word + _HALF) % _WRAP - _HALF


def kept(shape: Sequence[int], share: float, key: torch.Tensor, position: int) -> torch.Tensor:
    """Return a mask that is true with a probability.

    Example:
        >>> key = torch.tensor([3, 4], dtype=torch.int32)
        >>> [int(kept((1000,), share, key, 0).sum()) for share in (0.0, 1.0)]
        [0, 1000]
        >>> 850 < int(kept((1000,), 0.9, key, 0).sum()) < 950
        True
    """
    below = round(share * _WRAP) - _HALF
    bits = words(shape, key, position)
    return torch.le(bits, below - 1) if below > -_HALF else torch.lt(bits, below)


def uniform(
    shape: Sequence[int], dtype: torch.dtype, key: torch.Tensor, position: int, lane: int = 0
) -> torch.Tensor:
    """Return numbers from 0 to below 1, of which 2**24 are possible.

    Example:
        >>> made = uniform((1000,), torch.float32, torch.tensor([3, 4], dtype=torch.int32), 0)
        >>> bool((made >= 0).all()), bool((made < 1).all())
        (True, True)
    """
    top = torch.bitwise_right_shift(words(shape, key, position, lane), 8)
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    made = torch.add(torch.mul(top.to(exact), 2.0**-24), 0.5)
    return made if dtype == exact else made.to(dtype).clamp(max=1.0 - torch.finfo(dtype).eps)


def normal(shape: Sequence[int], dtype: torch.dtype, key: torch.Tensor, position: int) -> torch.Tensor:
    """Return numbers of the standard normal distribution [G. Box and M. Muller].

    Example:
        >>> made = normal((10000,), torch.float32, torch.tensor([3, 4], dtype=torch.int32), 0)
        >>> abs(float(made.mean())) < 0.05, 0.95 < float(made.std()) < 1.05
        (True, True)
    """
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    radius = torch.rsub(uniform(shape, exact, key, position, 0), 1.0).log().mul(-2.0).sqrt()
    angle = uniform(shape, exact, key, position, 1).mul(2.0 * math.pi)
    made = radius.mul(angle.cos())
    return made if dtype == exact else made.to(dtype)


def _bernoulli(given: Mapping[str, Any], key: torch.Tensor, position: int) -> torch.Tensor:
    like = given["self"]
    return kept(like.shape, float(given["p"]), key, position).to(like.dtype)


def _dropout(given: Mapping[str, Any], key: torch.Tensor, position: int) -> object:
    like, share = given["input"], float(given["p"])
    mask = kept(like.shape, 1.0 - share, key, position)
    return like.mul(mask).mul(0.0 if share == 1.0 else 1.0 / (1.0 - share)), mask


def _uniform(given: Mapping[str, Any], key: torch.Tensor, position: int) -> torch.Tensor:
    like, low, high = given["self"], float(given["from"]), float(given["to"])
    made = uniform(like.shape, like.dtype, key, position)
    return made if (low, high) == (0.0, 1.0) else made.mul(high - low).add(low)


def _normal(given: Mapping[str, Any], key: torch.Tensor, position: int) -> torch.Tensor:
    like, mean, scale = given["self"], float(given["mean"]), float(given["std"])
    made = normal(like.shape, like.dtype, key, position)
    return made if (mean, scale) == (0.0, 1.0) else made.mul(scale).add(mean)


def _integers(given: Mapping[str, Any], key: torch.Tensor, position: int) -> torch.Tensor:
    low, high = int(given.get("low", 0)), int(given["high"])
    bits = words(_shape(given), key, position).to(torch.int64)
    return (
        bits.add(_HALF).bitwise_right_shift(4).remainder(high - low).add(low).to(_dtype(given, torch.int64))
    )


def _shape(given: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(given["self"].shape if "self" in given else given["size"])


def _dtype(given: Mapping[str, Any], default: torch.dtype) -> torch.dtype:
    if isinstance(given.get("dtype"), torch.dtype):  # a default of the schema is a number
        return given["dtype"]  # type: ignore[no-any-return]
    return given["self"].dtype if "self" in given else default


def _made(numbers: Callable[..., torch.Tensor]) -> "_Form":
    def form(given: Mapping[str, Any], key: torch.Tensor, position: int) -> torch.Tensor:
        return numbers(_shape(given), _dtype(given, torch.get_default_dtype()), key, position)

    return form


_Form = Callable[[Mapping[str, Any], torch.Tensor, int], object]
_FORMS: Mapping[str, _Form] = {
    "aten::bernoulli_.float": _bernoulli,
    "aten::bernoulli.p": _bernoulli,
    "aten::native_dropout": _dropout,
    "aten::uniform_": _uniform,
    "aten::normal_": _normal,
    "aten::rand": _made(uniform),
    "aten::rand_like": _made(uniform),
    "aten::randn": _made(normal),
    "aten::randn_like": _made(normal),
    "aten::randint": _integers,
    "aten::randint.low": _integers,
    "aten::randint_like": _integers,
    "aten::randint_like.low_dtype": _integers,
}
"""How each operator makes its numbers, by name and overload."""


def draws_keyed(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call takes random numbers, which are keyed then."""
    return torch.Tag.nondeterministic_seeded in func.tags and draws(func, _given(func, args, kwargs))


def keyed(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], key: torch.Tensor, position: int
) -> Any:
    """Return what a random operator makes from keyed numbers; one that writes in place gives what it writes.

    Args:
        func: the operator.
        args: its arguments.
        kwargs: its keywords.
        key: of the step.
        position: of the operator in the random stream.

    Raises:
        CaptureError: there are no keyed numbers of this kind.
    """
    form = _FORMS.get(_name(func))
    given = _given(func, args, kwargs)
    if form is None or given.get("generator") is not None:
        raise CaptureError(
            stage="capture",
            what=f"there is no form of {func} with keyed random numbers",
            expected=f"one of {', '.join(sorted({name.removeprefix('aten::') for name in _FORMS}))}",
            got="a generator of its own" if form is not None else str(func),
            hint="use rng='eager', which keeps the stream of every operator",
        )
    return form(given, key, position)


def _name(func: OpOverload) -> str:
    schema = func._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _given(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    schema = func._schema.arguments
    given = {one.name: one.default_value for one in schema if one.has_default_value()}
    given |= zip([one.name for one in schema], args, strict=False)
    return given | dict(kwargs)


class Keyed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, eager's step draws keyed numbers: those of a program that was captured with them.

    An operator is known by where torch's stream is when it draws, so that what `torch.utils.checkpoint`
    runs again from a kept state draws the same. Afterwards torch has given the key alone, if that.

    Example:
        >>> with Keyed():
        ...     first, second = torch.rand(3), torch.rand(3)
        >>> bool((first == second).any())
        False
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._key = new_key()
        self._positions: dict[bytes, int] = {}
        self._before = self._after = torch.get_rng_state()

    def __enter__(self) -> "Keyed":
        self._positions = {}
        self._before = torch.get_rng_state()
        draw_key(self._key)
        self._after = torch.get_rng_state()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        torch.set_rng_state(self._after if self._positions else self._before)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if not isinstance(func, OpOverload) or not draws_keyed(func, args, keywords):
            return func(*args, **keywords)
        position = self._positions.setdefault(torch.get_rng_state().numpy().tobytes(), len(self._positions))
        torch.rand(1)
        near = next((arg.device for arg in args if isinstance(arg, torch.Tensor)), "cpu")
        made = keyed(func, args, keywords, self._key.to(keywords.get("device") or near), position)
        return args[0].copy_(made) if func._schema.is_mutable else made
