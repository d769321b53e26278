"""AdvancedPromptEmbeds: its rules, and its file as the safetensors library sees it."""

import pytest
import torch
from safetensors import safe_open

from models.prompt_embeds import AdvancedPromptEmbeds

Embeds = AdvancedPromptEmbeds


def embeds(*lengths: int, **more: list[torch.Tensor]) -> Embeds:
    """One prompt of each length, every number different."""
    return Embeds(text_embeds=[torch.arange(n * 4.0).reshape(n, 4) + 100 * n for n in lengths], **more)


def test_keys_read_as_attributes_and_as_items_and_lengths_stay_mixed() -> None:
    made = embeds(3, 7, pooled_embeds=[torch.ones(5), torch.zeros(5)])
    assert made.keys() == ["text_embeds", "pooled_embeds"]
    assert made.text_embeds is made["text_embeds"]
    assert [item.shape for item in made.text_embeds] == [(3, 4), (7, 4)]
    assert len(made) == 2
    assert "pooled_embeds" in made
    assert "masks" not in made


def test_an_unknown_key_names_those_there_are() -> None:
    with pytest.raises(AttributeError, match="no key 'pooled' in these prompt embeds; there are: text_embeds"):
        _ = embeds(3).pooled


def test_a_single_tensor_becomes_a_list_of_one_and_may_be_assigned() -> None:
    made = Embeds(text_embeds=torch.ones(3, 4))
    made.pooled_embeds = torch.zeros(5)
    made["mask"] = torch.ones(3, dtype=torch.bool)
    assert [len(made[key]) for key in made.keys()] == [1, 1, 1]  # noqa: SIM118


@pytest.mark.parametrize("shape", [(4,), (1, 3, 4)])
def test_text_embeds_that_are_not_2d_are_refused_with_the_way_out(shape: tuple[int, ...]) -> None:
    wanted = (
        rf"text_embeds\[1\] has shape \({', '.join(map(str, shape))},?\); each item must be 2-D \(L, D\).*reshape\(L, N \* D\)"
    )
    with pytest.raises(ValueError, match=wanted):
        Embeds(text_embeds=[torch.zeros(3, 4), torch.zeros(*shape)])
    with pytest.raises(ValueError, match="each item must be 2-D"):
        embeds(3).text_embeds = torch.zeros(*shape)


def test_other_keys_keep_their_rank() -> None:
    assert embeds(3, pooled=[torch.zeros(2, 3, 4)]).pooled[0].shape == (2, 3, 4)


def test_keys_of_different_batch_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lengths differ: \{'text_embeds': 2, 'pooled': 1\}"):
        embeds(3, 4, pooled=[torch.zeros(5)])


def test_concat_joins_in_order_without_padding_and_split_undoes_it() -> None:
    one, two = embeds(3, 5), embeds(2, 6)
    joined = Embeds.concat_prompt_embeds([one, two], padding_side="left")
    assert [item.shape[0] for item in joined.text_embeds] == [3, 5, 2, 6]
    parts = Embeds.split_prompt_embeds(joined, 2)
    for part, original in zip(parts, (one, two), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(part.text_embeds, original.text_embeds, strict=True))
    assert [len(part) for part in Embeds.split_prompt_embeds(joined)] == [1, 1, 1, 1]


def test_concat_of_different_keys_is_refused_whichever_comes_first() -> None:
    more = embeds(3, pooled=[torch.zeros(5)])
    for parts in ([embeds(3), more], [more, embeds(3)]):
        with pytest.raises(ValueError, match=r"pooled.*cannot join|cannot join.*pooled"):
            Embeds.concat_prompt_embeds(parts)


def test_a_split_into_unequal_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="3 prompts do not split into 2 equal parts"):
        Embeds.split_prompt_embeds(embeds(1, 2, 3), 2)


def test_expand_serves_a_batch_with_one_prompt_and_refuses_other_sizes() -> None:
    one = embeds(3)
    assert [item is one.text_embeds[0] for item in one.expand_to_batch(3).text_embeds] == [True] * 3
    assert len(embeds(3, 4).expand_to_batch(2)) == 2
    with pytest.raises(ValueError, match="2 prompts cannot serve a batch of 3; give 1 or 3"):
        embeds(3, 4).expand_to_batch(3)


@pytest.mark.parametrize("how", [{"dtype": torch.bfloat16}, {"device": "cpu", "dtype": torch.bfloat16}])
def test_to_casts_all_but_frozen_keys(how: dict) -> None:
    made = embeds(3, ids=[torch.tensor([1, 2, 3])])
    made.frozen_dtype_keys = ["ids"]
    moved = made.to(**how)
    assert moved.text_embeds[0].dtype == torch.bfloat16
    assert moved.ids[0].dtype == torch.int64
    assert moved.frozen_dtype_keys == ["ids"]
    assert made.text_embeds[0].dtype == torch.float32


def test_to_moves_frozen_keys_too() -> None:
    made = embeds(3, ids=[torch.tensor([1])])
    made.frozen_dtype_keys = ["ids"]
    assert {made.to("meta")[key][0].device.type for key in made.keys()} == {"meta"}  # noqa: SIM118


def test_frozen_keys_survive_concat_split_expand_and_clone() -> None:
    made = embeds(3, ids=[torch.tensor([1])])
    made.frozen_dtype_keys = ["ids"]
    joined = Embeds.concat_prompt_embeds([embeds(3, ids=[torch.tensor([2])]), made])
    for each in (joined, Embeds.split_prompt_embeds(joined)[1], made.expand_to_batch(2), made.clone(), made.detach()):
        assert each.to(torch.float16).ids[0].dtype == torch.int64


def test_clone_and_detach_own_their_numbers_and_their_graph() -> None:
    weight = torch.ones(3, 4, requires_grad=True)
    made = Embeds(text_embeds=[weight * 2])
    assert not made.detach().text_embeds[0].requires_grad
    copy = made.clone()
    assert torch.equal(copy.text_embeds[0], made.text_embeds[0])
    assert copy.text_embeds[0].data_ptr() != made.text_embeds[0].data_ptr()


def test_a_saved_prompt_is_exact_and_its_header_says_what_it_is(tmp_path) -> None:
    made = embeds(7, pooled=[torch.randn(5).to(torch.bfloat16)], ids=[torch.tensor([4, 5])], mask=[torch.tensor([1.0, 0.0])])
    made.frozen_dtype_keys = ["ids", "mask"]
    path = tmp_path / "prompt.safetensors"
    made.save(path)
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"class_name": "AdvancedPromptEmbeds", "frozen_dtype_keys": "ids,mask"}
        assert all(torch.equal(file.get_tensor(key), made[key][0]) for key in file.keys())  # noqa: SIM118
    loaded = Embeds.load(path)
    assert set(loaded.keys()) == set(made.keys())
    assert all(torch.equal(loaded[key][0], made[key][0]) and loaded[key][0].dtype == made[key][0].dtype for key in made.keys())  # noqa: SIM118
    assert loaded.to(torch.float16).mask[0].dtype == torch.float32


def test_whole_numbers_are_frozen_on_load_even_if_the_header_does_not_say_so(tmp_path) -> None:
    embeds(2, ids=[torch.tensor([4, 5])]).save(tmp_path / "p.safetensors")
    assert Embeds.load(tmp_path / "p.safetensors").frozen_dtype_keys == ["ids"]


def test_a_batch_is_not_saved_as_a_prompt(tmp_path) -> None:
    with pytest.raises(ValueError, match="not a batch of 2"):
        embeds(2, 3).save(tmp_path / "p.safetensors")
    assert list(tmp_path.iterdir()) == []
