"""while_loop where gradients are asked for: the backward pass is a loop of its own.

As torch does it, it goes over the passes from the last to the first, computes each once more from what went
into it, and adds up the gradients. torch keeps what went into every pass, which takes memory that nothing
bounds; here a loop inside computes it again from the beginning: how many there are takes no bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from peakfold.bridge.capture import control
from peakfold.bridge.capture.closures import as_now
from peakfold.bridge.capture.leaves import gradients, leaf, now, standing, standing_for
from peakfold.bridge.capture.places import model_line
from peakfold.bridge.capture.storage import Geometry
from peakfold.errors import CaptureError

if TYPE_CHECKING:
    from peakfold.bridge.capture.recorder import Recorder

Function = Callable[..., Any]
Tensors = tuple[torch.Tensor, ...]


def while_loop(
    recorder: "Recorder", test: Function, function: Function, carried: Sequence[Any], others: Sequence[Any]
) -> object:
    """Record a while loop as `control.while_loop` does; where it needs a gradient, so that it has one.

    Raises:
        CaptureError: as of `control.while_loop`; or it is one that torch gives no right gradients for.
    """
    tensors = all(isinstance(one, torch.Tensor) for one in (*carried, *others))
    if not torch.is_grad_enabled() or not tensors:
        return control.while_loop(recorder, test, function, carried, others)
    first, rest = cast(Tensors, now(carried)), cast(Tensors, now(others))
    look = _Look.at(recorder, test, function, first, rest)
    given = (*first, *rest, *look.read)
    if not any(one.requires_grad for one in given):
        return control.while_loop(recorder, test, function, now(carried), now(others))
    look.check()
    return _Loop.apply(recorder, test, function, len(first), len(rest), *given)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Look:
    """What a first look at a loop finds.

    Attributes:
        read: tensors from outside that need a gradient, beside those that passes are given.
        draws: a pass draws random numbers.
        lost: places of what is carried that needs no gradient at first, and does after a pass.
    """

    read: tuple[torch.Tensor, ...]
    draws: bool
    lost: tuple[int, ...]

    @staticmethod
    def at(
        recorder: "Recorder", test: Function, function: Function, carried: Tensors, others: Tensors
    ) -> "_Look":
        """Trace the question and a pass of a loop once."""
        needs, fresh = [one.requires_grad for one in carried], [Geometry.of(one) for one in carried]

        def pass_(*values: torch.Tensor) -> object:
            own = [value.detach().requires_grad_(need) for value, need in zip(values, needs, strict=False)]
            return function(*own, *values[len(needs) :])

        with torch.no_grad():
            asking, _, _ = control.traced(recorder, test, others, fresh)
        making, made, _ = control.traced(recorder, pass_, others, fresh)
        making.reads(made)
        known = set(map(id, others))
        seen = {id(one): one for one in (*asking.seen, *making.seen) if id(one) not in known}
        lost = [i for i, (one, need) in enumerate(zip(made, needs, strict=False)) if one.requires_grad > need]
        read = tuple(one for one in seen.values() if one.requires_grad)
        return _Look(read, any(node.op.random for node in making.nodes), tuple(lost))

    def check(self) -> None:
        """Refuse a loop that needs gradients which torch does not give, or which draws."""
        if self.draws:
            raise _error(
                "a while_loop that needs a gradient draws random numbers",
                "passes that compute the same again in the backward pass",
                "draw them before the loop, and carry them or read them there",
            )
        if self.lost:
            raise _error(
                f"while_loop carries value {self.lost[0]}, which needs a gradient after a pass alone",
                "a first value that needs one: torch adds up the gradients of the last pass alone here",
                "begin with value.requires_grad_(), or write the passes out",
            )


class _Loop(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        recorder: "Recorder",
        test: Function,
        function: Function,
        carried: int,
        others: int,
        *given: torch.Tensor,
    ) -> Tensors:
        first, rest, again = given[:carried], given[carried : carried + others], as_now(function)
        found = cast(
            Tensors,
            control.while_loop(
                recorder,
                lambda i, *values: test(*values),
                lambda i, *values: (i + 1, *function(*values)),
                (torch.zeros((), dtype=torch.int64), *first),
                rest,
            ),
        )
        ctx.recorder, ctx.function, ctx.sizes, ctx.given = recorder, again, (carried, others), given
        ctx.outside = standing()
        ctx.save_for_backward(found[0], *given)
        ctx.mark_non_differentiable(*(one for one in found[1:] if not one.is_floating_point()))
        return found[1:]

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        passes, *_ = ctx.saved_tensors  # torch refuses here where one of them was changed in place
        carried, others = ctx.sizes
        wanted = [place for place, needed in enumerate(ctx.needs_input_grad[5:]) if needed]
        through = [place for place in wanted if place < carried]
        beside = [place for place in wanted if place >= carried]
        back = _Back(ctx.recorder, ctx.function, ctx.given, carried, others, through, beside, ctx.outside)
        start = [incoming[place].contiguous() for place in through]
        start += [torch.zeros_like(ctx.given[place]) for place in beside]
        _, *made = cast(
            Tensors,
            control.while_loop(ctx.recorder, lambda left, *sums: left > 0, back, (passes, *start), ()),
        )
        found: list[torch.Tensor | None] = [None] * len(ctx.given)
        for place, gradient in zip((*through, *beside), made, strict=True):
            found[place] = gradient
        return (None,) * 5 + tuple(found)


class _Back:
    """One pass of the backward loop: what went into a pass is computed again, then its gradients."""

    def __init__(
        self,
        recorder: "Recorder",
        function: Function,
        given: Tensors,
        carried: int,
        others: int,
        through: Sequence[int],
        beside: Sequence[int],
        outside: Mapping[int, torch.Tensor],
    ) -> None:
        self._recorder, self._function, self._given = recorder, function, given
        self._first, self._others = given[:carried], given[carried : carried + others]
        self._through, self._beside, self._outside = through, beside, outside

    def __call__(self, left: torch.Tensor, *sums: torch.Tensor) -> Tensors:
        before = left - 1
        values = self._before(before)
        with torch.enable_grad():
            fresh = [
                value.detach().requires_grad_(one.requires_grad)
                for value, one in zip(values, self._first, strict=True)
            ]
            read = self._given[len(fresh) :]
            leaves = [leaf(one) for one in read]
            with standing_for({id(one): own for one, own in zip(read, leaves, strict=True)}, self._outside):
                made = now(self._function(*fresh, *leaves[: len(self._others)]))
        incoming = dict(zip(self._through, sums, strict=False))
        weights = [incoming.get(place) for place in range(len(made))]
        inputs = [*fresh, *leaves]
        own = gradients(made, weights, [inputs[place] for place in (*self._through, *self._beside)])
        count = len(self._through)
        added = (new + old for new, old in zip(own[count:], sums[count:], strict=True))
        return (before, *own[:count], *added)

    def _before(self, passes: torch.Tensor) -> Tensors:
        """Return what goes into a pass, after so many before it."""
        _, *values = cast(
            Tensors,
            control.while_loop(
                self._recorder,
                lambda i, *values: i < passes,
                lambda i, *values: (i + 1, *self._function(*values)),
                (torch.zeros((), dtype=torch.int64), *self._first),
                self._others,
            ),
        )
        return tuple(values)


def _error(what: str, expected: str, hint: str) -> CaptureError:
    return CaptureError(stage="capture", what=what, where=model_line(), expected=expected, hint=hint)
