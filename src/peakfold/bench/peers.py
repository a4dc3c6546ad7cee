"""What users do today to fit a step into memory, each as they write it: ``peer(target)`` is one full step.

A peer changes the target's model (it wraps the forward of blocks), so each takes a target of its own. Peers
are named as in ``catalog``:

    eager                       loss.backward(); optimizer.step(); optimizer.zero_grad()
    checkpoint-K                torch.utils.checkpoint around every K-th block
    selective                   the same, but what matrix products and convolutions make is kept
    accumulate-N                the gradients of N chunks of the batch are summed
    accumulate-N+checkpoint-K   both
    compile-B                   torch.compile with activation_memory_budget B
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType

import torch
import torch._functorch.config as functorch_config
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from peakfold.bridge.runtime.measure import eager_step
from peakfold.errors import UsageError
from peakfold.workloads import Target
from peakfold.workloads.target import Loss

Step = Callable[[], Tensor]
Peer = Callable[[Target], Step]
Blocks = tuple[type[nn.Module], ...]

BUDGETS = (1.0, 0.5, 0.1, 0.0)
KEPT = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
]


def catalog(blocks: Blocks, batch: int) -> dict[str, Peer]:
    """Every peer by name.

    Args:
        blocks: the classes that are wrapped in checkpoints.
        batch: samples in the batch; no chunk is smaller than one.

    Example:
        >>> list(catalog((nn.Linear,), 2))[:5]
        ['eager', 'checkpoint-1', 'checkpoint-2', 'checkpoint-3', 'selective']
    """
    counts = chunk_counts(batch)
    peers: dict[str, Peer] = {"eager": eager}
    for every in (1, 2, 3):
        peers[f"checkpoint-{every}"] = partial(checkpoint, blocks=blocks, every=every)
    peers["selective"] = partial(selective, blocks=blocks)
    for chunks in counts:
        peers[f"accumulate-{chunks}"] = partial(accumulate, chunks=chunks)
    for chunks in counts:
        for every in (1, 2, 3):
            name = f"accumulate-{chunks}+checkpoint-{every}"
            peers[name] = partial(accumulate_checkpoint, chunks=chunks, blocks=blocks, every=every)
    for budget in BUDGETS:
        peers[f"compile-{budget}"] = partial(compiled, budget=budget)
    return peers


def chunk_counts(batch: int) -> list[int]:
    """The powers of two from 2 up to ``batch``, and ``batch`` itself.

    Example:
        >>> chunk_counts(12)
        [2, 4, 8, 12]
    """
    powers = [1 << bit for bit in range(1, batch.bit_length()) if 1 << bit < batch]
    return [*powers, batch] if batch > 1 else []


def eager(target: Target) -> Step:
    """The training loop as users write it."""
    _optimizer(target)
    return eager_step(target.model, target.training, target.optimizer, target.batch)


def checkpoint(target: Target, blocks: Blocks, every: int) -> Step:
    """Recomputes every ``every``-th block in the backward."""
    _wrap(target.model, blocks, every, partial(torch_checkpoint, use_reentrant=False))
    return eager(target)


def selective(target: Target, blocks: Blocks) -> Step:
    """Recomputes every block but for its matrix products, convolutions and fused attention."""
    contexts = partial(create_selective_checkpoint_contexts, KEPT)
    _wrap(target.model, blocks, 1, partial(torch_checkpoint, use_reentrant=False, context_fn=contexts))
    return eager(target)


def accumulate(target: Target, chunks: int) -> Step:
    """Sums the gradients of ``chunks`` parts of the batch, each weighted by its share of the samples.

    The loss and the gradients are the full batch's if the loss is a mean over samples of equal weight and no
    layer mixes samples; BatchNorm does.

    Raises:
        UsageError: fewer samples than chunks, or no optimizer.
    """
    optimizer = _optimizer(target)
    parts = list(_parts(target.batch, chunks))

    def step() -> Tensor:
        losses = []
        for share, part in parts:
            loss = Target(target.model, target.loss_fn, optimizer, part).loss() * share
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).sum()

    return step


def accumulate_checkpoint(target: Target, chunks: int, blocks: Blocks, every: int) -> Step:
    """Both: the gradients of chunks are summed, blocks are recomputed in each."""
    _wrap(target.model, blocks, every, partial(torch_checkpoint, use_reentrant=False))
    return accumulate(target, chunks)


def compiled(target: Target, budget: float, backend: str = "inductor") -> Step:
    """Model and loss under ``torch.compile``.

    Args:
        target: the step.
        budget: ``activation_memory_budget``, the share of the saved activations that may be kept.
        backend: of ``torch.compile``.
    """
    loss_fn = torch.compile(_with_own_code(target.training), backend=backend)
    step = eager(Target(target.model, loss_fn, target.optimizer, target.batch))

    def within_budget() -> Tensor:
        # the budget is read when a graph is compiled, in the first call and in each that compiles again
        with functorch_config.patch(activation_memory_budget=budget):
            return step()

    return within_budget


def _with_own_code(loss_fn: Callable[..., Loss]) -> Callable[..., Loss]:
    """The same function with a code object of its own.

    What is compiled is kept by code object, and a graph for one copy of a model serves another: without
    this, every peer would run what was compiled under the budget of the first.
    """

    def own(*args: object, **kwargs: object) -> Loss:
        return loss_fn(*args, **kwargs)

    return FunctionType(own.__code__.replace(), own.__globals__, own.__name__, None, own.__closure__)


def _optimizer(target: Target) -> torch.optim.Optimizer:
    if target.optimizer is None:
        raise UsageError("bench", "a peer needs an optimizer", got="None", expected="a torch.optim.Optimizer")
    return target.optimizer


def _wrap(model: nn.Module, blocks: Blocks, every: int, wrapper: Callable[..., object]) -> None:
    """Wraps the forward of the blocks with index 0, every, 2 * every, .. in order of registration."""
    for block in list(outermost(model, blocks))[::every]:
        block.forward = partial(wrapper, block.forward)


def outermost(model: nn.Module, blocks: Blocks) -> Iterator[nn.Module]:
    """The modules of these classes that lie in no other of them, in order of registration."""
    pending = [model]
    while pending:
        module = pending.pop()
        if isinstance(module, blocks):
            yield module
        else:
            pending.extend(reversed(list(module.children())))


def _parts(
    batch: tuple[object, ...] | Mapping[str, object], chunks: int
) -> Iterator[tuple[float, tuple[object, ...] | dict[str, object]]]:
    """The share of the samples and the part of the batch, for each chunk; tensors are views."""
    whole = dict(batch) if isinstance(batch, Mapping) else batch
    leaves, spec = pytree.tree_flatten(whole)
    samples = next(leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor))
    if chunks > samples:
        raise UsageError("bench", "more chunks than samples", expected=f"at most {samples}", got=str(chunks))
    split = [_split(leaf, samples, chunks) for leaf in leaves]
    for index in range(chunks):
        size = (samples + chunks - 1 - index) // chunks
        yield size / samples, pytree.tree_unflatten([pieces[index] for pieces in split], spec)


def _split(leaf: object, samples: int, chunks: int) -> list[object]:
    if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == samples:
        return list(torch.tensor_split(leaf, chunks))
    return [leaf] * chunks
