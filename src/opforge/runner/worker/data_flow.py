"""Where the data of a kernel's outputs comes from, where its launcher calls PyTorch: what PyTorch computed and a launch
or an output received counts, and so does what it only moved and no kernel wrote over. What looks at an argument, such
as a check of a range, doesn't.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# what a launcher may ask of PyTorch: memory, views, moving and converting data, questions about a tensor
_MAKES = "empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like ones ones_like full full_like"
_MOVES = """
new_zeros new_ones new_full fill_ zero_ view
_unsafe_view reshape as_strided transpose permute t unsqueeze squeeze expand slice select narrow split chunk unbind
alias detach clone copy_ _to_copy
contiguous lift_fresh resize_ set_ flatten unflatten _reshape_alias view_as_real is_pinned pin_memory _pin_memory
record_stream _local_scalar_dense
item constant_pad_nd pad cat stack _has_compatible_shallow_copy_type is_same_size stride size numel
"""
MADE = frozenset((*_MAKES.split(), "new_zeros", "new_ones", "new_full"))
MOVES = frozenset((*_MAKES.split(), *_MOVES.split()))
POINTS = ("set_", "resize_")
"""What these write is which memory a tensor has."""
LOOKED = "looked at an argument: "
"""How the name of an operation begins of which no output has anything."""


def moves(name: str) -> bool:
    """Whether an operation, as PyTorch's dispatcher names it, only makes, moves or converts data.

    >>> moves("aten.copy_.default"), moves("aten.mm.default")
    (True, False)
    """
    return name.startswith("aten.") and name.split(".")[1] in MOVES


class DataFlow:
    """Follows the operations and launches of one call.

    outputs   the memory that the call is given for its results, where it is watched which bytes its kernels wrote;
              None where it isn't
    """

    def __init__(self, outputs: Sequence[Any] | None = None) -> None:
        self.sources: dict[int, frozenset[str]] = {}
        self.numbers: list[tuple[float, frozenset[str]]] = []
        self.used: set[str] = set()
        self.compared: set[str] = set()
        self.watches = outputs is not None
        self.moved: dict[int, Any] = {_address(tensor): _marks(tensor) for tensor in outputs or ()}

    def operation(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """PyTorch did this."""
        import torch

        given = list(_tensors((args, kwargs)))
        sources = frozenset().union(*(self.sources.get(_address(tensor), frozenset()) for tensor in given))
        if not moves(name):
            sources |= {name}
        if isinstance(result, float):
            self.numbers.append((result, sources))
        elif isinstance(result, int) or any(tensor.dtype == torch.bool for tensor in _tensors(result)):
            # a comparison, a count, the largest of some indices
            self.compared |= sources
        known = {_address(tensor) for tensor in given}
        written = list(_tensors(list(_written(function, args, kwargs))))
        for tensor in written:
            self.sources[_address(tensor)] = sources
        fresh = [tensor for tensor in _tensors(result) if _address(tensor) not in known]
        for tensor in fresh:
            self.sources[_address(tensor)] = sources
        if self.watches:
            self._moved(name, function, args, kwargs, fresh, written)

    def launch(self, arguments: Iterable[Any]) -> None:
        """A kernel is launched on these."""
        for item in arguments:
            if isinstance(item, float):
                self.used.update(*(sources for number, sources in self.numbers if number == item))
            elif isinstance(item, _tensor_class()):
                self.used |= self.sources.get(_address(item), frozenset())

    def stored(self, tensors: Iterable[Any], stores: Any) -> None:
        """Kernels wrote these tensors where `stores` says (interpreted_stores.Stores); None: wherever they wanted."""
        for tensor in tensors if self.watches else ():
            storage, marks = tensor.untyped_storage(), self._marked(tensor)
            if stores is None:
                marks.fill_(False)
            else:
                marks &= ~stores.written(storage.data_ptr(), storage.nbytes())

    def received(self, outputs: Iterable[Any]) -> None:
        """The call is over, and these are its results."""
        for tensor in outputs:
            self.used |= self.sources.get(_address(tensor), frozenset())

    def evidence(self, outputs: Iterable[Any]) -> list[str]:
        """What stands in the outputs and no kernel has written, as sentences."""
        found = []
        for tensor in outputs:
            count = int(_elements(self._marked(tensor), tensor).any(-1).sum()) if tensor.numel() else 0
            if count:
                found.append(f"PyTorch moved {count} of {tensor.numel()} elements of an output there, and no kernel")
        return found

    def counted(self, counts: Mapping[str, int]) -> dict[str, int]:
        """How often each operation was called, those renamed that computed what was compared, and nothing else."""
        aside = self.compared - self.used
        return {LOOKED + name if name in aside else name: count for name, count in counts.items()}

    def _marked(self, tensor: Any) -> Any:
        """Of each byte of a tensor's memory, whether no kernel wrote it: what nobody has made here is an input's."""
        return self.moved.setdefault(_address(tensor), _marks(tensor, unwritten=True))

    def _moved(
        self,
        name: str,
        function: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        fresh: list[Any],
        written: list[Any],
    ) -> None:
        import torch

        short = name.split(".")[1] if name.startswith("aten.") else ""
        if short == "copy_":
            source = _elements(self._marked(args[1]), args[1]).any(-1)
            _elements(self._marked(args[0]), args[0])[:] = source.expand(args[0].shape).unsqueeze(-1)
            return
        for tensor in written if short not in POINTS else ():
            # filled with a number; what PyTorch computes is found by its name
            _elements(self._marked(tensor), tensor)[:] = False
        for tensor in fresh:
            self.moved[_address(tensor)] = _marks(tensor)
        if short in MADE or not fresh or not moves(name):
            return
        shadows = _mapped((tuple(args), dict(kwargs)), lambda one: _elements(self._marked(one), one).any(-1).double())
        with torch.no_grad():
            try:
                shadow = function(*shadows[0], **{key: value for key, value in shadows[1].items() if key != "dtype"})
            except (RuntimeError, TypeError):
                # not followed: moved where all that it was made of was
                shadow = None
        every = all(bool(_elements(self._marked(one), one).all()) for one in _tensors((args, kwargs)))
        for at, tensor in enumerate(fresh):
            mine = None if shadow is None else list(_tensors(shadow))[at]
            value = every if mine is None else (mine != 0).reshape(tensor.shape).unsqueeze(-1)
            _elements(self.moved[_address(tensor)], tensor)[:] = value


def _tensor_class() -> Any:
    import torch

    return torch.Tensor


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _marks(tensor: Any, unwritten: bool = False) -> Any:
    import torch

    return torch.full((tensor.untyped_storage().nbytes(),), unwritten, dtype=torch.bool)


def _elements(marks: Any, tensor: Any) -> Any:
    """The marks of a tensor's bytes, in its shape."""
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    return marks.as_strided((*tensor.shape, size), (*strides, 1), tensor.storage_offset() * size)


def _tensors(value: Any) -> Iterable[Any]:
    if isinstance(value, _tensor_class()):
        if value.layout.__str__() == "torch.strided" and value.device.type != "meta":
            yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, _tensor_class()):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    return type(value)(_mapped(item, change) for item in value) if type(value) in (list, tuple) else value


def _written(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterable[Any]:
    """The arguments that an operation writes, by its schema."""
    for at, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[at] if at < len(args) else kwargs.get(argument.name)
