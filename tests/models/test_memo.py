"""A memo is right: it never answers with what another tensor, or the same one before a change, would have given."""

import gc

import torch

from models.memo import TensorMemo


def test_the_same_tensor_is_worked_out_once_and_any_other_anew() -> None:
    memo, calls = TensorMemo(), []

    def doubled(source: torch.Tensor, about: int = 0) -> torch.Tensor:
        def make() -> torch.Tensor:
            calls.append(about)
            return 2 * source

        return memo.get(source, about, make)

    one = torch.ones(3)
    assert doubled(one) is doubled(one)
    assert calls == [0]
    doubled(one, 7)
    doubled(one.clone())
    assert calls == [0, 7, 0]
    one += 1
    assert torch.equal(doubled(one), torch.full((3,), 4.0))
    assert calls == [0, 7, 0, 0]


def test_it_keeps_no_tensor_alive() -> None:
    memo, one = TensorMemo(), torch.ones(3)
    memo.get(one, None, lambda: torch.zeros(3))
    del one
    gc.collect()
    assert len(memo._known) == 0
