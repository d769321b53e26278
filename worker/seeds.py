"""Seeds from what a number is for, so that batching, accumulation and resumes change none of them."""

import hashlib

import torch


def seed_for(*parts: object) -> int:
    """A 63-bit seed that depends only on `parts` (the job's seed, a step, a sample's place, a word)."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def sow(device: torch.device, *parts: object) -> None:
    """Seed torch's own generators, of the CPU and of this device, by `seed_for(*parts)`. What is then drawn is what it would be after
    torch.manual_seed, which asks every backend there could be and takes a hundred times as long; this is done several times a step."""
    seed = seed_for(*parts)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        place = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[place].manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)
